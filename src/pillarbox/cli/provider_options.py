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
    from pillarbox.cli.command import Given
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


def without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given."""
    return {key: value for key, value in settings.items() if value is not None}


async def add(
    given: Given,
    name: str,
    kind: str,
    settings: Mapping[str, Any],
    secret: Secret | None,
    retry: str | None,
    webhook_secret: Secret | None = None,
) -> None:
    """Add a provider, and say what to do next."""
    async with given.app() as app:
        number = await providers.add_provider(
            app.database, app.keys, name, kind, settings, secret, retry, webhook_secret
        )
    path = feedback_path(kind, number) if kind in HTTP_KINDS else None
    if given.json:
        output.print_json({"id": number, "name": name, "kind": kind} | without_none({"webhook": path}))
        return
    output.say(f"added {kind} provider {name}; try it with `pillarbox provider test {name}`")
    if path:
        output.say(f"its feedback goes to {path}: see `pillarbox provider feedback --help`")
