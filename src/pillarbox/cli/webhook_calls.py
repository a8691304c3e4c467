"""`webhook calls|replay`: lists the calls to a webhook, and repeats them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pillarbox.cli import options, output
from pillarbox.cli.access_options import Of
from pillarbox.cli.command import CommandContext, command
from pillarbox.model.webhook import CallState
from pillarbox.store import tenants, webhook_log, webhooks

if TYPE_CHECKING:
    from uuid import UUID

    from pillarbox.store.database import Database
    from pillarbox.store.webhook_log import WebhookCallRecord
    from pillarbox.store.webhooks import WebhookEndpoint

WebhookId = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id, or its beginning.")]
States = Annotated[
    list[CallState] | None,
    typer.Option("--state", metavar="STATE", help="waiting, delivered or failed; may be repeated."),
]
CallIds = Annotated[
    list[str] | None,
    typer.Option(
        "--call", metavar="CALL", help="Only this call, by its complete id; may be repeated."
    ),
]


def register(group: typer.Typer) -> None:
    command(group, "calls")(calls)
    command(group, "replay")(replay)


async def find(database: Database, word: str, tenant: str | None) -> WebhookEndpoint:
    """The webhook with this id or beginning of an id."""
    return await webhooks.find_endpoint(database, word, await tenant_id_of(database, tenant))


async def tenant_id_of(database: Database, tenant: str | None) -> int | None:
    if not tenant:
        return None
    owner = await tenants.get_tenant(database, tenant)
    return owner.id


async def calls(
    context: CommandContext,
    webhook: WebhookId,
    tenant: Of = None,
    state: States = None,
    limit: options.Limit = 50,
) -> None:
    """List the calls to a webhook, newest first, with the result of the last attempt.

    \b
    Examples:
      pillarbox webhook calls 0198c5a2-7d7e
      pillarbox webhook calls 0198c5a2-7d7e --state failed --limit 500 --json
    """
    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
        states = [str(one) for one in state or ()]
        made = await webhook_log.list_calls(
            app.database,
            found.id,
            found.tenant_id,
            states,
            limit=limit,
        )
    if context.json:
        output.print_json([_public(call) for call in made])
        return
    rows = [_row(call) for call in made]
    heads = ("call", "event", "kind", "state", "tries#", "status", "next", "error~")
    output.table(heads, rows, "no calls yet")


def _row(call: WebhookCallRecord) -> tuple[object, ...]:
    return (
        str(call.id),
        output.age(call.at),
        call.kind,
        call.state,
        str(call.attempts),
        str(call.status or ""),
        output.when(call.next_at),
        call.error or "",
    )


async def replay(
    context: CommandContext,
    webhook: WebhookId,
    tenant: Of = None,
    call: CallIds = None,
    state: States = None,
    since: options.Since = None,
    until: options.Until = None,
    yes: options.Yes = False,
) -> None:
    """Repeat calls with their old ids; by default those that failed.

    \b
    Examples:
      pillarbox webhook replay 0198c5a2-7d7e
      pillarbox webhook replay 0198c5a2-7d7e --state failed --state delivered --since 6h
      pillarbox webhook replay 0198c5a2-7d7e --call 0198c5a2-9b1c-7cc1-8f8e-54a1b2c3d4e5
    """
    if call and (state or since or until):
        raise typer.BadParameter("give --call, or --state, --since and --until, not both")
    ids = None
    if call:
        ids = [options.uuid(id) for id in call]
    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
        states = [str(value) for value in state or (CallState.FAILED,)]
        if ids is None:
            options.confirm(f"Repeat the calls that are {' or '.join(states)}?", yes)
        count = await _replay(
            app.database,
            found,
            ids,
            states,
            since,
            until,
        )
    context.report({"replayed": count}, f"{output.counted(count, 'call')} will be repeated")


async def _replay(
    database: Database,
    found: WebhookEndpoint,
    ids: list[UUID] | None,
    states: list[str],
    since: datetime | None,
    until: datetime | None,
) -> int:
    if ids is not None:
        return (
            await webhook_log.replay(
                database,
                found.id,
                found.tenant_id,
                calls=ids,
            )
        ).count
    until = until or datetime.now(UTC)  # without calls that are made meanwhile
    done, last = 0, None
    with output.progress() as progress:
        task = progress.add_task("replayed", total=None)
        while True:
            some = await webhook_log.replay(
                database,
                found.id,
                found.tenant_id,
                states=states,
                since=since,
                until=until,
                after=last,
            )
            done, last = done + some.count, some.last
            progress.update(task, advance=some.count)
            if last is None:
                return done


def _public(call: WebhookCallRecord) -> dict[str, Any]:
    """A call as JSON."""
    shown: dict[str, Any] = output.plain(call)
    return shown | {"data": output.plain(shown.pop("payload"))}
