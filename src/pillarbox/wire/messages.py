"""Messages, their deliveries and what happened to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pillarbox.wire.fields import OneOf, RoleName, StateName, VerdictName, about, absent, named

MASKED_SUBJECT = "`****` when the class is secret."
NEXT_CURSOR = "Give it as `cursor` for the next page; null at the end."
NEXT = "The address of the next page; null at the end."
FirstState = Annotated[str, OneOf(Literal["queued", "pending"])]


@dataclass(frozen=True, slots=True)
class AcceptedDelivery:
    """One recipient of an accepted message."""

    id: str = field(metadata=about("The message's id, a dot, and the recipient's number."))
    recipient: str
    role: RoleName
    state: FirstState


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was accepted: it is committed, and will be delivered or visibly fail."""

    id: UUID
    deliveries: Sequence[AcceptedDelivery]


@dataclass(frozen=True, slots=True)
class DeliverySummary:
    """One recipient of a message, in short."""

    id: str
    recipient: str
    role: RoleName
    state: StateName
    reason: str | None
    provider: str | None
    next_attempt_at: datetime | None


@dataclass(frozen=True, slots=True)
class MessageSummary:
    """A message in a listing."""

    id: UUID
    created_at: datetime
    sender: str = field(metadata=named("from"))
    subject: str = field(metadata=about(MASKED_SUBJECT))
    class_: str = field(metadata=named("class"))
    kind: str | None
    priority: str
    tags: Sequence[str]
    deliveries: Sequence[DeliverySummary]


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages, newest first. With filters a page can be short before the end: go on while there is a `next`."""

    messages: Sequence[MessageSummary]
    next_cursor: str | None = field(metadata=about(NEXT_CURSOR))
    next: str | None = field(metadata=about(NEXT))


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """One try at a delivery, in short. Texts are redacted."""

    number: int = field(
        metadata=about(
            "1 for the first of those still known. One that fails over is followed by another."
        )
    )
    started_at: datetime
    ended_at: datetime
    provider: str | None
    verdict: VerdictName
    reason: str | None
    code: int | None = field(metadata=about("The status code of the provider's answer."))
    reply: str | None = field(metadata=about("The provider's words, redacted."))


@dataclass(frozen=True, slots=True)
class Attempt(AttemptSummary):
    """One try at a delivery. Texts are redacted."""

    provider_message_id: str | None
    conversation: str | None = field(
        metadata=about("What was said, redacted; not of those plainly accepted.")
    )


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry schedule that a delivery follows."""

    policy: str | None = field(metadata=about("null: the provider's, which is not chosen yet."))
    max_attempts: int | None
    then_after_seconds: Sequence[float] = field(
        metadata=about("Waits after the next attempt, should it and the following be deferred.")
    )


@dataclass(frozen=True, slots=True)
class Transition:
    """A state that a delivery entered."""

    at: datetime
    state: StateName
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One recipient of a message, and what became of it."""

    id: str
    recipient: str
    role: RoleName
    state: StateName
    reason: str | None
    attempts_made: int
    next_attempt_at: datetime | None
    waits_for: str | None = field(
        default=None,
        metadata=about(
            "What holds it back: `provider` (none can be used), `tenant_rate` or `provider_rate`."
        ),
    )
    expected_at: datetime | None = field(
        default=None, metadata=about("When that wait is expected to end.")
    )
    settled_at: datetime | None
    provider: str | None
    retry: Retry
    attempts: Sequence[Attempt]
    history: Sequence[Transition] = field(
        metadata={
            **about("Every state since the message was accepted, in order, with its time."),
            **absent(()),  # before 0.2
        }
    )


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a message, or to one of its deliveries."""

    at: datetime
    delivery: str | None = field(metadata=about("The delivery's id; null: the whole message."))
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FullMessage:
    """A message's whole story, as far as retention left it."""

    id: UUID
    created_at: datetime
    sender: str = field(metadata=named("from"))
    to: Sequence[str]
    cc: Sequence[str]
    reply_to: Sequence[str]
    subject: str = field(metadata=about(MASKED_SUBJECT))
    headers: Mapping[str, Any]
    class_: str = field(metadata=named("class"))
    secret: bool = field(
        metadata=about("Whether its class is: bodies and subject are never shown.")
    )
    kind: str | None
    priority: str
    tags: Sequence[str]
    metadata: Mapping[str, Any]
    size: int = field(metadata=about("Octets when it is sent, roughly."))
    send_at: datetime | None
    expires_at: datetime | None
    max_attempts: int | None
    idempotency_key: str | None
    content: Mapping[str, int] | None = field(
        metadata=about(
            "Octets of text, html and raw, number of attachments; null when it was dropped."
        )
    )
    deliveries: Sequence[Delivery]
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class ChangedDelivery:
    """A delivery after a change that was asked for, and whether it is one of those changed."""

    id: str
    recipient: str
    role: RoleName
    state: StateName
    changed: bool
    next_attempt_at: datetime | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What came of a change: at least one delivery was changed. Those in flight or finished were not."""

    id: UUID
    deliveries: Sequence[ChangedDelivery]
