"""`class`: message classes, which are named sets of policies."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

import typer

from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.provider_options import positive
from pillarbox.model.delivery import Unknown
from pillarbox.model.retry import POLICIES
from pillarbox.setting_kinds import show_duration
from pillarbox.store import catalog

Name = Annotated[str, typer.Argument(parser=options.name, metavar="NAME")]


RetryPolicy = Annotated[
    str | None,
    typer.Option(
        "--retry",
        metavar="POLICY",
        help="quadratic, esp, lifecycle, or provider for the provider's policy.",
    ),
]
UnknownPolicy = Annotated[
    Unknown | None,
    typer.Option("--unknown", help="What to do after an attempt with an unknown outcome."),
]
SecretFlag = Annotated[
    bool | None,
    typer.Option("--secret/--not-secret", help="Mask bodies, and drop them once settled."),
]
KeepContent = Annotated[
    str | None,
    typer.Option("--keep", metavar="AGE", help="How long content is kept: 7d, or default."),
]
MaxWait = Annotated[
    str | None,
    typer.Option(
        "--max-wait",
        metavar="TIME",
        help="How long a mail waits without a usable provider: 5d by default, or never.",
    ),
]


def register(root: typer.Typer) -> None:
    classes = typer.Typer(
        help="Manage classes: named sets of policies of mails.", no_args_is_help=True
    )
    command(classes, "list")(list_classes)
    command(classes, "set")(set_class)
    root.add_typer(classes, name="class")


async def list_classes(context: CommandContext) -> None:
    """List classes and their policies.

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
        output.table(heads, [_row(record) for record in found])


def _row(record: catalog.ClassRecord) -> tuple[str, ...]:
    kept = "as configured"
    if record.content_retention:
        kept = show_duration(record.content_retention.total_seconds())
    waits = "forever"
    if record.max_wait:
        waits = show_duration(record.max_wait.total_seconds())
    masked = "no"
    if record.secret:
        masked = "yes"
    return (record.name, record.retry or "the provider's", record.unknown, masked, kept, waits)


async def set_class(
    context: CommandContext,
    name: Name,
    retry: RetryPolicy = None,
    unknown: UnknownPolicy = None,
    secret: SecretFlag = None,
    keep: KeepContent = None,
    max_wait: MaxWait = None,
) -> None:
    """Add a class, or change the given policies of an existing one.

    \b
    Examples:
      pillarbox class set codes --secret --retry lifecycle --unknown hold
      pillarbox class set bulk --keep 2d
      pillarbox class set codes --max-wait 15m
      pillarbox class set invoices --max-wait never
    """
    if retry not in (None, "provider", *POLICIES):
        raise typer.BadParameter(f"--retry must be one of {', '.join(POLICIES)} or provider")
    changes: dict[str, Any] = {}
    if retry is not None:
        changes["retry"] = None if retry == "provider" else retry
    if unknown is not None:
        changes["unknown"] = unknown
    if secret is not None:
        changes["secret"] = secret
    if keep is not None:
        changes["content_retention"] = _age(keep)
    if max_wait is not None:
        changes["max_wait"] = _max_wait(max_wait)
    async with context.app() as app:
        known = {record.name: record for record in await catalog.list_classes(app.database)}
        old = known.get(
            name,
            catalog.ClassRecord(
                name,
                None,
                Unknown.RESEND,
                False,
                None,
            ),
        )
        new = replace(old, **changes)
        await catalog.put_class(app.database, new)
    verb = "added"
    if name in known:
        verb = "changed"
    context.report(new, f"{verb} class {name}")


def _age(keep: str) -> timedelta | None:
    if keep == "default":
        return None
    return timedelta(seconds=options.seconds(keep))


def _max_wait(max_wait: str) -> timedelta | None:
    if max_wait == "never":
        return None
    return timedelta(seconds=positive(max_wait))
