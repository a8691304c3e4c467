"""From the rows of the store to the records of the API: what a tenant may see of its messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from uuid import UUID

from pillarbox.model.delivery import State, delivery_id
from pillarbox.model.retry import POLICIES
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
from pillarbox.wire.messages import (
    Attempt,
    Delivery,
    DeliverySummary,
    Event,
    FullMessage,
    MessageSummary,
    Retry,
)

# What events may tell a tenant. Numbers of claims and workers would tell how much the others send.
EVENT_DATA = frozenset(
    {
        "who",
        "name",
        "as",
        "reason",
        "send_at",
        "message",
        "via",
        "provider",
        "from",
        "to",
        "code",
        "hard",
        "text",
        "waited_seconds",
    }
)


def message_summary(message: MessageOverview) -> MessageSummary:
    return MessageSummary(
        id=message.id,
        created_at=message.created_at,
        sender=message.sender,
        subject=message.subject,
        class_=message.class_name,
        kind=message.kind,
        priority=message.priority,
        tags=message.tags,
        deliveries=[_delivery_summary(message.id, each) for each in message.deliveries],
    )


def _delivery_summary(message_id: UUID, delivery: DeliveryOverview) -> DeliverySummary:
    return DeliverySummary(
        id=delivery_id(message_id, delivery.n),
        recipient=delivery.recipient,
        role=delivery.role,
        state=delivery.state,
        reason=delivery.reason,
        provider=delivery.provider,
        next_attempt_at=delivery.next_attempt_at,
    )


def full_message(details: MessageDetails) -> FullMessage:
    """A message with its deliveries, their attempts and its events."""
    message = details.message
    return FullMessage(
        id=message.id,
        created_at=message.created_at,
        sender=message.sender,
        to=message.to,
        cc=message.cc,
        reply_to=message.reply_to,
        subject=message.subject,
        headers=message.headers,
        class_=message.class_name,
        secret=message.secret,
        kind=message.kind,
        priority=message.priority,
        tags=message.tags,
        metadata=message.metadata,
        size=message.size,
        send_at=message.send_at,
        expires_at=message.expires_at,
        max_attempts=message.max_attempts,
        idempotency_key=message.idempotency_key,
        content=message.content,
        deliveries=[_delivery(details, delivery) for delivery in details.deliveries],
        events=list(_events(details)),
    )


def _delivery(details: MessageDetails, delivery: DeliveryRecord) -> Delivery:
    waits_for, expected_at = _wait_of(details, delivery)
    attempts = [row for row in details.attempts if row.n == delivery.n]
    return Delivery(
        id=delivery_id(details.message.id, delivery.n),
        recipient=delivery.recipient,
        role=delivery.role,
        state=delivery.state,
        reason=delivery.reason,
        attempts_made=delivery.attempts,
        next_attempt_at=next_attempt(delivery),
        waits_for=waits_for,
        expected_at=expected_at,
        settled_at=delivery.settled_at,
        provider=delivery.provider,
        retry=_retry(delivery, details.message),
        attempts=list(_attempts(attempts)),
        history=history(details, delivery),
    )


def _wait_of(
    details: MessageDetails, delivery: DeliveryRecord
) -> tuple[str | None, datetime | None]:
    """What delays a delivery, and when that wait is expected to end."""
    if details.waits_for_provider(delivery) is not None:
        return "provider", None
    if details.waiting is not None and delivery.state == State.QUEUED:
        return details.waiting.waits_for, details.waiting.expected_at
    return None, None


def next_attempt(delivery: DeliveryRecord) -> datetime | None:
    """When a delivery is tried next; None if it is finished or held."""
    return delivery.next_attempt_at if delivery.state in WAITING else None


def _retry(delivery: DeliveryRecord, message: MessageRecord) -> Retry:
    policy = policy_of(delivery, message)
    limit = message.max_attempts
    if limit is None and policy in POLICIES:
        limit = POLICIES[policy].max_attempts
    return Retry(policy, limit, remaining(delivery, message))


def _attempts(rows: Sequence[AttemptRecord]) -> Iterator[Attempt]:
    for number, row in enumerate(rows, 1):
        yield Attempt(
            number=number,
            started_at=row.started_at,
            ended_at=row.ended_at,
            provider=row.provider,
            verdict=row.verdict,
            reason=row.reason,
            code=row.code,
            reply=row.reply,
            provider_message_id=row.provider_message_id,
            conversation=row.conversation,
        )


def _events(details: MessageDetails) -> Iterator[Event]:
    for event in details.events:
        delivery = None if event.n is None else delivery_id(details.message.id, event.n)
        data = {key: value for key, value in event.data.items() if key in EVENT_DATA}
        yield Event(event.at, delivery, event.kind, data)
