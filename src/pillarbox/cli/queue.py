"""`queue`: accepted messages and their deliveries."""

from __future__ import annotations

from collections import Counter

import typer
from rich.text import Text

from pillarbox.cli import options, output, queue_change, queue_show, queue_stats
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.message_ids import shown_ids
from pillarbox.store.messages import MessageFilter, MessageListItem, find_message, list_messages


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Manage the queue: messages, deliveries, statistics.", no_args_is_help=True
    )
    queue_stats.register(group)
    command(group, "list")(list_)
    queue_show.register(group)
    queue_change.register(group)
    root.add_typer(group, name="queue")


async def list_(
    context: CommandContext,
    state: options.States = None,
    tenant: options.TenantFilter = None,
    recipient: options.RecipientFilter = None,
    sender: options.SenderFilter = None,
    class_name: options.ClassFilter = None,
    kind: options.KindFilter = None,
    tag: options.TagFilter = None,
    provider: options.ProviderFilter = None,
    reason: options.ReasonFilter = None,
    since: options.Since = None,
    until: options.Until = None,
    before: options.Before = None,
    limit: options.Limit = 20,
) -> None:
    """List messages, newest first. The filters match a message if they match one of its deliveries.

    \b
    Examples:
      pillarbox queue list
      pillarbox queue list --state failed --since 1d
      pillarbox queue list --recipient ada@ --tenant shop --json
      pillarbox queue list --before 0c2f0c3d7a11      (the next page)
    """
    states = [str(value) for value in state or ()]
    async with context.app() as app:
        last = None
        if before is not None:
            last = await find_message(app.database, before)
        which = MessageFilter(
            states,
            tenant,
            class_name,
            kind,
            tag,
            sender,
            recipient,
            provider,
            reason,
            since,
            until,
            last,
        )
        found = await list_messages(app.database, which, limit)
        ids = await shown_ids(app.database, [message.id for message in found])
    if context.json:
        output.print_json(found)
        return
    heads = ("id", "accepted", "state", "tries#", "to~", "subject~", "reason", "provider")
    output.table(heads, [_row(message, ids[message.id]) for message in found], "no message matches")
    if len(found) == limit:
        output.note(f"there may be more: add --before {ids[found[-1].id]}")


def _row(message: MessageListItem, id: str) -> tuple[object, ...]:
    recipients, *others = message.recipients
    if others:
        recipients += f" +{len(others)}"
    return (
        id,
        output.age(message.created_at),
        summary(message.states),
        str(message.attempts),
        recipients,
        message.subject,
        ", ".join(message.reasons),
        ", ".join(message.providers),
    )


def summary(states: object) -> Text:
    """`sent`, or `2 sent, 1 failed`."""
    if not isinstance(states, list | tuple):
        return Text("")
    counts = Counter(states)
    if len(counts) == 1:
        return output.styled(states[0])
    parts = []
    for state, count in sorted(counts.items()):
        parts.append(Text(f"{count} ").append_text(output.styled(state)))
    return Text(", ").join(parts)
