"""`dlq reprocess|discard`: sends dead letters again, or cancels them."""

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

# The filters of these commands, by their names in `MessageFilter`.
FILTERS: dict[str, Any] = {
    "reason": options.ReasonFilter,
    "recipient": options.RecipientFilter,
    "sender": options.SenderFilter,
    "subject": options.SubjectFilter,
    "class_name": options.ClassFilter,
    "kind": options.KindFilter,
    "tag": options.TagFilter,
    "provider": options.ProviderFilter,
    "since": options.Since,
    "until": options.Until,
}
Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID…", help="Message ids, or at least their first or last 8 characters."
    ),
]
All = Annotated[bool, typer.Option("--all", help="Instead of ids: all that match the filters.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        min=1,
        metavar="N",
        help="At most this many deliveries, newest first.",
    ),
]
Run = Callable[["App", DeadLetterSelection, Callable[[int], None]], Awaitable[DeadLetterChange]]


Via = Annotated[
    str | None,
    typer.Option("--via", metavar="NAME", help="Use this provider instead of the route."),
]
KeepAttempts = Annotated[
    bool,
    typer.Option("--keep-attempts", help="Keep the count of attempts; at least one more is made."),
]


def register(group: typer.Typer) -> None:
    command(group, "reprocess")(with_filters(reprocess))
    command(group, "discard")(with_filters(discard))


def with_filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each filter."""
    return options.with_options(
        function, "filters", [(name, option, None) for name, option in FILTERS.items()]
    )


async def tenant_id_of(app: App, name: str | None) -> int | None:
    """The id of a tenant; NotFound if it does not exist. None: all tenants."""
    if name is None:
        return None
    tenant = await get_tenant(app.database, name)
    return tenant.id


async def reprocess(
    context: CommandContext,
    ids: Ids = None,
    all: All = False,
    via: Via = None,
    keep_attempts: KeepAttempts = False,
    tenant: options.TenantFilter = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: options.Yes = False,
    **filters: Any,
) -> int:
    """Queue dead letters again, with a new count of attempts; their history stays.

    Messages that have expired or whose content was dropped are left out: they cannot be sent. But a
    lifecycle mail that is given by its id is rendered again from its token, by a collector; if the
    token has expired, a new one is issued.

    \b
    Examples:
      pillarbox dlq reprocess 0c2f0c3d7a11
      pillarbox dlq reprocess --all --reason credential --since 2h --via other-relay
      pillarbox dlq reprocess --all --tenant shop --reason suppressed --dry-run
    """

    async def run(
        app: App, selection: DeadLetterSelection, progressed: Callable[[int], None]
    ) -> DeadLetterChange:
        provider_id = None
        if via is not None:
            provider_id = await store.provider_id(app.database, via, None)
        resend_options = ResendOptions(provider_id, via, keep_attempts)
        return await change(
            app.database,
            REPROCESS,
            selection,
            resend_options,
            on_progress=progressed,
        )

    request = _Request(
        ids,
        all,
        MessageFilter(**filters),
        tenant,
        limit,
        dry_run,
        yes,
        from_tokens=via is None,
    )
    return await _change(
        context,
        REPROCESS,
        request,
        run,
    )


async def discard(
    context: CommandContext,
    ids: Ids = None,
    all: All = False,
    tenant: options.TenantFilter = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: options.Yes = False,
    **filters: Any,
) -> int:
    """Discard dead letters: they become cancelled and are not listed any more.

    \b
    Examples:
      pillarbox dlq discard 0c2f0c3d7a11
      pillarbox dlq discard --all --reason invalid_recipient --until 30d
    """

    async def run(
        app: App, selection: DeadLetterSelection, progressed: Callable[[int], None]
    ) -> DeadLetterChange:
        return await change(
            app.database,
            DISCARD,
            selection,
            on_progress=progressed,
        )

    request = _Request(
        ids,
        all,
        MessageFilter(**filters),
        tenant,
        limit,
        dry_run,
        yes,
    )
    return await _change(
        context,
        DISCARD,
        request,
        run,
    )


class _Request(NamedTuple):
    """The selection and options of a command."""

    ids: list[str] | None
    all: bool
    which: MessageFilter
    tenant: str | None
    limit: int | None
    dry_run: bool
    yes: bool
    from_tokens: bool = False  # lifecycle mails are rendered again from their tokens


async def _change(
    context: CommandContext,
    operation: DeliveryOperation,
    request: _Request,
    run: Run,
) -> int:
    if bool(request.ids) == request.all:
        raise typer.BadParameter("give message ids, or --all with filters")
    async with context.app() as app:
        ids = None
        resent = 0
        if request.ids:
            ids = [await find_message(app.database, id) for id in request.ids]
            if request.from_tokens:
                ids, resent = await _resend_lifecycle_mails(app, ids, dry_run=request.dry_run)
        tenant_id = await tenant_id_of(app, request.tenant)
        selection = DeadLetterSelection(
            tenant_id,
            ids,
            request.which,
            request.limit,
        )
        done = await _preview(app, selection, run)
        if done.changed and not request.dry_run:
            if request.all:
                number = output.counted(done.changed, "delivery", more=done.changed == COUNTED)
                options.confirm(f"{number} will be {operation.word}. Go on?", request.yes)
            done = await _run_with_progress(
                app,
                operation,
                selection,
                done.changed,
                run,
            )
    done.changed += resent
    _report(
        context,
        operation,
        done,
        request.dry_run,
    )
    if request.ids and not done.changed:
        return 1
    return 0


async def _preview(app: App, selection: DeadLetterSelection, run: Run) -> DeadLetterChange:
    """What the command would change, counted up to COUNTED."""
    limit = COUNTED
    if selection.limit is not None:
        limit = min(selection.limit, COUNTED)
    return await run(app, replace(selection, limit=limit, dry_run=True), ignore_progress)


async def _resend_lifecycle_mails(
    app: App, ids: list[UUID], *, dry_run: bool
) -> tuple[list[UUID], int]:
    """Have collectors mail tokens of lifecycle mails again; return the rest and the number."""
    others: list[UUID] = []
    for message_id in ids:
        token = await resending.token_of(app.database, app.settings, message_id)
        if token is None:
            others.append(message_id)
        elif not dry_run:
            await resending.resend(
                app.database,
                app.settings,
                message_id,
                token,
            )
    return others, len(ids) - len(others)


async def _run_with_progress(
    app: App,
    operation: DeliveryOperation,
    selection: DeadLetterSelection,
    total: int,
    run: Run,
) -> DeadLetterChange:
    with output.progress() as progress:
        task = progress.add_task(operation.word, total=total)
        return await run(app, selection, lambda count: progress.update(task, advance=count))


def _report(
    context: CommandContext,
    operation: DeliveryOperation,
    done: DeadLetterChange,
    dry_run: bool,
) -> None:
    if context.json:
        result = output.plain(done)
        changed = result.pop("changed")
        output.print_json({operation.word: changed, "dry_run": dry_run} | result)
        return
    word = operation.word
    if dry_run:
        word = f"would be {word}"
    output.say(f"{output.counted(done.changed, 'delivery')} {word}")
    for reason, count in done.skipped.items():
        output.note(f"{count:,} left out: {reason}")
    if done.left:
        number = f"{done.left:,}"
        if not done.complete:
            number += " or more"
        output.note(f"{number} left: the limit was reached")
    if done.suppressed:
        output.note(
            f"{done.suppressed:,} of them will fail again at once: their recipients are suppressed"
        )
    if done.unfound:
        output.note(f"{output.counted(done.unfound, 'message')} without failed deliveries")
