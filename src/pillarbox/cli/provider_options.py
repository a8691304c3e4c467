"""What the commands that add a provider share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pillarbox.cli import options, output
from pillarbox.model.provider import HTTP_KINDS, feedback_path
from pillarbox.model.retry import POLICIES
from pillarbox.store import providers

if TYPE_CHECKING:
    from pillarbox.cli.command import CommandContext
    from pillarbox.model.secret import Secret

Name = Annotated[str, typer.Argument(parser=options.name, metavar="NAME", help="What to call it.")]


def _policy(value: str) -> str:
    if value not in POLICIES:
        raise typer.BadParameter(f"{value!r}: must be one of {', '.join(POLICIES)}")
    return value


def positive(value: str) -> float:
    if (found := options.seconds(value)) <= 0:
        raise typer.BadParameter(f"{value!r}: must be more than nothing")
    return found


def limit(flag: str, help: str, **more: Any) -> Any:
    return typer.Option(flag, help=help, rich_help_panel="Limits", show_default=False, **more)


Retry = Annotated[
    str | None,
    typer.Option(
        "--retry",
        metavar="POLICY",
        parser=_policy,
        help="quadratic (default of smtp and capture), esp (default of the others) or lifecycle.",
    ),
]


ReleaseOnly = Annotated[
    bool,
    typer.Option(
        "--release-only", help="Use it only where a route or a person names it, never by default."
    ),
]


def without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given."""
    return {key: value for key, value in settings.items() if value is not None}


async def add(
    context: CommandContext,
    name: str,
    kind: str,
    settings: Mapping[str, Any],
    secret: Secret | None,
    retry: str | None,
    webhook_secret: Secret | None = None,
    *,
    release_only: bool = False,
) -> None:
    """Add a provider, and say what to do next."""
    async with context.app() as app:
        number = await providers.add_provider(
            app.database,
            app.keys,
            name,
            kind,
            settings,
            secret,
            retry,
            webhook_secret,
            release_only=release_only,
        )
        captures = await providers.captures_by_default(
            app.database, development=app.settings.is_development
        )
    path = feedback_path(kind, number) if kind in HTTP_KINDS else None
    if context.json:
        output.print_json(
            {"id": number, "name": name, "kind": kind} | without_none({"webhook": path})
        )
        return
    output.say(f"added {kind} provider {name}; try it with `pillarbox provider test {name}`")
    if kind == "capture" and not captures:
        output.note(
            "no mail goes to it by default: name it in a route (`pillarbox route add`), or use `up --capture-all`"
        )
    if path:
        output.say(f"its feedback goes to {path}: see `pillarbox provider feedback --help`")
