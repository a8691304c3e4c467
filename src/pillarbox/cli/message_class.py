"""`class`: by which policies mails are sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.provider_options import positive
from pillarbox.model.delivery import Unknown
from pillarbox.model.retry import POLICIES
from pillarbox.setting_kinds import show_duration
from pillarbox.store import catalog

Name = Annotated[str, typer.Argument(parser=options.name, metavar="NAME")]


def register(root: typer.Typer) -> None:
    classes = typer.Typer(
        help="Classes: named sets of policies a mail carries.", no_args_is_help=True
    )
    command(classes, "list")(list_classes)
    command(classes, "set")(set_class)
    root.add_typer(classes, name="class")


async def list_classes(context: CommandContext) -> None:
    """List the classes and their policies.

    \b
    Example:
      pillarbox class list
    """
    async with context.app() as app:
        found = await catalog.list_classes(app.database)
    if context.json:
        output.print_json(found)
    else:
        heads = ("name", "retry", "unknowns", "secret", "content kept", "waits for a provider")
        output.table(heads, [_row(one) for one in found])


def _row(one: catalog.ClassRecord) -> tuple[str, ...]:
    kept = (
        show_duration(one.content_retention.total_seconds())
        if one.content_retention
        else "as configured"
    )
    waits = show_duration(one.max_wait.total_seconds()) if one.max_wait else "for ever"
    return (
        one.name,
        one.retry or "the provider's",
        one.unknown,
        "yes" if one.secret else "no",
        kept,
        waits,
    )


async def set_class(
    context: CommandContext,
    name: Name,
    retry: Annotated[
        str | None,
        typer.Option(
            "--retry", metavar="POLICY", help="quadratic, esp, lifecycle, or provider for its own."
        ),
    ] = None,
    unknown: Annotated[
        Unknown | None,
        typer.Option("--unknown", help="What to do with an attempt whose end nobody saw."),
    ] = None,
    secret: Annotated[
        bool | None,
        typer.Option("--secret/--not-secret", help="Mask bodies, and drop them once settled."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option("--keep", metavar="AGE", help="How long content is kept: 7d, or default."),
    ] = None,
    max_wait: Annotated[
        str | None,
        typer.Option(
            "--max-wait",
            metavar="TIME",
            help="How long a mail waits while no provider can be used, before it fails: 5d unless set, or never.",
        ),
    ] = None,
) -> None:
    """Add a class, or change what is given of one.

    \b
    Examples:
      pillarbox class set codes --secret --retry lifecycle --unknown hold
      pillarbox class set bulk --keep 2d
      pillarbox class set codes --max-wait 15m
      pillarbox class set invoices --max-wait never
    """
    if retry not in (None, "provider", *POLICIES):
        raise typer.BadParameter(f"--retry must be one of {', '.join(POLICIES)} or provider")
    waits = None if max_wait in (None, "never") else timedelta(seconds=positive(max_wait))
    kept = timedelta(seconds=options.seconds(keep)) if keep not in (None, "default") else None
    async with context.app() as app:
        known = {one.name: one for one in await catalog.list_classes(app.database)}
        old = known.get(name, catalog.ClassRecord(name, None, Unknown.RESEND, False, None))
        new = catalog.ClassRecord(
            name,
            old.retry if retry is None else None if retry == "provider" else retry,
            unknown or old.unknown,
            old.secret if secret is None else secret,
            old.content_retention if keep is None else kept,
            old.max_wait if max_wait is None else waits,
        )
        await catalog.put_class(app.database, new)
    if context.json:
        output.print_json(new)
    else:
        output.say(f"{'changed' if name in known else 'added'} class {name}")
