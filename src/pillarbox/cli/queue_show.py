"""`queue show`: the whole story of one message."""

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

# Lines of the text shown beside the story; --raw shows it whole.
PREVIEW = 12


def register(group: typer.Typer) -> None:
    command(group, "show")(show)


async def show(
    context: CommandContext,
    id: options.MessageId,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the mail as it is sent, instead.")
    ] = False,
) -> None:
    """Tell a message's whole story: envelope, deliveries, attempts with what was said, events.

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
                f"the content of message {message_id} was dropped: nothing is left to compose"
            )
        output.write_bytes(compose(messages.message_of(story.message), content))
    elif context.json:
        output.print_json(as_json(story))
    else:
        _tell(story, content)


def as_json(story: MessageDetails) -> dict[str, Any]:
    """The story with stable keys; each delivery with what its retry policy still holds for it."""
    told: dict[str, Any] = output.plain(story)
    for delivery, facts in zip(told["deliveries"], story.deliveries, strict=True):
        delivery["history"] = output.plain(history(story, facts))
        delivery["retry"] = policy_of(facts, story.message)
        delivery["then_after_seconds"] = remaining(facts, story.message)
    return told


def _tell(story: MessageDetails, content: Content | None) -> None:
    _tell_envelope(story.message)
    output.say()
    _tell_deliveries(story)
    if content is not None and content.text:
        _tell_text(content.text)
    output.say(Text("\nWhat happened", style="bold"))
    for moment in sorted(moments(story), key=lambda one: one.at):
        at = f"  {moment.at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z  "
        output.say(Text.assemble((at, "dim"), moment.what))
        for line in moment.below:
            output.say(Text("      ").append_text(line))


def _tell_envelope(one: MessageRecord) -> None:
    output.say(Text(f"Message {one.id}", style="bold"))
    headers = ", ".join(f"{name}: {value}" for name, value in one.headers.items())
    metadata = ", ".join(f"{name}={value}" for name, value in one.metadata.items())
    output.pairs([
        ("accepted", f"{output.when(one.created_at)} ({output.ahead(one.created_at)})"),
        ("from", one.sender), ("to", ", ".join(one.to)), ("cc", ", ".join(one.cc)),
        ("reply-to", ", ".join(one.reply_to)), ("subject", one.subject), ("tenant", one.tenant),
        ("class", f"{one.class_name}{' (secret)' if one.secret else ''}"), ("kind", one.kind),
        ("priority", one.priority), ("tags", ", ".join(one.tags)), ("headers", headers),
        ("metadata", metadata),
        ("send at", output.when(one.send_at)), ("expires at", output.when(one.expires_at)),
        ("max attempts", one.max_attempts), ("idempotency key", one.idempotency_key),
        ("content", _sizes(one)),
    ])  # fmt: skip


def _sizes(one: MessageRecord) -> str:
    if one.content is None:
        return "dropped"
    parts = [
        f"{name} {output.octets(size)}"
        for name, size in one.content.items()
        if name != "attachments"
    ]
    if count := one.content.get("attachments"):
        parts.append(output.counted(count, "attachment"))
    return f"{output.octets(one.size)} in all: {', '.join(parts)}"


def _tell_deliveries(story: MessageDetails) -> None:
    rows = [
        (str(one.n), one.role, one.recipient, output.styled(one.state), str(one.attempts), one.reason,
         provider_name(one), _next(one))
        for one in story.deliveries
    ]  # fmt: skip
    output.table(
        ("n#", "", "recipient~", "state", "tries#", "reason", "provider", "next attempt"), rows
    )
    plans: dict[str, list[str]] = {}
    for one in story.deliveries:
        if one.state in WAITING and (policy := policy_of(one, story.message)):
            plan = (
                ", ".join(map(output.span, remaining(one, story.message)))
                or "no more: it was the last"
            )
            plans.setdefault(
                f"retry policy {policy}; if the next attempt fails, then after {plan}", []
            ).append(str(one.n))
    for plan, numbers in plans.items():
        output.say(Text(f"  {', '.join(numbers)}: {plan}", style="dim"))
    for delivery in story.deliveries:
        if (since := story.waits_for_provider(delivery)) is not None:
            output.say(Text(f"  {delivery.n}: {_patience(since, story.message)}", style="yellow"))
    if (held := story.waiting) is not None:
        whose = "its tenant" if held.waits_for == "tenant_rate" else "the provider"
        said = f"  waits for the rate limit of {whose} ({held.limit:,} per {held.period}); expected to leave "
        output.say(Text(said + output.ahead(held.expected_at), style="yellow"))


def _patience(since: datetime, message: MessageRecord) -> str:
    """Since when a delivery found no provider, and when that ends it."""
    told = f"no provider of its route can be used since {output.when(since)}"
    if message.expires_at is not None:
        return f"{told}; it expires {output.ahead(message.expires_at)}"
    if message.max_wait is None:
        return f"{told}; its class lets it wait for ever"
    return f"{told}; it fails after {output.span(message.max_wait.total_seconds())} without one (max_wait of its class)"


def _next(one: DeliveryRecord) -> str:
    if one.state == State.PROCESSING:
        return "in flight"
    return output.ahead(one.next_attempt_at) if one.state in WAITING else ""


def _tell_text(text: str) -> None:
    lines = output.clean_lines(text[: PREVIEW * 500]).split("\n")
    output.say(Text("\nText", style="bold"))
    for line in lines[:PREVIEW]:
        output.say(Text(f"  {line}"))
    if len(lines) > PREVIEW:
        output.say(Text("  … (--raw shows the whole mail)", style="dim"))


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One thing that happened, with lines below it."""

    at: datetime
    what: Text
    below: tuple[Text, ...] = ()


