"""`dlq`: dead letters, which are failed deliveries and tokens that could not be rendered."""

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
    from pillarbox.store.lifecycle import SetAsideToken


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Manage dead letters: failed deliveries, and sending them again.", no_args_is_help=True
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
    """List messages with failed deliveries, newest first, with the reason and the last reply.

    \b
    Examples:
      pillarbox dlq list
      pillarbox dlq list --tenant shop --reason policy --since 1d
      pillarbox dlq list --subject invoice --json      (with every attempt)
    """
    found: list[FailedMessage] = []
    async with context.app() as app:
        tenant_id = await tenant_id_of(app, tenant)
        last = None
        if before is not None:
            last = await find_message(app.database, before)
        while len(found) < limit:
            which = MessageFilter(before=last, **filters)
            page = await store.page(
                app.database,
                tenant_id,
                which,
                limit - len(found),
            )
            found += page.messages
            last = page.next
            if last is None:
                break
        if context.json:
            output.print_json(found)
            return
        ids = await shown_ids(app.database, [message.id for message in found])
        tokens: list[SetAsideToken] = []
        if not any(filters.values()):  # the filters do not apply to tokens
            tokens = await set_aside_tokens.list_tokens(
                app.database,
                app.settings,
                tenant,
                limit,
            )
    heads = ("id", "accepted", "tenant", "to~", "subject~", "reason", "tries#", "error~")
    output.table(
        heads, [_row(message, ids[message.id]) for message in found], "no dead letter matches"
    )
    if last is not None:
        output.note(f"there may be more: add --before {last}")
    if tokens:
        output.say("tokens that could not be rendered (see `pillarbox dlq tokens`):")
        dlq_tokens.show(tokens)


def _row(message: FailedMessage, id: str) -> tuple[object, ...]:
    first, *others = message.deliveries
    recipients = first.recipient
    if others:
        recipients += f" +{len(others)}"
    reasons = dict.fromkeys(delivery.reason or "" for delivery in message.deliveries)
    attempts = max(len(delivery.attempts) for delivery in message.deliveries)
    return (
        id,
        output.age(message.created_at),
        message.tenant,
        recipients,
        message.subject,
        ", ".join(reasons),
        str(attempts),
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
            f"{output.counted(tokens, 'token')} could not be rendered: see `pillarbox dlq tokens`"
        )


async def show(context: CommandContext, id: options.MessageId) -> None:
    """Show a dead letter: envelope, deliveries, attempts with their replies, events.

    \b
    Example:
      pillarbox dlq show 0c2f0c3d7a11
    """
    await queue_show.show(context, id)
