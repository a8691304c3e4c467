"""Messages as a tenant sees them: its own recipients, reasons and redacted texts; nothing of ours, nothing secret."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from pillarbox.model.delivery import Role, State, delivery_id
from pillarbox.model.outcome import Verdict
from pillarbox.model.retry import POLICIES
from pillarbox.model.secret import MASK
from pillarbox.store.history import history
from pillarbox.store.message_pages import DeliveryOverview, MessageOverview
from pillarbox.store.messages import (
    WAITING,
    AttemptRecord,
    DeliveryRecord,
    MessageDetails,
    MessageRecord,
    policy_of,
    remaining,
)

# What events may tell a tenant. Numbers of claims and workers would tell how much the others send.
TOLD = frozenset({
    "who", "name", "as", "reason", "send_at", "message", "via", "provider", "from", "to", "code", "hard", "text",
    "waited_seconds",
})  # fmt: skip


class ResponseModel(BaseModel):
    """What we answer with; by the names of the API."""

    model_config = ConfigDict(populate_by_name=True)


class DeliverySummary(ResponseModel):
    """One recipient of a message, in short."""

    id: str
    recipient: str
    role: Role
    state: State
    reason: str | None
    provider: str | None
    next_attempt_at: datetime | None


class MessageSummary(ResponseModel):
    """A message in a listing."""

    id: UUID
    created_at: datetime
    sender: Annotated[str, Field(alias="from")]
    subject: Annotated[str, Field(description="`****` when the class is secret.")]
    class_: Annotated[str, Field(alias="class")]
    kind: str | None
    priority: str
    tags: list[str]
    deliveries: list[DeliverySummary]


class MessagePage(ResponseModel):
    """Messages, newest first. With filters a page can be short before the end: go on while there is a `next`."""

    messages: list[MessageSummary]
    next_cursor: Annotated[
        str | None, Field(description="Give it as `cursor` for the next page; null at the end.")
    ]
    next: Annotated[str | None, Field(description="The address of the next page; null at the end.")]


class AttemptSummary(ResponseModel):
    """One try at a delivery, in short. Texts are redacted."""

    number: Annotated[
        int,
        Field(
            description="1 for the first of those still known. One that fails over is followed by another."
        ),
    ]
    started_at: datetime
    ended_at: datetime
    provider: str | None
    verdict: Verdict
    reason: str | None
    code: Annotated[int | None, Field(description="The status code of the provider's answer.")]
    reply: Annotated[str | None, Field(description="The provider's words, redacted.")]


class Attempt(AttemptSummary):
    """One try at a delivery. Texts are redacted."""

    provider_message_id: str | None
    conversation: Annotated[
        str | None, Field(description="What was said, redacted; not of those plainly accepted.")
    ]


class Retry(ResponseModel):
    """The retry schedule that a delivery follows."""

    policy: Annotated[
        str | None, Field(description="null: the provider's, which is not chosen yet.")
    ]
    max_attempts: int | None
    then_after_seconds: Annotated[
        list[float],
        Field(description="Waits after the next attempt, should it and the following be deferred."),
    ]


class Transition(ResponseModel):
    """A state that a delivery entered."""

    at: datetime
    state: State
    reason: str | None


class Delivery(ResponseModel):
    """One recipient of a message, and what became of it."""

    id: str
    recipient: str
    role: Role
    state: State
    reason: str | None
    attempts_made: int
    next_attempt_at: datetime | None
    waits_for: Annotated[
        str | None,
        Field(
            description="What holds it back: `provider` (none can be used), `tenant_rate` or `provider_rate`."
        ),
    ] = None
    expected_at: Annotated[
        datetime | None, Field(description="When that wait is expected to end.")
    ] = None
    settled_at: datetime | None
    provider: str | None
    retry: Retry
    attempts: list[Attempt]
    history: Annotated[
        list[Transition],
        Field(description="Every state since the message was accepted, in order, with its time."),
    ]


class Event(ResponseModel):
    """Something that happened to a message, or to one of its deliveries."""

    at: datetime
    delivery: Annotated[
        str | None, Field(description="The delivery's id; null: the whole message.")
    ]
    kind: str
    data: dict[str, Any]


class Message(ResponseModel):
    """A message's whole story, as far as retention left it."""

    id: UUID
    created_at: datetime
    sender: Annotated[str, Field(alias="from")]
    to: list[str]
    cc: list[str]
    reply_to: list[str]
    subject: Annotated[str, Field(description="`****` when the class is secret.")]
    headers: dict[str, Any]
    class_: Annotated[str, Field(alias="class")]
    secret: Annotated[
        bool, Field(description="Whether its class is: bodies and subject are never shown.")
    ]
    kind: str | None
    priority: str
    tags: list[str]
    metadata: dict[str, Any]
    size: Annotated[int, Field(description="Octets when it is sent, roughly.")]
    send_at: datetime | None
    expires_at: datetime | None
    max_attempts: int | None
    idempotency_key: str | None
    content: Annotated[
        dict[str, int] | None,
        Field(
            description="Octets of text, html and raw, number of attachments; null when it was dropped."
        ),
    ]
    deliveries: list[Delivery]
    events: list[Event]


