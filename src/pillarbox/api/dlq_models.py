"""Dead letters as they are asked for and shown."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pillarbox.api.fields import FilterText, Name, StrictInt, StrictModel, Timestamp
from pillarbox.api.listing import Cursor
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
    """Which dead letters: all that fit. `recipient`, `sender` and `subject` match a part, whatever the case."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[Reason | None, Field(description="Why it failed.")] = None
    recipient: Annotated[
        FilterText | None, Field(description="A part of the recipient's address.")
    ] = None
    sender: Annotated[FilterText | None, Field(description="A part of the sender.")] = None
    subject: Annotated[
        FilterText | None, Field(description="A part of the subject; never of a secret one.")
    ] = None
    tag: FilterText | None = None
    kind: FilterText | None = None
    class_: Annotated[FilterText | None, Field(alias="class")] = None
    provider: Annotated[
        FilterText | None, Field(description="It was last tried through this provider.")
    ] = None
    since: Annotated[Timestamp | None, Field(description="Accepted then or later.")] = None
    until: Annotated[Timestamp | None, Field(description="Accepted before then.")] = None

    def to_filter(self, before: UUID | None = None) -> MessageFilter:
        return MessageFilter(
            class_name=self.class_, kind=self.kind, tag=self.tag, sender=self.sender, recipient=self.recipient,
            provider=self.provider, reason=self.reason, since=self.since, until=self.until, before=before,
            subject=self.subject,
        )  # fmt: skip


class DeadLetterQuery(DeadLetterFilter):
    """A page of those that fit."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = 20
    cursor: Cursor = None


class DeadLettersWanted(StrictModel):
    """Which dead letters to change: those of `message_ids`, or all that fit `filter`, which may be empty."""

    message_ids: Annotated[list[UUID] | None, Field(min_length=1, max_length=MAX_PER_CALL)] = None
    filter: DeadLetterFilter | None = None
    limit: Annotated[
        StrictInt, Field(ge=1, le=MAX_PER_CALL, description="Most deliveries to change.")
    ] = MAX_PER_CALL
    dry_run: Annotated[bool, Field(description="Only say what would be done.")] = False

    @model_validator(mode="after")
    def _one_of_both(self) -> DeadLettersWanted:
        if (self.message_ids is None) == (self.filter is None):
            raise ValueError("give message_ids or filter; an empty filter means all")
        return self


class Reprocess(DeadLettersWanted):
    """Dead letters to send again."""

    reset_retry_count: Annotated[
        bool,
        Field(
            description="All attempts anew. If false those made count; one more is made at least."
        ),
    ] = True
    provider: Annotated[
        Name | None, Field(description="Through this provider; null: as the routes say.")
    ] = None


def dead_letter(one: FailedMessage) -> DeadLetter:
    return DeadLetter(
        id=one.id, created_at=one.created_at, sender=one.sender, subject=one.subject,
        class_=one.class_name, kind=one.kind, priority=one.priority, tags=list(one.tags), size=one.size,
        expires_at=one.expires_at, blocked=one.blocked, deliveries=[_delivery(one.id, each) for each in one.deliveries],
    )  # fmt: skip


def _delivery(message_id: UUID, one: FailedDeliveryDetails) -> DeadDelivery:
    tries = [
        AttemptSummary(number=number, **{name: getattr(row, name) for name in row.__slots__})
        for number, row in enumerate(one.attempts, 1)
    ]
    return DeadDelivery(
        id=delivery_id(message_id, one.n),
        recipient=one.recipient,
        role=one.role,
        reason=one.reason,
        error=one.error,
        failed_at=one.failed_at,
        provider=one.provider,
        attempts_made=one.attempts_made,
        attempts=tries,
    )
