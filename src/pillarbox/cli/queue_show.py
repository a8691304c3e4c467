"""`queue show`: one message with its deliveries, attempts and events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.deliver.mime import compose
from pillarbox.errors import NotFound
from pillarbox.model.delivery import State
from pillarbox.model.message import Content
from pillarbox.store import messages
from pillarbox.store.history import history
from pillarbox.store.messages import WAITING, policy_of, provider_name, remaining

if TYPE_CHECKING:
    from pillarbox.store.messages import (
        AttemptRecord,
        DeliveryRecord,
        MessageDetails,
        MessageRecord,
    )
    from pillarbox.store.rate_limit_wait import RateLimitWait

# Lines of the text that are shown; --raw shows all of it.
PREVIEW = 12


def register(group: typer.Typer) -> None:
    command(group, "show")(show)


async def show(
    context: CommandContext,
    id: options.MessageId,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the mail as it is sent.")] = False,
) -> None:
    """Show a message: envelope, deliveries, attempts with their transcripts, events.

    \b
    Examples:
      pillarbox queue show 0198c5a2-7d7e-7b0c-9e55-0c2f0c3d7a11
      pillarbox queue show 0c2f0c3d7a11 --json
      pillarbox queue show 0c2f0c3d7a11 --raw > mail.eml
    """
    async with context.app() as app:
        message_id = await messages.find_message(app.database, id)
        story = await messages.message_details(app.database, message_id)
        content = await messages.content(app.database, message_id)
    if raw:
        if content is None:
            raise NotFound(
                f"the content of message {message_id} was dropped: it cannot be composed"
            )
        output.write_bytes(compose(messages.message_of(story.message), content))
    elif context.json:
        output.print_json(as_json(story))
    else:
        _print_story(story, content)


def as_json(story: MessageDetails) -> dict[str, Any]:
    """The message as JSON; each delivery with its history and the waits of its retry policy."""
    result: dict[str, Any] = output.plain(story)
    for delivery, facts in zip(result["deliveries"], story.deliveries, strict=True):
        delivery["history"] = output.plain(history(story, facts))
        delivery["retry"] = policy_of(facts, story.message)
        delivery["then_after_seconds"] = remaining(facts, story.message)
    return result


def _print_story(story: MessageDetails, content: Content | None) -> None:
    _print_envelope(story.message)
    output.say()
    _print_deliveries(story)
    if content is not None and content.text:
        _print_text(content.text)
    output.say(Text("\\nWhat happened", style="bold"))
    for entry in sorted(history_entries(story), key=lambda entry: entry.at):
        at = f"  {entry.at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z  "
        output.say(Text.assemble((at, "dim"), entry.what))
        for line in entry.below:
            output.say(Text("      ").append_text(line))


def _print_envelope(one: MessageRecord) -> None:
    output.say(Text(f"Message {one.id}", style="bold"))
    headers = ", ".join(f"{name}: {value}" for name, value in one.headers.items())
    metadata = ", ".join(f"{name}={value}" for name, value in one.metadata.items())
    class_name = one.class_name
    if one.secret:
        class_name += " (secret)"
    output.pairs(
        [
            ("accepted", f"{output.when(one.created_at)} ({output.ahead(one.created_at)})"),
            ("from", one.sender),
            ("to", ", ".join(one.to)),
            ("cc", ", ".join(one.cc)),
            ("reply-to", ", ".join(one.reply_to)),
            ("subject", one.subject),
            ("tenant", one.tenant),
            ("class", class_name),
            ("kind", one.kind),
            ("priority", one.priority),
            ("tags", ", ".join(one.tags)),
            ("headers", headers),
            ("metadata", metadata),
            ("send at", output.when(one.send_at)),
            ("expires at", output.when(one.expires_at)),
            ("max attempts", one.max_attempts),
            ("idempotency key", one.idempotency_key),
            ("content", _sizes(one)),
        ]
    )


def _sizes(one: MessageRecord) -> str:
    if one.content is None:
        return "dropped"
    parts = [
        f"{name} {output.size(size)}" for name, size in one.content.items() if name != "attachments"
    ]
    attachments = one.content.get("attachments")
    if attachments:
        parts.append(output.counted(attachments, "attachment"))
    return f"{output.size(one.size)} in all: {', '.join(parts)}"


def _print_deliveries(story: MessageDetails) -> None:
    heads = ("n#", "", "recipient~", "state", "tries#", "reason", "provider", "next attempt")
    output.table(heads, [_delivery_row(delivery) for delivery in story.deliveries])
    plans: dict[str, list[str]] = {}
    for delivery in story.deliveries:
        plan = _retry_plan(delivery, story.message)
        if plan is not None:
            plans.setdefault(plan, []).append(str(delivery.n))
    for plan, numbers in plans.items():
        output.say(Text(f"  {', '.join(numbers)}: {plan}", style="dim"))
    for delivery in story.deliveries:
        since = story.waits_for_provider(delivery)
        if since is not None:
            text = f"  {delivery.n}: {_without_provider(since, story.message)}"
            output.say(Text(text, style="yellow"))
    if story.waiting is not None:
        output.say(Text(f"  {_rate_wait(story.waiting)}", style="yellow"))


def _delivery_row(delivery: DeliveryRecord) -> tuple[object, ...]:
    return (
        str(delivery.n),
        delivery.role,
        delivery.recipient,
        output.styled(delivery.state),
        str(delivery.attempts),
        delivery.reason,
        provider_name(delivery),
        _next(delivery),
    )


def _retry_plan(delivery: DeliveryRecord, message: MessageRecord) -> str | None:
    """The retry policy of a waiting delivery and its next waits."""
    policy = policy_of(delivery, message)
    if delivery.state not in WAITING or not policy:
        return None
    waits = ", ".join(map(output.span, remaining(delivery, message)))
    if not waits:
        return f"retry policy {policy}; the next attempt is the last"
    return f"retry policy {policy}; if the next attempt fails, then after {waits}"


def _rate_wait(waiting: RateLimitWait) -> str:
    owner = "the provider"
    if waiting.waits_for == "tenant_rate":
        owner = "its tenant"
    limit = f"{waiting.limit:,} per {waiting.period}"
    expected = output.ahead(waiting.expected_at)
    return f"waits for the rate limit of {owner} ({limit}); expected to leave {expected}"


def _without_provider(since: datetime, message: MessageRecord) -> str:
    """Since when a delivery has had no usable provider, and when that makes it fail."""
    text = f"no provider of its route can be used since {output.when(since)}"
    if message.expires_at is not None:
        return f"{text}; it expires {output.ahead(message.expires_at)}"
    if message.max_wait is None:
        return f"{text}; its class lets it wait forever"
    limit = output.span(message.max_wait.total_seconds())
    return f"{text}; it fails after {limit} without one (max_wait of its class)"


def _next(one: DeliveryRecord) -> str:
    if one.state == State.PROCESSING:
        return "in flight"
    if one.state in WAITING:
        return output.ahead(one.next_attempt_at)
    return ""


def _print_text(text: str) -> None:
    lines = output.clean_lines(text[: PREVIEW * 500]).split("\n")
    output.say(Text("\nText", style="bold"))
    for line in lines[:PREVIEW]:
        output.say(Text(f"  {line}"))
    if len(lines) > PREVIEW:
        output.say(Text("  … (--raw shows the whole mail)", style="dim"))


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry of the history, with lines below it."""

    at: datetime
    what: Text
    below: tuple[Text, ...] = ()


