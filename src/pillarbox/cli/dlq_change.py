"""`dlq reprocess|discard`: sending dead letters again, or giving them up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.queue_change import COUNTED
from pillarbox.lifecycle import resending
from pillarbox.store import dlq as store
from pillarbox.store.dlq_change import (
    DeadLetterChange,
    DeadLetterSelection,
    change,
    ignore_progress,
)
from pillarbox.store.messages import MessageFilter, find_message
from pillarbox.store.operations import DISCARD, REPROCESS, DeliveryOperation, ResendOptions
from pillarbox.store.tenants import get_tenant

if TYPE_CHECKING:
    from uuid import UUID

    from pillarbox.app import App

# The filters that all of these commands have, by the names that `MessageFilter` gives them.
FILTERS: dict[str, Any] = {
    "reason": options.ReasonFilter, "recipient": options.RecipientFilter, "sender": options.SenderFilter,
    "subject": options.SubjectFilter, "class_name": options.ClassFilter, "kind": options.KindFilter,
    "tag": options.TagFilter, "provider": options.ProviderFilter, "since": options.Since, "until": options.Until,
}  # fmt: skip
Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID…", help="Messages' ids, or the last (or first) 8 characters or more."
    ),
]
All = Annotated[
    bool, typer.Option("--all", help="Instead of messages: everything that fits the filters.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Most = Annotated[
    int | None,
    typer.Option(
        "--limit", "-n", min=1, metavar="N", help="At most so many deliveries; the newest first."
    ),
]
Run = Callable[["App", DeadLetterSelection, Callable[[int], None]], Awaitable[DeadLetterChange]]


def register(group: typer.Typer) -> None:
    command(group, "reprocess")(with_filters(reprocess))
    command(group, "discard")(with_filters(discard))


def with_filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each filter."""
    return options.with_options(
        function, "filters", [(name, option, None) for name, option in FILTERS.items()]
    )


async def tenant_id_of(app: App, name: str | None) -> int | None:
    """The tenant that was named; NotFound if there is none. None: all."""
    return None if name is None else (await get_tenant(app.database, name)).id


async def reprocess(
    context: CommandContext,
    ids: Ids = None,
    all: All = False,
    via: Annotated[
        str | None,
        typer.Option(
            "--via", metavar="NAME", help="Through this provider, whatever the routes say."
        ),
    ] = None,
    keep_attempts: Annotated[
        bool,
        typer.Option("--keep-attempts", help="Count the attempts made; one more is made at least."),
    ] = False,
    tenant: options.TenantFilter = None,
    limit: Most = None,
    dry_run: DryRun = False,
    yes: options.Yes = False,
    **filters: Any,
) -> int:
    """Queue dead letters again, with a fresh count of attempts; their history stays.

    What expired or has lost its content is left out: it could not be sent. But the mail of an
    account that is named by its ID is rendered again from its token, by a collector; if the token
    has expired, a new one is issued.

    \b
    Examples:
      pillarbox dlq reprocess 0c2f0c3d7a11
      pillarbox dlq reprocess --all --reason credential --since 2h --via other-relay
      pillarbox dlq reprocess --all --tenant shop --reason suppressed --dry-run
    """

    async def run(
        app: App, wanted: DeadLetterSelection, told: Callable[[int], None]
    ) -> DeadLetterChange:
        chosen = None if via is None else await store.provider_id(app.database, via, None)
        return await change(
            app.database,
            REPROCESS,
            wanted,
            ResendOptions(chosen, via, keep_attempts),
            on_progress=told,
        )

    ask = _Ask(
        ids, all, MessageFilter(**filters), tenant, limit, dry_run, yes, from_tokens=via is None
    )
    return await _change(context, REPROCESS, ask, run)


