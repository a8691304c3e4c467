"""A Delivery: message × recipient, its states, and the next state after an outcome."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal
from uuid import UUID

from pillarbox.model.outcome import Outcome, Reason, Verdict
from pillarbox.model.retry import RetryPolicy

Role = Literal["to", "cc", "bcc"]
ROLES: dict[str, Role] = {"t": "to", "c": "cc", "b": "bcc"}  # by the letter at rest
LANES = ("urgent", "normal", "bulk")  # by the number at rest


class State(StrEnum):
    PENDING = "pending"
    QUEUED = "queued"
    PROCESSING = "processing"
    SENT = "sent"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HELD = "held"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    COMPLAINED = "complained"


FINISHED = frozenset(
    {State.SENT, State.FAILED, State.CANCELLED, State.DELIVERED, State.BOUNCED, State.COMPLAINED}
)


class Unknown(StrEnum):
    """What a class does after an attempt with an unknown outcome."""

    RESEND = "resend"
    HOLD = "hold"
    WAIT = "wait"  # for feedback, a while; then resend


# Both parts in exactly the form that `delivery_id` writes: an id has one spelling.
_delivery_id = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.(0|[1-9][0-9]{0,4})"
).fullmatch


def delivery_id(message_id: UUID, recipient_number: int) -> str:
    """The public id of a delivery: the message's id and the recipient's number."""
    return f"{message_id}.{recipient_number}"


def parse_delivery_id(text: str) -> tuple[UUID, int]:
    """Message id and recipient number of a public id; ValueError for any other text."""
    found = _delivery_id(text)
    if found is None:
        raise ValueError("a delivery's id is the id of its message, a dot and a number")
    return UUID(found[1]), int(found[2])


@dataclass(frozen=True, slots=True)
class MessageClass:
    """A named set of policies that a message carries."""

    name: str
    retry: RetryPolicy | None = None
    unknown: Unknown = Unknown.RESEND
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The next state of a delivery after an attempt. With a delay it is queued again."""

    state: State
    reason: Reason | None = None
    delay: float | None = None


_SENT = Decision(State.SENT)
# Seconds for a provider's feedback about a mail whose answer was lost: most arrives in minutes.
FEEDBACK_WAIT = 900.0


def decide(
    outcome: Outcome,
    attempts: int,
    policy: RetryPolicy,
    unknown: Unknown,
    limit: int | None,
    chance: float,
) -> Decision:
    """The next state of a delivery whose attempt number `attempts` had this outcome.

    `limit` is the message's own max_attempts, `chance` a random number in [0, 1) for the jitter.
    """
    if outcome.verdict is Verdict.ACCEPTED:
        return _SENT
    if outcome.verdict is Verdict.REJECTED:
        return Decision(State.FAILED, outcome.reason)
    if outcome.verdict is Verdict.UNKNOWN and unknown is Unknown.HOLD:
        return Decision(State.HELD, outcome.reason)
    delay = policy.delay(attempts, limit, chance, outcome.retry_after)
    if delay is None:
        return Decision(State.FAILED, outcome.reason)
    if outcome.verdict is Verdict.UNKNOWN and unknown is Unknown.WAIT:
        delay = max(delay, FEEDBACK_WAIT)
    return Decision(State.QUEUED, outcome.reason, delay)