def moments(story: MessageDetails) -> Iterator[HistoryEntry]:
    """Everything that happened: accepted, attempts, events, and each state that a delivery went through."""
    yield HistoryEntry(story.message.created_at, Text("accepted"))
    grouped = groupby(story.attempts, key=lambda one: (one.claim, one.step))
    for number, (_, rows) in enumerate(grouped, 1):
        yield _attempt(number, list(rows))
    for event in story.events:
        about = "" if event.n is None else f" (delivery {event.n})"
        data = " ".join(f"{key}={value}" for key, value in event.data.items())
        yield HistoryEntry(event.at, Text(output.clean(f"{event.kind}{about} {data}".rstrip())))
    for one in story.deliveries:
        yield from _states(story, one)


def _states(story: MessageDetails, one: DeliveryRecord) -> Iterator[HistoryEntry]:
    """The states of a delivery after the first; not those that an attempt or an event of the same name tells."""
    told = {event.kind for event in story.events if event.n == one.n}
    for state in history(story, one)[1:]:
        about = f" (delivery {one.n})"
        if state.state is State.PROCESSING:
            if one.state == State.PROCESSING and state.at == one.claimed_at:
                yield HistoryEntry(
                    state.at, Text(f"claimed by worker {one.worker}{about}, in flight")
                )
        elif state.state not in told:
            why = f" {state.reason}" if state.reason else ""
            yield HistoryEntry(
                state.at, Text.assemble(output.styled(state.state), output.clean(f"{why}{about}"))
            )


def _attempt(number: int, rows: list[AttemptRecord]) -> HistoryEntry:
    first = rows[0]
    took = output.span((first.ended_at - first.started_at).total_seconds())
    via = f" via {provider_name(first)}" if first.provider else ""
    by = f" by worker {first.worker}" if first.worker else ""
    below = [_outcome(row) for row in rows]
    if first.conversation:
        below += [
            Text(f"  {line}", style="dim")
            for line in output.clean_lines(first.conversation).split("\n")
        ]
    return HistoryEntry(
        first.started_at, Text(output.clean(f"attempt {number}{via}{by}, {took}")), tuple(below)
    )


def _outcome(row: AttemptRecord) -> Text:
    words = [row.reason, str(row.code) if row.code else None, row.reply]
    said = " ".join(output.clean(word) for word in words if word)
    return Text.assemble(f"{row.n}: ", output.styled(row.verdict), f" {said}")
