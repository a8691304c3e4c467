"""Messages, their deliveries and what happened to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pillarbox.wire.fields import OneOf, RoleName, StateName, VerdictName, about, absent, named

MASKED_SUBJECT = "`****` when the class is secret."
NEXT_CURSOR = "The value of `cursor` for the next page; null at the end."
NEXT = "The URL path of the next page; null at the end."
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
    """An accepted message. It is committed: it will be delivered, or fail with a reason."""

    id: UUID
    deliveries: Sequence[AcceptedDelivery]


@dataclass(frozen=True, slots=True)
class DeliverySummary:
    """A summary of one recipient's delivery."""

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
    """Messages, newest first.

    With filters a page can be short before the end: continue while there is a `next`.
    """

    messages: Sequence[MessageSummary]
    next_cursor: str | None = field(metadata=about(NEXT_CURSOR))
    next: str | None = field(metadata=about(NEXT))


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """A summary of one attempt at a delivery. Texts are redacted."""

    number: int = field(
        metadata=about("1 for the oldest attempt on record. A failover is an attempt of its own.")
    )
    started_at: datetime
    ended_at: datetime
    provider: str | None
    verdict: VerdictName
    reason: str | None
    code: int | None = field(metadata=about("The status code of the provider's reply."))
    reply: str | None = field(metadata=about("The text of the provider's reply, redacted."))


@dataclass(frozen=True, slots=True)
class Attempt(AttemptSummary):
    """One attempt at a delivery. Texts are redacted."""

    provider_message_id: str | None
    conversation: str | None = field(
        metadata=about("The transcript, redacted; null if the mail was accepted at once.")
    )


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry schedule that a delivery follows."""

    policy: str | None = field(
        metadata=about("Null: that of the provider, which is not chosen yet.")
    )
    max_attempts: int | None
    then_after_seconds: Sequence[float] = field(
        metadata=about("The waits between the remaining attempts, if each of them is deferred.")
    )


@dataclass(frozen=True, slots=True)
class Transition:
    """A state that a delivery entered."""

    at: datetime
    state: StateName
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The delivery of a message to one recipient."""

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
            "Why it waits: `provider` (no provider is usable), `tenant_rate` or `provider_rate`."
        ),
    )
    expected_at: datetime | None = field(
        default=None, metadata=about("When this wait is expected to end.")
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
    """An event of a message, or of one of its deliveries."""

    at: datetime
    delivery: str | None = field(
        metadata=about("The id of the delivery; null: the event concerns the whole message.")
    )
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FullMessage:
    """A message with its deliveries, attempts and events, as far as retention kept them."""

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
        metadata=about("Whether its class is secret: then the subject and the bodies are masked.")
    )
    kind: str | None
    priority: str
    tags: Sequence[str]
    metadata: Mapping[str, Any]
    size: int = field(metadata=about("The approximate size in bytes when it is sent."))
    send_at: datetime | None
    expires_at: datetime | None
    max_attempts: int | None
    idempotency_key: str | None
    content: Mapping[str, int] | None = field(
        metadata=about(
            "Bytes of `text`, `html` and `raw`, number of `attachments`; null when it was deleted."
        )
    )
    deliveries: Sequence[Delivery]
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class ChangedDelivery:
    """A delivery after a requested change, and whether it was changed."""

    id: str
    recipient: str
    role: RoleName
    state: StateName
    changed: bool
    next_attempt_at: datetime | None


@dataclass(frozen=True, slots=True)
class Changes:
    """The result of a change: at least one delivery was changed.

    Deliveries in flight and finished deliveries are not changed.
    """

    id: UUID
    deliveries: Sequence[ChangedDelivery]
