"""The state transitions of a delivery with their times, derived from attempts and events.

No row is written for a transition: a mail that is delivered at once has its message, its delivery
and one attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

from pillarbox.model.delivery import State, Unknown
from pillarbox.model.outcome import Verdict
from pillarbox.wire.messages import Transition

if TYPE_CHECKING:
    from pillarbox.store.messages import AttemptRecord, DeliveryRecord, EventRecord, MessageDetails

# The states that operations and maintenance tasks lead to.
BY_EVENT = {
    "retried": State.QUEUED,
    "reprocessed": State.QUEUED,
    "cancelled": State.CANCELLED,
    "discarded": State.CANCELLED,
    "gave_up": State.FAILED,
}
BY_RELEASE = {"resend": State.QUEUED, "sent": State.SENT, "failed": State.FAILED}
# The states that feedback leads to, and their ranks: a lower rank never replaces a higher one. The
# same as in store/schema/feedback.sql.
BY_FEEDBACK = {
    "delivered": State.DELIVERED,
    "bounced": State.BOUNCED,
    "dropped": State.BOUNCED,
    "complained": State.COMPLAINED,
}
RANKS = {State.SENT: 0, State.DELIVERED: 1, State.BOUNCED: 2, State.COMPLAINED: 3}
# Events that only follow a failed delivery, or a held one: they show how the attempt before ended.
AFTER_FAILURE = frozenset({"retried", "reprocessed", "discarded"})
AFTER_HOLDING = frozenset({"released"})


@dataclass(frozen=True, slots=True)
class _Step:
    """A possible change of the state: the end of a claim's last attempt, or an event."""

    at: datetime
    attempt: AttemptRecord | None = None
    event: EventRecord | None = None


def history(details: MessageDetails, delivery: DeliveryRecord) -> list[Transition]:
    """Every state of a delivery since acceptance, as far as retention left attempts and events."""
    found = _accepted(details)
    steps = _steps(details, delivery.n)
    holds = details.message.unknown == Unknown.HOLD
    for step, following in zip_longest(steps, steps[1:]):
        if step.attempt is not None:
            _begin(found, details, step.attempt)
            state = _ended(step.attempt, following, delivery, holds)
            found.append(Transition(step.at, state, step.attempt.reason))
        elif step.event is not None:
            found += _by_event(State(found[-1].state), step.event)
    found += _now(found[-1], delivery)
    return list(_in_order(found))


def _accepted(details: MessageDetails) -> list[Transition]:
    message = details.message
    state = State.QUEUED
    if message.send_at is not None and message.send_at > message.created_at:
        state = State.PENDING
    return [Transition(message.created_at, state, None)]


def _steps(details: MessageDetails, recipient_number: int) -> list[_Step]:
    """Attempts and events in the order in which they happened."""
    # Of each claim the last attempt: earlier ones failed over.
    last = {attempt.claim: attempt for attempt in details.attempts if attempt.n == recipient_number}
    steps = [_Step(attempt.ended_at, attempt=attempt) for attempt in last.values()]
    may_have_left = [
        attempt.ended_at
        for attempt in last.values()
        if attempt.verdict in (Verdict.ACCEPTED, Verdict.UNKNOWN)
    ]
    left_at = min(may_have_left, default=None)
    for event in details.events:
        if event.n not in (None, recipient_number):
            continue
        at = event.at
        # Clocks of providers differ, and some report whole seconds: nothing is delivered before it
        # left.
        if event.kind in BY_FEEDBACK and left_at is not None:
            at = max(at, left_at)
        steps.append(_Step(at, event=event))
    return sorted(steps, key=lambda step: step.at)


def _begin(found: list[Transition], details: MessageDetails, attempt: AttemptRecord) -> None:
    """Before an attempt a delivery is queued, then processing from the first attempt of a claim."""
    began = min(
        other.started_at
        for other in details.attempts
        if (other.claim, other.n) == (attempt.claim, attempt.n)
    )
    if found[-1].state == State.PENDING:
        due = details.message.send_at or began
        found.append(Transition(min(max(due, found[-1].at), began), State.QUEUED, None))
    found.append(Transition(began, State.PROCESSING, None))


def _ended(
    attempt: AttemptRecord, following: _Step | None, delivery: DeliveryRecord, holds: bool
) -> State:
    """The state after an attempt; whether a deferred attempt was the last shows what follows.

    `holds`: the class holds deliveries after an attempt with an unknown outcome.
    """
    if attempt.verdict == Verdict.ACCEPTED:
        return State.SENT
    if attempt.verdict == Verdict.REJECTED:
        return State.FAILED
    if following is None:
        if delivery.state in (State.FAILED, State.HELD):
            return State(delivery.state)
        return State.QUEUED
    kind = following.event.kind if following.event else None
    if kind in AFTER_FAILURE:
        return State.FAILED
    held = kind in AFTER_HOLDING or (holds and attempt.verdict == Verdict.UNKNOWN)
    return State.HELD if held else State.QUEUED


def _by_event(state: State, event: EventRecord) -> Iterator[Transition]:
    """The transition that an event caused, if it changed the state."""
    new_state = BY_EVENT.get(event.kind)
    if event.kind == "released":
        new_state = BY_RELEASE.get(str(event.data.get("as")))
    elif event.kind == "rescheduled":
        new_state = _rescheduled(event)
    elif event.kind in BY_FEEDBACK:
        reported = BY_FEEDBACK[event.kind]
        if RANKS.get(state, -1) < RANKS[reported]:
            new_state = reported
    if new_state is None or new_state is state:
        return
    reason = None
    if new_state in (State.FAILED, State.BOUNCED):
        reason = event.data.get("reason")
    yield Transition(event.at, new_state, reason)


def _rescheduled(event: EventRecord) -> State:
    try:
        send_at = datetime.fromisoformat(str(event.data.get("send_at")))
    except ValueError:
        return State.PENDING
    if send_at.replace(tzinfo=send_at.tzinfo or UTC) > event.at:
        return State.PENDING
    return State.QUEUED


def _now(last: Transition, delivery: DeliveryRecord) -> Iterator[Transition]:
    """The current state, if no attempt or event shows it: a claim, a wait, a time that has come."""
    state = State(delivery.state)
    if state == last.state:
        return
    times: Sequence[datetime | None] = (delivery.settled_at, delivery.next_attempt_at)
    reason = delivery.reason
    if state is State.PROCESSING:
        times = (delivery.claimed_at,)
        reason = None
    elif state is State.PENDING:
        times = (delivery.waiting_since, delivery.claimed_at)
    at = next((time for time in times if time is not None), last.at)
    yield Transition(max(at, last.at), state, reason)


def _in_order(found: Sequence[Transition]) -> Iterator[Transition]:
    """The transitions with times that never go back, which times of providers may do."""
    latest = found[0].at
    for transition in found:
        latest = max(latest, transition.at)
        yield Transition(latest, transition.state, transition.reason)