async def discard(
    context: CommandContext,
    ids: Ids = None,
    all: All = False,
    tenant: options.TenantFilter = None,
    limit: Most = None,
    dry_run: DryRun = False,
    yes: options.Yes = False,
    **filters: Any,
) -> int:
    """Give dead letters up: they become cancelled, and nobody need look at them again.

    \b
    Examples:
      pillarbox dlq discard 0c2f0c3d7a11
      pillarbox dlq discard --all --reason invalid_recipient --until 30d
    """

    async def run(
        app: App, wanted: DeadLetterSelection, told: Callable[[int], None]
    ) -> DeadLetterChange:
        return await change(app.database, DISCARD, wanted, on_progress=told)

    ask = _Ask(ids, all, MessageFilter(**filters), tenant, limit, dry_run, yes)
    return await _change(context, DISCARD, ask, run)


class _Ask(NamedTuple):
    """What was asked for at the command line."""

    ids: list[str] | None
    all: bool
    which: MessageFilter
    tenant: str | None
    limit: int | None
    dry_run: bool
    yes: bool
    from_tokens: bool = False  # mails of accounts are rendered again


async def _change(
    context: CommandContext, operation: DeliveryOperation, ask: _Ask, run: Run
) -> int:
    if bool(ask.ids) == ask.all:
        raise typer.BadParameter("give messages' IDs, or --all with filters")
    async with context.app() as app:
        ids = [await find_message(app.database, one) for one in ask.ids] if ask.ids else None
        resent = 0
        if ids and ask.from_tokens:
            ids, resent = await _resend_mails_of_accounts(app, ids, dry_run=ask.dry_run)
        wanted = DeadLetterSelection(await tenant_id_of(app, ask.tenant), ids, ask.which, ask.limit)
        most = COUNTED if ask.limit is None else min(ask.limit, COUNTED)
        would = await run(app, replace(wanted, limit=most, dry_run=True), ignore_progress)
        if ask.dry_run or not would.changed:
            done = would
        else:
            if ask.all:
                what = output.counted(would.changed, "delivery", more=would.changed == COUNTED)
                options.confirm(f"{what} will be {operation.word}. Go on?", ask.yes)
            done = await _with_progress(app, operation, wanted, would.changed, run)
    done.changed += resent
    _tell(context, operation, done, ask.dry_run)
    return 1 if ask.ids and not done.changed else 0


async def _resend_mails_of_accounts(
    app: App, ids: list[UUID], *, dry_run: bool
) -> tuple[list[UUID], int]:
    """Let collectors mail tokens again whose mails failed; returns the other messages, and how many these were."""
    others: list[UUID] = []
    for one in ids:
        token = await resending.token_of(app.database, app.settings, one)
        if token is None:
            others.append(one)
        elif not dry_run:
            await resending.resend(app.database, app.settings, one, token)
    return others, len(ids) - len(others)


async def _with_progress(
    app: App, operation: DeliveryOperation, wanted: DeadLetterSelection, total: int, run: Run
) -> DeadLetterChange:
    with output.progress() as progress:
        task = progress.add_task(operation.word, total=total)
        return await run(app, wanted, lambda count: progress.update(task, advance=count))


def _tell(
    context: CommandContext, operation: DeliveryOperation, done: DeadLetterChange, dry_run: bool
) -> None:
    if context.json:
        told = {operation.word: done.changed, "dry_run": dry_run}
        rest = {name: value for name, value in output.plain(done).items() if name != "changed"}
        output.print_json(told | rest)
        return
    output.say(
        f"{output.counted(done.changed, 'delivery')} {'would be ' if dry_run else ''}{operation.word}"
    )
    for word, count in done.skipped.items():
        output.note(f"{count:,} left out: {word}")
    if done.left:
        output.note(
            f"{done.left:,}{'' if done.complete else ' or more'} left: the limit was reached"
        )
    if done.suppressed:
        output.note(
            f"{done.suppressed:,} of them will fail again at once: their recipients are suppressed"
        )
    if done.unfound:
        output.note(f"{output.counted(done.unfound, 'message')} without anything that failed")
