"""`template`: the words of mails, listed, tried out, checked and looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from pillarbox.cli import output
from pillarbox.cli.command import TEMPLATE_DIRS, CommandContext, command, setting
from pillarbox.errors import SettingsError
from pillarbox.lifecycle.rendering import RenderedMail, Templates
from pillarbox.lifecycle.template_checks import Finding, check, sample_of
from pillarbox.lifecycle.template_files import PACKAGE, PARTS
from pillarbox.setting_kinds import LISTEN
from pillarbox.settings import split_address

LOCALE = setting("lifecycle_locale", "--lifecycle-locale", "LANGUAGE")
_STDIN = "-"


# Beside the port of `pillarbox up`, which may run at the same time.
PREVIEW_ADDRESS = "127.0.0.1:8026"


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Templates of mails: list, try out, check, look at.", no_args_is_help=True
    )
    command(group, "list", TEMPLATE_DIRS, LOCALE, store=False)(list_)
    command(group, "render", TEMPLATE_DIRS, LOCALE, store=False)(render)
    command(group, "check", TEMPLATE_DIRS, LOCALE, store=False)(check_)
    command(group, "preview", TEMPLATE_DIRS, LOCALE, store=False, json=False)(preview)
    root.add_typer(group, name="template")


async def preview(
    context: CommandContext,
    place: Annotated[
        str,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Where to serve the page; port 0 takes a free one."
        ),
    ] = PREVIEW_ADDRESS,
) -> None:
    """Serve a local page that shows every template in every language.

    Mails are shown with sample data, as on a desktop and on a phone, light and dark. Files are read
    anew for each page: edit, reload, look.

    \b
    Examples:
      pillarbox template preview
      pillarbox template preview --template-dirs ./mails --http 127.0.0.1:9000
    """
    try:
        host, port = split_address(LISTEN.read(place))
    except ValueError:
        raise SettingsError(f"--http must be {LISTEN.allowed}") from None
    from pillarbox.cli.template_preview import (
        serve,
    )  # only here: a web framework takes long to import

    await serve(context.settings, host, port)


def templates_of(context: CommandContext) -> Templates:
    return Templates(context.settings.template_dirs, context.settings.lifecycle_locale)


async def list_(context: CommandContext) -> None:
    """List templates, their languages, and which folders they come from.

    \b
    Examples:
      pillarbox template list
      pillarbox template list --template-dirs ./mails
    """
    templates = templates_of(context)
    rows = [
        (name, templates.locales(name), _folders(templates, name)) for name in templates.names()
    ]
    if context.json:
        output.print_json(
            [{"name": name, "locales": locales, "from": folders} for name, locales, folders in rows]
        )
        return
    shown = [(name, ", ".join(locales), ", ".join(folders)) for name, locales, folders in rows]
    output.table(("template", "languages", "from~"), shown)


def _folders(templates: Templates, name: str) -> list[str]:
    """Where the files of a template come from."""
    files = templates.files.files.items()
    found = {source.folder for file, source in files if file.startswith(f"{name}/")}
    return sorted("pillarbox" if folder == PACKAGE else str(folder) for folder in found)


async def render(
    context: CommandContext,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as hub/welcome.")],
    locale: Annotated[
        str | None, typer.Option("--locale", metavar="LANGUAGE", help="Such as de or de-AT.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="JSON|@FILE",
            help="What stands for variables; without it, sample data.",
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Option("--part", metavar="PART", help="Only subject, text or html.")
    ] = None,
) -> None:
    """Render a template, with sample data or your own.

    \b
    Examples:
      pillarbox template render hub/welcome
      pillarbox template render hub/activation --locale de --part html > mail.html
      pillarbox template render shop/order --data '{"order": 4711}'
      pillarbox template render shop/order --data @order.json --json
    """
    if part is not None and part not in PARTS:
        raise typer.BadParameter("must be subject, text or html", param_hint="--part")
    templates = templates_of(context)
    values = sample_of(templates, name) if data is None else _read(data)
    rendered = templates.render(name, locale, values)
    if context.json:
        output.print_json(rendered._asdict())
    elif part is not None:
        output.write_bytes((getattr(rendered, part) or "").encode())
    else:
        _show(rendered)


def _read(data: str) -> dict[str, Any]:
    try:
        text = Path(data[1:]).read_text("utf-8") if data.startswith("@") else data
        values = json.loads(text)
    except OSError as error:
        raise SettingsError(f"--data: {data[1:]} cannot be read: {error.strerror}") from None
    except ValueError:
        raise SettingsError("--data: this is not JSON") from None
    if not isinstance(values, dict):
        raise SettingsError('--data: must be an object such as {"name": "Ada"}')
    return values


def _show(rendered: RenderedMail) -> None:
    size = output.octets(len(rendered.html.encode())) if rendered.html else "none"
    output.pairs(
        [
            ("subject", rendered.subject),
            ("language", rendered.locale),
            ("html", f"{size} (--part html)"),
        ]
    )
    output.say(Text("\n" + output.clean_lines(rendered.text or "(there is no text)")))


async def check_(
    context: CommandContext,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; all without one.")
    ] = None,
) -> int:
    """Find what is wrong with templates; the exit code is 1 if something is.

    Missing variables, languages and parts; broken links; tags that do not match; HTML too large for
    Gmail.

    \b
    Examples:
      pillarbox template check
      pillarbox template check shop/order --template-dirs ./mails --json
    """
    templates = templates_of(context)
    found = check(templates, names or None)
    if context.json:
        output.print_json([one._asdict() for one in found])
    else:
        _tell(found, len(names or templates.names()))
    return 1 if found else 0


def _tell(found: list[Finding], count: int) -> None:
    rows = [(one.template, one.locale, _place(one), one.problem) for one in found]
    if rows:
        output.table(("template", "language", "where", "what~"), rows)
    else:
        output.say(f"{output.counted(count, 'template')}: nothing is wrong")


def _place(one: Finding) -> str:
    return f"{one.part}, line {one.line}" if one.part and one.line else one.part or ""
