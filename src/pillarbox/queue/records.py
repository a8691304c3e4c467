"""What the parts of the queue hand to each other and to the worker: lanes, claims, settlements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pillarbox.model.access import Order
from pillarbox.model.delivery import State
from pillarbox.model.fairness import LaneId
from pillarbox.model.message import Content, Message
from pillarbox.model.outcome import Outcome, Reason

# The largest mail that can be accepted, roughly. A claim with fewer bytes to spare may leave out
# mails that are due.
LARGEST_MESSAGE = 32 * 2**20


class SurveyedLane(NamedTuple):
    """A lane with waiting mails, as one worker sees it. Times are seconds from the survey."""

    tenant: int
    priority: int
    order: Order
    fresh: bool  # mails that were never tried
    due_in: float | None  # until the first deferred mail is due
    is_own: bool  # whether this worker dispatches it
    other_lease_for: float | None  # until the lease of another dispatcher ends
    limited_for: float | None  # until the tenant's rate limits allow one more mail
    limited: bool  # whether the tenant has rate limits
    workers: int  # workers with a lease and with room, this one included

    @property
    def id(self) -> LaneId:
        return LaneId(self.tenant, self.priority)

    @property
    def waits(self) -> bool:
        """Whether a mail is due, rate limits aside."""
        return self.fresh or (self.due_in is not None and self.due_in <= 0)

    @property
    def free(self) -> bool:
        """Whether it needs a dispatcher and has none."""
        return not self.is_own and self.other_lease_for is None and self.order is not Order.PARALLEL


class Reference(NamedTuple):
    """What a broker carries of a ready message: a hint, without anything of its content."""

    message_id: UUID
    lane: LaneId
    seq: int
    publication: int  # counts publications, so that a repeated one can be told from a new one
    size: int


@dataclass(slots=True)
class ClaimedMessage:
    """A message claimed whole: all its deliveries that were due, under one fence.

    `attempts` counts earlier attempts per recipient. `via` is the provider that an operator chose
    for each recipient, if any. `suppressed` holds the numbers of recipients on the tenant's
    suppression list. `content` is None when retention dropped it. `age` is the time since the
    message was accepted, by the database's clock; `claimed_at` is the event loop's time.
    """

    message: Message
    content: Content | None = field(repr=False)
    claim: int
    recipient_numbers: Sequence[int]
    recipients: Sequence[str] = field(repr=False)
    attempts: Sequence[int]
    tenant_id: int
    lane: int
    size: int
    class_name: str
    kind: str | None
    max_attempts: int | None
    expired: bool
    expires_at: datetime | None
    age: float
    claimed_at: float
    tags: Sequence[str] = ()
    via: Sequence[int | None] = ()
    suppressed: Sequence[int] = ()
    begun: bool = False  # whether its sending has begun

    @property
    def lane_id(self) -> LaneId:
        return LaneId(self.tenant_id, self.lane)


@dataclass(slots=True)
class EarlierAttempt:
    """An attempt whose provider did not take the mail, before failover. Times as in Settlement."""

    provider_id: int
    outcome: Outcome
    reply: str | None
    ended: float
    took: float


@dataclass(slots=True)
class Settlement:
    """The outcome of one delivery's attempt. `ended` and `took` are by the event loop's clock."""

    message_id: UUID
    recipient_number: int
    claim: int
    state: State
    outcome: Outcome
    reason: Reason | None = None
    delay: float | None = None
    retry: str | None = None
    provider_id: int | None = None
    provider: str = ""
    reply: str | None = None
    ended: float = 0.0
    took: float = 0.0
    expires_at: datetime | None = None
    earlier: Sequence[EarlierAttempt] = ()  # in the same claim, in order


class DeliveryKey(NamedTuple):
    """Names one delivery under one claim."""

    message_id: UUID
    recipient_number: int
    claim: int


@dataclass(slots=True)
class SettlementBatch:
    """Settlements, and everything that is written in the same transaction.

    Transcripts worth keeping (message, claim, lines); events on the way (message, claim, kind,
    JSON); messages of secret classes, whose contents are dropped once all their deliveries ended.
    """

    settlements: Sequence[Settlement]
    transcripts: Sequence[tuple[UUID, int, str]] = ()
    events: Sequence[tuple[UUID, int, str, str]] = ()
    secret_messages: Sequence[UUID] = ()