class Changed(ResponseModel):
    """A delivery after a change that was asked for, and whether it is one of those changed."""

    id: str
    recipient: str
    role: Role
    state: State
    changed: bool
    next_attempt_at: datetime | None


class Changes(ResponseModel):
    """What came of a change: at least one delivery was changed. Those in flight or finished were not."""

    id: UUID
    deliveries: list[Changed]


def summary(one: MessageOverview) -> MessageSummary:
    return MessageSummary(
        id=one.id,
        created_at=one.created_at,
        sender=one.sender,
        subject=MASK if one.secret else one.subject,
        class_=one.class_name,
        kind=one.kind,
        priority=one.priority,
        tags=list(one.tags),
        deliveries=[_leg(one.id, leg) for leg in one.deliveries],
    )


def _leg(message_id: UUID, leg: DeliveryOverview) -> DeliverySummary:
    return DeliverySummary(
        id=delivery_id(message_id, leg.n),
        recipient=leg.recipient,
        role=leg.role,
        state=State(leg.state),
        reason=leg.reason,
        provider=leg.provider,
        next_attempt_at=leg.next_attempt_at,
    )


def story(told: MessageDetails) -> Message:
    """The whole story of a message."""
    one = told.message
    return Message(
        id=one.id, created_at=one.created_at, sender=one.sender, to=list(one.to), cc=list(one.cc),
        reply_to=list(one.reply_to), subject=MASK if one.secret else one.subject, headers=dict(one.headers),
        class_=one.class_name, secret=one.secret, kind=one.kind, priority=one.priority, tags=list(one.tags),
        metadata=one.metadata, size=one.size, send_at=one.send_at, expires_at=one.expires_at,
        max_attempts=one.max_attempts, idempotency_key=one.idempotency_key, content=one.content,
        deliveries=[_delivery(told, delivery) for delivery in told.deliveries], events=list(_events(told)),
    )  # fmt: skip


def _delivery(told: MessageDetails, one: DeliveryRecord) -> Delivery:
    envelope = told.message
    waits_for, expected_at = _wait_of(told, one)
    return Delivery(
        id=delivery_id(envelope.id, one.n),
        recipient=one.recipient,
        role=one.role,
        state=State(one.state),
        reason=one.reason,
        attempts_made=one.attempts,
        next_attempt_at=next_attempt(one),
        waits_for=waits_for,
        expected_at=expected_at,
        settled_at=one.settled_at,
        provider=one.provider,
        retry=_retry(one, envelope),
        attempts=list(_attempts([row for row in told.attempts if row.n == one.n])),
        history=[
            Transition(at=each.at, state=each.state, reason=each.reason)
            for each in history(told, one)
        ],
    )


def _wait_of(told: MessageDetails, one: DeliveryRecord) -> tuple[str | None, datetime | None]:
    """What holds a delivery back, and when that is expected to end."""
    if told.waits_for_provider(one) is not None:
        return "provider", None
    if told.waiting is not None and one.state == State.QUEUED:
        return told.waiting.waits_for, told.waiting.expected_at
    return None, None


def next_attempt(one: DeliveryRecord) -> datetime | None:
    return one.next_attempt_at if one.state in WAITING else None


def _retry(one: DeliveryRecord, envelope: MessageRecord) -> Retry:
    policy = policy_of(one, envelope)
    limit = envelope.max_attempts or (POLICIES[policy].max_attempts if policy in POLICIES else None)
    return Retry(policy=policy, max_attempts=limit, then_after_seconds=remaining(one, envelope))


def _attempts(rows: list[AttemptRecord]) -> Iterator[Attempt]:
    for number, row in enumerate(rows, 1):
        yield Attempt(
            number=number,
            started_at=row.started_at,
            ended_at=row.ended_at,
            provider=row.provider,
            verdict=Verdict(row.verdict),
            reason=row.reason,
            code=row.code,
            reply=row.reply,
            provider_message_id=row.provider_message_id,
            conversation=row.conversation,
        )


def _events(told: MessageDetails) -> Iterator[Event]:
    for one in told.events:
        about = None if one.n is None else delivery_id(told.message.id, one.n)
        data = {key: value for key, value in one.data.items() if key in TOLD}
        yield Event(at=one.at, delivery=about, kind=one.kind, data=data)
