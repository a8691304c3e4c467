"""`queue`: what was accepted, and what becomes of it."""

from __future__ import annotations

import typer
from rich.text import Text

from pillarbox.cli import options, output, queue_change, queue_show, queue_stats
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.message_ids import shown_ids
from pillarbox.store.messages import MessageFilter, MessageListItem, find_message, list_messages


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="The queue: what was accepted, and what becomes of it.", no_args_is_help=True
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
    """List messages, newest first. A message is listed when one of its deliveries fits.

    \b
    Examples:
      pillarbox queue list
      pillarbox queue list --state failed --since 1d
      pillarbox queue list --recipient ada@ --tenant shop --json
      pillarbox queue list --before 0c2f0c3d7a11      (the next page)
    """
    states = [str(one) for one in state or ()]
    async with context.app() as app:
        last = None if before is None else await find_message(app.database, before)
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
        ids = await shown_ids(app.database, [one.id for one in found])
    if context.json:
        output.print_json(found)
        return
    heads = ("id", "accepted", "state", "tries#", "to~", "subject~", "reason", "provider")
    output.table(heads, [_row(one, ids[one.id]) for one in found], "no message fits")
    if len(found) == limit:
        output.note(f"there may be more: add --before {ids[found[-1].id]}")


def _row(one: MessageListItem, id: str) -> tuple[object, ...]:
    more = f" +{len(one.recipients) - 1}" if len(one.recipients) > 1 else ""
    return (
        id,
        output.age(one.created_at),
        summary(one.states),
        str(one.attempts),
        one.recipients[0] + more,
        one.subject,
        ", ".join(one.reasons),
        ", ".join(one.providers),
    )


def summary(states: object) -> Text:
    """`sent`, or `2 sent, 1 failed`."""
    words = list(states) if isinstance(states, list | tuple) else []
    if len(set(words)) == 1:
        return output.styled(words[0])
    counted = [
        Text(f"{words.count(one)} ").append_text(output.styled(one)) for one in sorted(set(words))
    ]
    return Text(", ").join(counted)
