"""The Queue port: how a worker gets the right to attempt, and gives account of it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from pillarbox.model.delivery import State
from pillarbox.model.fairness import LaneId
from pillarbox.model.message import Content, Message
from pillarbox.model.outcome import Outcome, Reason

# The largest mail there can be, roughly: with fewer bytes to spare, a claim may leave out what is
# due.
LARGEST = 32 * 2**20


@dataclass(slots=True)
class ClaimedMessage:
    """A message claimed whole: all its deliveries that were due, under one fence.

    `attempts` counts those made before, per recipient. `via` is the provider that a person chose for each, if any;
    `suppressed` are the numbers of recipients on the tenant's suppression list. `content` is None when retention
    dropped it. `age` is how long ago the message was accepted when it was claimed, by the database's clock;
    `claimed_at` is that moment by the event loop's.
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


@dataclass(slots=True)
class EarlierAttempt:
    """An attempt through a provider that did not take the mail, before it went to the next. Times as in Settlement."""

    provider_id: int
    outcome: Outcome
    reply: str | None
    ended: float
    took: float


@dataclass(slots=True)
class Settlement:
    """What became of one delivery in an attempt. `ended` and `took` are by the event loop's clock."""

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
    """A batch of settlements with all that is written with them.

    Conversations worth keeping (message, claim, lines); what happened on the way (message, claim,
    kind, JSON); messages of secret classes, whose contents are dropped when nothing of them is left
    to send.
    """

    settlements: Sequence[Settlement]
    conversations: Sequence[tuple[UUID, int, str]] = ()
    events: Sequence[tuple[UUID, int, str, str]] = ()
    secret_messages: Sequence[UUID] = ()


class Queue(Protocol):
    """One worker's view of the queue.

    Claims are leased: `register` begins a lease, `heartbeat` extends it for everything the worker
    holds. When the lease runs out, `reap` (by anybody) takes the claims away; settling them later
    does nothing. Every method can raise StoreError; then nothing, or everything, of that call was
    done, and it can be made again.
    """

    worker: int  # the id of the current lease; 0 before the first

    async def register(self, name: str, lease: float) -> int:
        """Begin a lease under a new worker id."""
        ...

    async def heartbeat(self, lease: float) -> bool:
        """Extend the lease, even if it has run out; False when it was taken away and the worker must register again."""
        ...

    async def claim(
        self,
        limit: int,
        size: int,
        alone: bool,
        *,
        look: bool = True,
        hinted: bool = False,
        barred: Set[LaneId] = frozenset(),
    ) -> list[ClaimedMessage]:
        """Take up to `limit` due messages of `size` bytes together; with `alone` the first may be larger.

        They come in the order in which they are to begin. Nothing means that nothing is known to be
        due; with `look` the queue was asked anew, and when `hinted` that something came in, unless
        it was a moment ago. From `barred` lanes nothing is taken.
        """
        ...

    def begin(self, claimed: ClaimedMessage) -> bool:
        """Note that sending begins: the order of its lane no longer depends on this message. Twice is once.

        False when it must not, because another message of its lane was given back, and may come
        before it.
        """
        ...

    def give_back(self, claimed: ClaimedMessage) -> None:
        """Note that a message that has not begun will be released: nothing of its lane begins before it is."""
        ...

    def hold(self, claimed: ClaimedMessage, seconds: float) -> None:
        """Claim nothing from a message's lane for so long: what it leaves through has no room."""
        ...

    def end(self, claimed: ClaimedMessage) -> bool:
        """Note, once, that a message was settled or released; says whether its lane waited for that."""
        ...

    async def step_aside(self) -> None:
        """Let other workers, if there are any, dispatch the lanes of this one, which has no room for more."""
        ...

    async def settle(self, batch: SettlementBatch) -> set[DeliveryKey]:
        """Write outcomes and all that belongs to them, or nothing; returns those that are written.

        Written by this call, or by an earlier one with the same outcomes whose answer was lost.
        Claims of the rest had been taken away: nothing of them is written.
        """
        ...

    async def release(self, claims: Sequence[ClaimedMessage]) -> None:
        """Give claims back untouched: nothing of them was sent."""
        ...

    async def postpone(self, claims: Sequence[tuple[ClaimedMessage, float, Reason]]) -> None:
        """Let messages of which nothing was sent wait for so many seconds, and say why; others go before them."""
        ...

    def may_postpone(self, claimed: ClaimedMessage) -> bool:
        """Whether others of its lane may go before it."""
        ...

    async def release_strays(self, known: Sequence[int]) -> int:
        """Give back what was claimed but whose answer was lost: all but the `known` claims. Not while claiming."""
        ...

    async def retire(self) -> None:
        """End the lease; nothing is held any more."""
        ...

    async def reap(self, limit: int, lease: float) -> int:
        """Take back claims of workers whose lease ran out; returns how many deliveries.

        Only after the database has been available for as long as the worker's lease, and for
        `lease` seconds: before that, a worker may not have been able to renew its lease.
        """
        ...

    def next_due(self) -> float | None:
        """Seconds until a look may find more than the last one: something falls due, a limit or a lease ends."""
        ...
