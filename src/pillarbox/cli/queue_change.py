"""`queue retry|cancel|release|reap`: what a person does to deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from pillarbox.cli import options, output
from pillarbox.cli.command import Given, command
from pillarbox.store import operations
from pillarbox.store.messages import Filter, find_message, states_of

if TYPE_CHECKING:
    from pillarbox.app import App
    from pillarbox.store.operations import Change

OptionalId = Annotated[str | None, typer.Argument(metavar="[ID]", help="The message's id, or its beginning.")]
All = Annotated[bool, typer.Option("--all", help="Instead of one message: everything that fits the filters.")]
Number = Annotated[
    int | None, typer.Option("--delivery", metavar="N", help="Only this delivery of the message.")
]
# Counting stops here: beyond it a person only needs to know that it is a lot.
COUNTED = 100_000


def register(group: typer.Typer) -> None:
    command(group, "retry")(retry)
    command(group, "cancel")(cancel)
    command(group, "release")(release)
    command(group, "reap")(reap)


async def retry(
    given: Given,
    id: OptionalId = None,
    all: All = False,
    delivery: Number = None,
    state: Annotated[
        str, typer.Option("--state", metavar="STATE", help="failed: the only state to retry from.")
    ] = "failed",
    tenant: options.TenantFilter = None,
    class_name: options.ClassFilter = None,
    kind: options.KindFilter = None,
    reason: options.ReasonFilter = None,
    provider: options.ProviderFilter = None,
    since: options.Since = None,
    until: options.Until = None,
    yes: options.Yes = False,
) -> None:
    """Queue failed deliveries again, with all their attempts before them.

    With --all, what expired or has lost its content is left out: it could not be sent.

    \b
    Examples:
      pillarbox queue retry 0198c5a27d7e
      pillarbox queue retry --all --reason credential --since 2h
      pillarbox queue retry --all --provider relay --yes
    """
    if state not in operations.RETRYABLE:
        raise typer.BadParameter("--state: only failed deliveries can be retried; held ones can be released")
    which = Filter((state,), tenant, class_name, kind, None, None, None, provider, reason, since, until)
    await _change(given, operations.retry, "retried", id, all, delivery, which, yes, sendable=True)


async def cancel(
    given: Given,
    id: OptionalId = None,
    all: All = False,
    delivery: Number = None,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="With --all: pending, queued or held."),
    ] = None,
    tenant: options.TenantFilter = None,
    class_name: options.ClassFilter = None,
    kind: options.KindFilter = None,
    since: options.Since = None,
    until: options.Until = None,
    yes: options.Yes = False,
) -> int:
    """Cancel deliveries that still wait. What is in flight cannot be called back.

    \b
    Examples:
      pillarbox queue cancel 0198c5a27d7e
      pillarbox queue cancel --all --kind newsletter --state queued
    """
    states = state or list(operations.CANCELLABLE)
    if not set(operations.CANCELLABLE).issuperset(states):
        raise typer.BadParameter(f"--state must be one of {', '.join(operations.CANCELLABLE)}")
    which = Filter(states, tenant, class_name, kind, None, None, None, None, None, since, until)
    return await _change(given, operations.cancel, "cancelled", id, all, delivery, which, yes)


async def release(
    given: Given,
    id: OptionalId = None,
    resend: Annotated[bool, typer.Option("--resend", help="Send it again; it may arrive twice.")] = False,
    sent: Annotated[bool, typer.Option("--sent", help="It arrived: settle it as sent.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="It did not: settle it as failed.")] = False,
    all: All = False,
    delivery: Number = None,
    tenant: options.TenantFilter = None,
    class_name: options.ClassFilter = None,
    kind: options.KindFilter = None,
    provider: options.ProviderFilter = None,
    since: options.Since = None,
    until: options.Until = None,
    yes: options.Yes = False,
) -> None:
    """Decide about held deliveries: nobody saw how their last attempt ended.

    \b
    Examples:
      pillarbox queue release 0198c5a27d7e --resend
      pillarbox queue release --all --class codes --failed
    """
    chosen = [word for word, wanted in (("resend", resend), ("sent", sent), ("failed", failed)) if wanted]
    if len(chosen) != 1:
        raise typer.BadParameter("say what became of it: one of --resend, --sent, --failed")
    which = Filter(
        operations.RELEASABLE, tenant, class_name, kind, None, None, None, provider, None, since, until
    )
    change = operations.RELEASES[chosen[0]]
    await _change(given, change, "released", id, all, delivery, which, yes, sendable=resend)


async def reap(given: Given) -> None:
    """Take back what dead workers held, once. Workers do this by themselves all the time.

    \b
    Example:
      pillarbox queue reap
    """
    async with given.app() as app:
        count = await app.reap()
    output.print_json({"reaped": count}) if given.json else output.say(f"{count} deliveries taken back")


async def _change(
    given: Given, change: Change, word: str, id: str | None, all: bool, n: int | None, which: Filter, yes: bool,
    sendable: bool = False,
) -> int:  # fmt: skip
    if (id is None) == (not all):
        raise typer.BadParameter("give a message's ID, or --all with filters")
    async with given.app() as app:
        if id is not None:
            return await _change_one(given, app, change, word, id, n, which.states)
        count = await _change_all(app, change, word, which, yes, sendable)
    output.print_json({word: count}) if given.json else output.say(f"{count} deliveries {word}")
    return 0


async def _change_one(
    given: Given, app: App, change: Change, word: str, id: str, n: int | None, states: Sequence[str]
) -> int:
    message_id = await find_message(app.database, id)
    changed = await operations.change_message(app.database, change, message_id, states, word, n)
    if given.json:
        output.print_json({"id": message_id, word: sorted(number for _, number in changed)})
    else:
        output.say(f"{len(changed)} deliver{'y' if len(changed) == 1 else 'ies'} of {message_id} {word}")
    flying = (await states_of(app.database, [message_id])).get("processing", 0)
    if flying and change is operations.cancel:
        output.error(f"{flying} in flight cannot be cancelled any more")
        return 1
    return 0


async def _change_all(app: App, change: Change, word: str, which: Filter, yes: bool, sendable: bool) -> int:
    which = replace(which, until=which.until or datetime.now(UTC))
    total = await operations.count(app.database, which, sendable, COUNTED)
    if not total:
        return 0
    options.confirm(f"{total:,}{'+' * (total == COUNTED)} deliveries will be {word}. Go on?", yes)
    done = 0
    with Progress(console=output.console(stderr=True), transient=True) as progress:
        task = progress.add_task(word, total=total)
        async for count in operations.change_all(app.database, change, which, sendable):
            done += count
            progress.update(task, advance=count)
    return done