def history_entries(story: MessageDetails) -> Iterator[HistoryEntry]:
    """The history of a message: acceptance, attempts, events, and states of deliveries."""
    yield HistoryEntry(story.message.created_at, Text("accepted"))
    grouped = groupby(story.attempts, key=lambda attempt: (attempt.claim, attempt.step))
    for number, (_, rows) in enumerate(grouped, 1):
        yield _attempt(number, list(rows))
    for event in story.events:
        words = [str(event.kind)]
        if event.n is not None:
            words.append(f"(delivery {event.n})")
        words += [f"{key}={value}" for key, value in event.data.items()]
        yield HistoryEntry(event.at, Text(output.clean(" ".join(words))))
    for delivery in story.deliveries:
        yield from _states(story, delivery)


def _states(story: MessageDetails, delivery: DeliveryRecord) -> Iterator[HistoryEntry]:
    """The states of a delivery after the first, without those that an attempt or event shows."""
    shown = {event.kind for event in story.events if event.n == delivery.n}
    about = f" (delivery {delivery.n})"
    for change in history(story, delivery)[1:]:
        if change.state is State.PROCESSING:
            if delivery.state == State.PROCESSING and change.at == delivery.claimed_at:
                text = f"claimed by worker {delivery.worker}{about}, in flight"
                yield HistoryEntry(change.at, Text(text))
        elif change.state not in shown:
            suffix = about
            if change.reason:
                suffix = f" {change.reason}{about}"
            what = Text.assemble(output.styled(change.state), output.clean(suffix))
            yield HistoryEntry(change.at, what)


def _attempt(number: int, rows: list[AttemptRecord]) -> HistoryEntry:
    first = rows[0]
    took = output.span((first.ended_at - first.started_at).total_seconds())
    text = f"attempt {number}"
    if first.provider:
        text += f" via {provider_name(first)}"
    if first.worker:
        text += f" by worker {first.worker}"
    below = [_outcome(row) for row in rows]
    if first.conversation:
        lines = output.clean_lines(first.conversation).split("\n")
        below += [Text(f"  {line}", style="dim") for line in lines]
    return HistoryEntry(first.started_at, Text(output.clean(f"{text}, {took}")), tuple(below))


def _outcome(row: AttemptRecord) -> Text:
    words = [output.clean(word) for word in (row.reason, row.code, row.reply) if word]
    return Text.assemble(f"{row.n}: ", output.styled(row.verdict), f" {' '.join(words)}")
