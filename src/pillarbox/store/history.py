"""The states that a delivery went through, in order and each with its own time: read from attempts and events.

No row is written for a transition: a plainly delivered mail has its message, its delivery and one
attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pillarbox.model.delivery import State, Unknown
from pillarbox.model.outcome import Verdict
from pillarbox.wire.messages import Transition

if TYPE_CHECKING:
    from pillarbox.store.messages import AttemptRecord, DeliveryRecord, EventRecord, MessageDetails

# What events of people and chores make of a delivery.
BY_EVENT = {
    "retried": State.QUEUED,
    "reprocessed": State.QUEUED,
    "cancelled": State.CANCELLED,
    "discarded": State.CANCELLED,
    "gave_up": State.FAILED,
}
BY_RELEASE = {"resend": State.QUEUED, "sent": State.SENT, "failed": State.FAILED}
# What feedback makes of it, and how far that is: a higher one is never undone by a lower one.
BY_FEEDBACK = {
    "delivered": State.DELIVERED,
    "bounced": State.BOUNCED,
    "dropped": State.BOUNCED,
    "complained": State.COMPLAINED,
}
RANKS = {State.SENT: 0, State.DELIVERED: 1, State.BOUNCED: 2, State.COMPLAINED: 3}
# Events that only a failed delivery has, and a held one: they tell how the attempt before them had
# ended.
AFTER_FAILURE = frozenset({"retried", "reprocessed", "discarded"})
AFTER_HOLDING = frozenset({"released"})


@dataclass(frozen=True, slots=True)
class _Step:
    """Something that may change the state: the end of a claim's last attempt, or an event."""

    at: datetime
    attempt: AttemptRecord | None = None
    event: EventRecord | None = None


def history(story: MessageDetails, delivery: DeliveryRecord) -> list[Transition]:
    """Every state of a delivery since its message was accepted, as far as retention left what tells of it."""
    found = _accepted(story)
    steps = _steps(story, delivery.n)
    for index, step in enumerate(steps):
        following = steps[index + 1] if index + 1 < len(steps) else None
        if step.attempt is not None:
            _begin(found, story, step.attempt)
            holds = story.message.unknown == Unknown.HOLD
            found.append(
                Transition(
                    step.at, _ended(step.attempt, following, delivery, holds), step.attempt.reason
                )
            )
        elif step.event is not None:
            found += _told(State(found[-1].state), step.event)
    found += _now(found[-1], delivery)
    return list(_in_order(found))


def _accepted(story: MessageDetails) -> list[Transition]:
    message = story.message
    scheduled = message.send_at is not None and message.send_at > message.created_at
    return [Transition(message.created_at, State.PENDING if scheduled else State.QUEUED, None)]


def _steps(story: MessageDetails, n: int) -> list[_Step]:
    """Attempts and events in the order in which they happened."""
    last = {
        one.claim: one for one in story.attempts if one.n == n
    }  # of each claim: the earlier ones failed over
    steps = [_Step(one.ended_at, attempt=one) for one in last.values()]
    may_have_left = [
        one.ended_at for one in last.values() if one.verdict in (Verdict.ACCEPTED, Verdict.UNKNOWN)
    ]
    left = min(may_have_left, default=None)
    for event in story.events:
        if event.n in (None, n):
            # Providers' clocks differ from ours, and some tell whole seconds: nothing is delivered
            # before it left.
            late = event.kind in BY_FEEDBACK and left is not None and event.at < left
            steps.append(_Step(left if late and left else event.at, event=event))
    return sorted(steps, key=lambda step: step.at)


def _begin(found: list[Transition], story: MessageDetails, attempt: AttemptRecord) -> None:
    """Before an attempt a delivery is queued, then processing: from the first of several that failed over on."""
    began = min(
        one.started_at for one in story.attempts if (one.claim, one.n) == (attempt.claim, attempt.n)
    )
    if found[-1].state == State.PENDING:
        due = story.message.send_at or began
        found.append(Transition(min(max(due, found[-1].at), began), State.QUEUED, None))
    found.append(Transition(began, State.PROCESSING, None))


def _ended(
    attempt: AttemptRecord, following: _Step | None, delivery: DeliveryRecord, holds: bool
) -> State:
    """What an attempt made of a delivery; whether a deferred one was the last, only what follows tells.

    `holds`: the class holds deliveries after an attempt whose end is unknown.
    """
    if attempt.verdict == Verdict.ACCEPTED:
        return State.SENT
    if attempt.verdict == Verdict.REJECTED:
        return State.FAILED
    if following is None:
        return (
            State(delivery.state) if delivery.state in (State.FAILED, State.HELD) else State.QUEUED
        )
    kind = following.event.kind if following.event else None
    if kind in AFTER_FAILURE:
        return State.FAILED
    held = kind in AFTER_HOLDING or (holds and attempt.verdict == Verdict.UNKNOWN)
    return State.HELD if held else State.QUEUED


def _told(state: State, event: EventRecord) -> Iterator[Transition]:
    """What an event made of a delivery, if it changed its state."""
    to = BY_EVENT.get(event.kind)
    if event.kind == "released":
        to = BY_RELEASE.get(str(event.data.get("as")))
    elif event.kind == "rescheduled":
        to = _rescheduled(event)
    elif event.kind in BY_FEEDBACK and RANKS.get(state, -1) < RANKS[BY_FEEDBACK[event.kind]]:
        to = BY_FEEDBACK[event.kind]
    if to is not None and to is not state:
        reason = event.data.get("reason") if to in (State.FAILED, State.BOUNCED) else None
        yield Transition(event.at, to, reason)


def _rescheduled(event: EventRecord) -> State:
    try:
        send_at = datetime.fromisoformat(str(event.data.get("send_at")))
    except ValueError:
        return State.PENDING
    return (
        State.PENDING if send_at.replace(tzinfo=send_at.tzinfo or UTC) > event.at else State.QUEUED
    )


def _now(last: Transition, delivery: DeliveryRecord) -> Iterator[Transition]:
    """The present state, where nothing else tells of it: a claim, a wait for a provider, a time that has come."""
    state = State(delivery.state)
    if state == last.state:
        return
    times: Sequence[datetime | None] = (delivery.settled_at, delivery.next_attempt_at)
    if state is State.PROCESSING:
        times = (delivery.claimed_at,)
    elif state is State.PENDING:
        times = (delivery.waiting_since, delivery.claimed_at)
    at = next((one for one in times if one is not None), last.at)
    yield Transition(
        max(at, last.at), state, delivery.reason if state is not State.PROCESSING else None
    )


def _in_order(found: Sequence[Transition]) -> Iterator[Transition]:
    """Times that never go back: those of providers may."""
    latest = found[0].at
    for one in found:
        latest = max(latest, one.at)
        yield Transition(latest, one.state, one.reason)
