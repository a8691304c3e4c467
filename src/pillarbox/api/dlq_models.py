"""Dead letters: requests, and the records made of the rows of the store."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pillarbox.api.fields import FilterText, Name, StrictInt, StrictModel, Timestamp
from pillarbox.api.pagination import Cursor
from pillarbox.model.delivery import delivery_id
from pillarbox.model.outcome import Reason
from pillarbox.store.dlq import FailedDeliveryDetails, FailedMessage
from pillarbox.store.messages import MessageFilter
from pillarbox.wire.dlq import DeadDelivery, DeadLetter
from pillarbox.wire.messages import AttemptSummary

# A page holds the whole history of each.
MAX_PAGE_SIZE = 100
# Messages named, and deliveries changed, in one call.
MAX_PER_CALL = 1000


class DeadLetterFilter(BaseModel):
    """Filters; a message must match all of them.

    `recipient`, `sender` and `subject` match a substring, ignoring case.
    """

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[Reason | None, Field(description="Why it failed.")] = None
    recipient: Annotated[
        FilterText | None, Field(description="A part of the recipient's address.")
    ] = None
    sender: Annotated[FilterText | None, Field(description="A part of the sender.")] = None
    subject: Annotated[
        FilterText | None,
        Field(description="A part of the subject; a secret subject never matches."),
    ] = None
    tag: FilterText | None = None
    kind: FilterText | None = None
    class_: Annotated[FilterText | None, Field(alias="class")] = None
    provider: Annotated[
        FilterText | None, Field(description="The provider of the last attempt.")
    ] = None
    since: Annotated[Timestamp | None, Field(description="Accepted at this time or later.")] = None
    until: Annotated[Timestamp | None, Field(description="Accepted before this time.")] = None

    def to_filter(self, before: UUID | None = None) -> MessageFilter:
        return MessageFilter(
            class_name=self.class_,
            kind=self.kind,
            tag=self.tag,
            sender=self.sender,
            recipient=self.recipient,
            provider=self.provider,
            reason=self.reason,
            since=self.since,
            until=self.until,
            before=before,
            subject=self.subject,
        )


class DeadLetterQuery(DeadLetterFilter):
    """A page of matching dead letters."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = 20
    cursor: Cursor = None


class DeadLettersToChange(StrictModel):
    """The dead letters to change: those of `message_ids`, or all that match `filter`."""

    message_ids: Annotated[list[UUID] | None, Field(min_length=1, max_length=MAX_PER_CALL)] = None
    filter: DeadLetterFilter | None = None
    limit: Annotated[
        StrictInt,
        Field(ge=1, le=MAX_PER_CALL, description="The largest number of deliveries to change."),
    ] = MAX_PER_CALL
    dry_run: Annotated[bool, Field(description="Only count what would be changed.")] = False

    @model_validator(mode="after")
    def _one_of_both(self) -> DeadLettersToChange:
        if (self.message_ids is None) == (self.filter is None):
            raise ValueError(
                "must contain either message_ids or filter; an empty filter matches all"
            )
        return self


class Reprocess(DeadLettersToChange):
    """The dead letters to reprocess."""

    reset_retry_count: Annotated[
        bool,
        Field(description="False: previous attempts count; at least one more is made."),
    ] = True
    provider: Annotated[
        Name | None, Field(description="Send through this provider; null: as the routes decide.")
    ] = None


def dead_letter(message: FailedMessage) -> DeadLetter:
    return DeadLetter(
        id=message.id,
        created_at=message.created_at,
        sender=message.sender,
        subject=message.subject,
        class_=message.class_name,
        kind=message.kind,
        priority=message.priority,
        tags=list(message.tags),
        size=message.size,
        expires_at=message.expires_at,
        blocked=message.blocked,
        deliveries=[_delivery(message.id, each) for each in message.deliveries],
    )


def _delivery(message_id: UUID, delivery: FailedDeliveryDetails) -> DeadDelivery:
    attempts = [
        AttemptSummary(number=number, **{name: getattr(row, name) for name in row.__slots__})
        for number, row in enumerate(delivery.attempts, 1)
    ]
    return DeadDelivery(
        id=delivery_id(message_id, delivery.n),
        recipient=delivery.recipient,
        role=delivery.role,
        reason=delivery.reason,
        error=delivery.error,
        failed_at=delivery.failed_at,
        provider=delivery.provider,
        attempts_made=delivery.attempts_made,
        attempts=attempts,
    )
