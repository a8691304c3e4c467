"""`dlq`: dead letters, which are deliveries that failed, and tokens that could not be made mails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from pillarbox.cli import dlq_change, dlq_tokens, options, output, queue_show
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.dlq_change import tenant_id_of, with_filters
from pillarbox.cli.message_ids import shown_ids
from pillarbox.lifecycle import set_aside_tokens
from pillarbox.store import dlq as store
from pillarbox.store.messages import MessageFilter, find_message

if TYPE_CHECKING:
    from pillarbox.store.dlq import FailedMessage


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Dead letters: what failed, and sending it again.", no_args_is_help=True
    )
    command(group, "list")(with_filters(list_))
    command(group, "summary")(with_filters(summary))
    command(group, "show")(show)
    dlq_change.register(group)
    dlq_tokens.register(group)
    root.add_typer(group, name="dlq")


async def list_(
    context: CommandContext,
    tenant: options.TenantFilter = None,
    before: options.Before = None,
    limit: options.Limit = 20,
    **filters: Any,
) -> None:
    """List messages of which something failed, newest first, with why and what was said last.

    \b
    Examples:
      pillarbox dlq list
      pillarbox dlq list --tenant shop --reason policy --since 1d
      pillarbox dlq list --subject invoice --json      (with every attempt)
    """
    found: list[FailedMessage] = []
    async with context.app() as app:
        tenant_id = await tenant_id_of(app, tenant)
        last = None if before is None else await find_message(app.database, before)
        while len(found) < limit:
            page = await store.page(
                app.database, tenant_id, MessageFilter(before=last, **filters), limit - len(found)
            )
            found += page.messages
            last = page.next
            if last is None:
                break
        if context.json:
            output.print_json(found)
            return
        chosen = any(filters.values())  # no filter fits a token
        ids = await shown_ids(app.database, [one.id for one in found])
        tokens = (
            []
            if chosen
            else await set_aside_tokens.list_tokens(app.database, app.settings, tenant, limit)
        )
    heads = ("id", "accepted", "tenant", "to~", "subject~", "reason", "tries#", "error~")
    output.table(heads, [_row(one, ids[one.id]) for one in found], "no dead letter fits")
    if last is not None:
        output.note(f"there may be more: add --before {last}")
    if tokens:
        output.say("tokens of accounts that could not be made mails (see `pillarbox dlq tokens`):")
        dlq_tokens.show(tokens)


def _row(one: FailedMessage, id: str) -> tuple[object, ...]:
    first = one.deliveries[0]
    more = f" +{len(one.deliveries) - 1}" if len(one.deliveries) > 1 else ""
    reasons = dict.fromkeys(each.reason or "" for each in one.deliveries)
    return (
        id,
        output.age(one.created_at),
        one.tenant,
        first.recipient + more,
        one.subject,
        ", ".join(reasons),
        str(max(len(each.attempts) for each in one.deliveries)),
        first.error,
    )


async def summary(
    context: CommandContext, tenant: options.TenantFilter = None, **filters: Any
) -> None:
    """Count dead letters by reason and by provider.

    \b
    Examples:
      pillarbox dlq summary
      pillarbox dlq summary --tenant shop --since 1d --json
    """
    async with context.app() as app:
        counts = await store.summary(
            app.database, await tenant_id_of(app, tenant), MessageFilter(**filters)
        )
        tokens = await set_aside_tokens.count(app.database, app.settings, tenant)
    if context.json:
        output.print_json({**output.plain(counts), "tokens": tokens})
        return
    output.say(f"{output.counted(counts.total, 'delivery', more=not counts.complete)} failed")
    for name, numbers in (("reason", counts.reasons), ("provider", counts.providers)):
        if numbers:
            output.table(
                (name, "deliveries#"), [(word, f"{count:,}") for word, count in numbers.items()]
            )
    if tokens:
        output.say(
            f"{output.counted(tokens, 'token')} of accounts could not be made mails: see `pillarbox dlq tokens`"
        )


async def show(context: CommandContext, id: options.MessageId) -> None:
    """Tell the whole story of a dead letter: envelope, deliveries, attempts with what was said, events.

    \b
    Example:
      pillarbox dlq show 0c2f0c3d7a11
    """
    await queue_show.show(context, id)
