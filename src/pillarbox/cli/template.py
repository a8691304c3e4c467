"""`template`: lists, renders, checks and previews the templates of mails."""

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
        help="Manage templates of mails: list, render, check, preview.", no_args_is_help=True
    )
    command(
        group,
        "list",
        TEMPLATE_DIRS,
        LOCALE,
        store=False,
    )(list_)
    command(
        group,
        "render",
        TEMPLATE_DIRS,
        LOCALE,
        store=False,
    )(render)
    command(
        group,
        "check",
        TEMPLATE_DIRS,
        LOCALE,
        store=False,
    )(check_)
    command(
        group,
        "preview",
        TEMPLATE_DIRS,
        LOCALE,
        store=False,
        json=False,
    )(preview)
    root.add_typer(group, name="template")


async def preview(
    context: CommandContext,
    address: Annotated[
        str,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="The address of the page; port 0 selects a free port.",
        ),
    ] = PREVIEW_ADDRESS,
) -> None:
    """Serve a local page that shows every template in every language.

    Mails are shown with sample data, as on a desktop and on a phone, light and dark. Files are read
    again for each page: edit, then reload.

    \b
    Examples:
      pillarbox template preview
      pillarbox template preview --template-dirs ./mails --http 127.0.0.1:9000
    """
    try:
        host, port = split_address(LISTEN.read(address))
    except ValueError:
        raise SettingsError(f"--http must be {LISTEN.allowed}") from None
    # Imported here: a web framework takes long to import.
    from pillarbox.cli.template_preview import serve

    await serve(context.settings, host, port)


def templates_of(context: CommandContext) -> Templates:
    return Templates(context.settings.template_dirs, context.settings.lifecycle_locale)


async def list_(context: CommandContext) -> None:
    """List templates with their languages and folders.

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
    """The folders that the files of a template come from."""
    folders = set()
    for file_name, file in templates.files.files.items():
        if not file_name.startswith(f"{name}/"):
            continue
        if file.folder == PACKAGE:
            folders.add("pillarbox")
        else:
            folders.add(str(file.folder))
    return sorted(folders)


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
            help="The values of variables; sample data by default.",
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Option("--part", metavar="PART", help="Print only subject, text or html.")
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
    if data is None:
        values = sample_of(templates, name)
    else:
        values = _read(data)
    rendered = templates.render(name, locale, values)
    if context.json:
        output.print_json(rendered._asdict())
    elif part is not None:
        output.write_bytes((getattr(rendered, part) or "").encode())
    else:
        _show(rendered)


def _read(data: str) -> dict[str, Any]:
    try:
        if data.startswith("@"):
            values = json.loads(Path(data[1:]).read_text("utf-8"))
        else:
            values = json.loads(data)
    except OSError as error:
        raise SettingsError(f"--data: {data[1:]} cannot be read: {error.strerror}") from None
    except ValueError:
        raise SettingsError("--data: this is not JSON") from None
    if not isinstance(values, dict):
        raise SettingsError('--data: must be an object such as {"name": "Ada"}')
    return values


def _show(rendered: RenderedMail) -> None:
    size = "none"
    if rendered.html:
        size = output.size(len(rendered.html.encode()))
    output.pairs(
        [
            ("subject", rendered.subject),
            ("language", rendered.locale),
            ("html", f"{size} (--part html)"),
        ]
    )
    output.say(Text("\n" + output.clean_lines(rendered.text or "(no text)")))


async def check_(
    context: CommandContext,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Check only these; all by default."),
    ] = None,
) -> int:
    """Check templates; the exit code is 1 if there is a problem.

    It finds missing variables, languages and parts, broken links, tags that do not match, and HTML
    that is too large for Gmail.

    \b
    Examples:
      pillarbox template check
      pillarbox template check shop/order --template-dirs ./mails --json
    """
    templates = templates_of(context)
    found = check(templates, names or None)
    if context.json:
        output.print_json([finding._asdict() for finding in found])
    else:
        _print_findings(found, len(names or templates.names()))
    return int(bool(found))


def _print_findings(findings: list[Finding], count: int) -> None:
    rows = [
        (finding.template, finding.locale, _location(finding), finding.problem)
        for finding in findings
    ]
    if rows:
        output.table(("template", "language", "where", "what~"), rows)
    else:
        output.say(f"{output.counted(count, 'template')}: no problems")


def _location(finding: Finding) -> str:
    if finding.part and finding.line:
        return f"{finding.part}, line {finding.line}"
    return finding.part or ""
