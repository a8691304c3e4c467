"""`queue retry|cancel|release|reap`: changes deliveries."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.lifecycle import resending
from pillarbox.model.delivery import State
from pillarbox.store import operations
from pillarbox.store.messages import MessageFilter, find_message, states_of

if TYPE_CHECKING:
    from uuid import UUID

    from pillarbox.app import App
    from pillarbox.store.lifecycle import ResentToken
    from pillarbox.store.operations import DeliveryOperation

OptionalId = Annotated[
    str | None, typer.Argument(metavar="ID", help="The message id, or its beginning.")
]
All = Annotated[
    bool, typer.Option("--all", help="Instead of one message: all that match the filters.")
]
Number = Annotated[
    int | None, typer.Option("--delivery", metavar="N", help="Only this delivery of the message.")
]
# Counting stops here: a larger exact number would not help.
COUNTED = 100_000


def register(group: typer.Typer) -> None:
    command(group, "retry")(retry)
    command(group, "cancel")(cancel)
    command(group, "release")(release)
    command(group, "reap")(reap)


async def retry(
    context: CommandContext,
    id: OptionalId = None,
    all: All = False,
    delivery: Number = None,
    state: options.States = None,
    tenant: options.TenantFilter = None,
    class_name: options.ClassFilter = None,
    kind: options.KindFilter = None,
    reason: options.ReasonFilter = None,
    provider: options.ProviderFilter = None,
    since: options.Since = None,
    until: options.Until = None,
    yes: options.Yes = False,
) -> int:
    """Queue failed deliveries again, with a new count of attempts.

    A lifecycle mail is rendered again from its token, by a collector, because its body was dropped;
    if the token has expired, a new one is issued. With --all, messages that have expired or whose
    content was dropped are left out: they cannot be sent.

    \b
    Examples:
      pillarbox queue retry 0c2f0c3d7a11
      pillarbox queue retry --all --reason credential --since 2h
      pillarbox queue retry --all --provider relay --yes
    """
    states = _states(state, operations.RETRY)
    which = MessageFilter(
        states,
        tenant,
        class_name,
        kind,
        provider=provider,
        reason=reason,
        since=since,
        until=until,
    )
    return await _change(
        context,
        operations.RETRY,
        which,
        id,
        all,
        delivery,
        yes,
    )


async def cancel(
    context: CommandContext,
    id: OptionalId = None,
    all: All = False,
    delivery: Number = None,
    state: options.States = None,
    tenant: options.TenantFilter = None,
    class_name: options.ClassFilter = None,
    kind: options.KindFilter = None,
    since: options.Since = None,
    until: options.Until = None,
    yes: options.Yes = False,
) -> int:
    """Cancel deliveries that wait or are held. A delivery in flight cannot be cancelled.

    \b
    Examples:
      pillarbox queue cancel 0c2f0c3d7a11
      pillarbox queue cancel --all --kind newsletter --state queued
    """
    which = MessageFilter(
        _states(state, operations.CANCEL),
        tenant,
        class_name,
        kind,
        since=since,
        until=until,
    )
    return await _change(
        context,
        operations.CANCEL,
        which,
        id,
        all,
        delivery,
        yes,
    )


async def release(
    context: CommandContext,
    id: OptionalId = None,
    resend: Annotated[
        bool, typer.Option("--resend", help="Send it again; it may arrive twice.")
    ] = False,
    sent: Annotated[bool, typer.Option("--sent", help="It arrived: settle it as sent.")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="It did not arrive: settle it as failed.")
    ] = False,
    all: All = False,
    delivery: Number = None,
    tenant: options.TenantFilter = None,
    class_name: options.ClassFilter = None,
    kind: options.KindFilter = None,
    provider: options.ProviderFilter = None,
    since: options.Since = None,
    until: options.Until = None,
    yes: options.Yes = False,
) -> int:
    """Decide about held deliveries: the outcome of their last attempt is unknown.

    \b
    Examples:
      pillarbox queue release 0c2f0c3d7a11 --resend
      pillarbox queue release --all --class codes --failed
    """
    flags = {"resend": resend, "sent": sent, "failed": failed}
    decisions = [decision for decision, is_set in flags.items() if is_set]
    if len(decisions) != 1:
        raise typer.BadParameter("give exactly one of --resend, --sent, --failed")
    operation = operations.RELEASES[decisions[0]]
    which = MessageFilter(
        (),
        tenant,
        class_name,
        kind,
        provider=provider,
        since=since,
        until=until,
    )
    return await _change(
        context,
        operation,
        which,
        id,
        all,
        delivery,
        yes,
    )


async def reap(context: CommandContext) -> None:
    """Release the deliveries of dead workers, once. Workers do this continuously.

    It waits up to `worker_lease` if no process has observed the database: a live worker may have
    been unable to renew its lease.

    \b
    Example:
      pillarbox queue reap
    """
    async with context.app() as app:
        count = await app.housekeeping().reap_patiently(_note_wait)
    context.report({"reaped": count}, f"{output.counted(count, 'delivery')} released")


def _states(states: list[State] | None, operation: DeliveryOperation) -> tuple[State, ...]:
    if not set(operation.takes).issuperset(states or ()):
        allowed = ", ".join(operation.takes)
        raise typer.BadParameter(f"--state: only {allowed} can be {operation.word}")
    return tuple(states or ())


async def _change(
    context: CommandContext,
    operation: DeliveryOperation,
    which: MessageFilter,
    id: str | None,
    all: bool,
    n: int | None,
    yes: bool,
) -> int:
    if (id is None) == (not all):
        raise typer.BadParameter("give a message id, or --all with filters")
    async with context.app() as app:
        if id is not None:
            return await _change_one(
                context,
                app,
                operation,
                id,
                n,
            )
        count = await _change_all(
            app,
            operation,
            which,
            yes,
        )
    context.report({operation.word: count}, f"{output.counted(count, 'delivery')} {operation.word}")
    return 0


async def _change_one(
    context: CommandContext,
    app: App,
    operation: DeliveryOperation,
    id: str,
    n: int | None,
) -> int:
    message_id = await find_message(app.database, id)
    if operation is operations.RETRY:
        token = await resending.token_of(app.database, app.settings, message_id)
        if token:
            resent = await resending.resend(
                app.database,
                app.settings,
                message_id,
                token,
            )
            return _report_resent(context, message_id, resent)
    changed = await operations.change_message(
        app.database,
        operation,
        message_id,
        n,
    )
    numbers = sorted(number for _, number in changed)
    context.report(
        {"id": message_id, operation.word: numbers},
        f"{output.counted(len(changed), 'delivery')} of {message_id} {operation.word}",
    )
    states = await states_of(app.database, [message_id])
    in_flight = states.get(State.PROCESSING, 0)
    if in_flight and operation is operations.CANCEL:
        output.error(f"{in_flight} in flight cannot be cancelled any more")
        return 1
    return 0


def _report_resent(context: CommandContext, message_id: UUID, resent: ResentToken) -> int:
    if context.json:
        output.print_json({"id": message_id, "token": resent.token, "is_new": resent.is_new})
    elif resent.is_new:
        output.say(
            f"its token has expired: token {resent.token} was issued, and a collector mails it"
        )
    else:
        output.say(f"a collector mails token {resent.token} again, as a new message")
    return 0


async def _change_all(
    app: App,
    operation: DeliveryOperation,
    which: MessageFilter,
    yes: bool,
) -> int:
    which = replace(which, until=which.until or datetime.now(UTC))
    total = await operations.count(
        app.database,
        operation,
        which,
        COUNTED,
    )
    if not total:
        return 0
    number = output.counted(total, "delivery", more=total == COUNTED)
    options.confirm(f"{number} will be {operation.word}. Go on?", yes)
    done = 0
    with output.progress() as progress:
        task = progress.add_task(operation.word, total=total)
        async for count in operations.change_all(app.database, operation, which):
            done += count
            progress.update(task, advance=count)
    return done


def _note_wait(seconds: float) -> None:
    output.note(f"waiting {output.span(seconds)}, so that live workers can renew their lease first")
