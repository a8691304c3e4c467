"""A broker in memory that loses, repeats and reorders references, and a ReadyQueue adapter over it.

It shows that a broker decides speed only, never correctness: the contract tests run over it. The
adapter follows the rules for brokers: quotas first, then at most so many references per lane, then
one claim of the ledger with the references as a hint; lanes whose due rows have waited for longer
than the patience are claimed from directly; references are acknowledged after the commit.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from pillarbox.errors import StoreError
from pillarbox.loops import wait
from pillarbox.model.access import Order
from pillarbox.model.fairness import LaneId, Quota
from pillarbox.queue.ledger import Ledger
from pillarbox.queue.records import ClaimedMessage, Reference, SurveyedLane
from pillarbox.queue.work_signal import WorkSignal
from pillarbox.store.database import Database

# Every statement that queues a row again gives it a new xmin, which clears the relay's record of
# its publication.
DUE = """
SELECT message_id, tenant_id, lane, min(seq) AS seq, min(size) AS size,
  max(attempts) > 0 AS is_retry, max(xmin::text::bigint) AS version
FROM pillarbox.deliveries WHERE state = 'queued' AND next_attempt_at <= now()
GROUP BY message_id, tenant_id, lane ORDER BY tenant_id, lane, min(seq)
"""


@dataclass
class Faults:
    """How often what happens to a reference."""

    loss: float = 0.2
    repetition: float = 0.2
    reordering: float = 0.3
    redelivery: float = 0.1  # though a worker holds it, or was too slow to acknowledge it


class Stream(NamedTuple):
    lane: LaneId
    is_retry: bool


@dataclass
class UnreliableBroker:
    """The streams of references, and the relay that fills them from the ledger.

    A lane has a stream for fresh messages and one for retries, each with its own window: a backlog
    of one does not hide the other.
    """

    database: Database
    chance: random.Random
    faults: Faults = field(default_factory=Faults)
    window: int = 40  # references outstanding per stream
    subscribers: list[Callable[[], None]] = field(default_factory=list)
    _streams: dict[Stream, list[Reference]] = field(default_factory=lambda: defaultdict(list))
    _held: dict[Reference, Stream] = field(default_factory=dict)  # read, not acknowledged
    _published: dict[UUID, int] = field(default_factory=dict)
    _publications: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def relay(self) -> None:
        """Publish due rows in lane order; redeliver some that are not acknowledged."""
        outstanding: Counter[Stream] = Counter()
        for row in await self.database.fetch(DUE):
            lane = LaneId(row["tenant_id"], row["lane"])
            stream = Stream(lane, row["is_retry"])
            outstanding[stream] += 1
            is_published = self._published.get(row["message_id"]) == row["version"]
            if is_published or outstanding[stream] > self.window:
                continue
            self._published[row["message_id"]] = row["version"]
            number = next(self._publications)
            reference = Reference(row["message_id"], lane, row["seq"], number, row["size"])
            self._publish(stream, reference)
        for reference, stream in self._held.items():
            if self.chance.random() < self.faults.redelivery:
                self._streams[stream].append(reference)

    def _publish(self, stream: Stream, reference: Reference) -> None:
        if self.chance.random() < self.faults.loss:
            return
        copies = 2 if self.chance.random() < self.faults.repetition else 1
        references = self._streams[stream]
        for _ in range(copies):
            position = len(references)
            if self.chance.random() < self.faults.reordering:
                position = self.chance.randint(0, len(references))
            references.insert(position, reference)
        for wake in self.subscribers:
            wake()

    def lanes(self) -> set[LaneId]:
        """The lanes with references to read."""
        return {stream.lane for stream, references in self._streams.items() if references}

    def read(self, stream: Stream, limit: int) -> list[Reference]:
        """Read up to `limit` references; the reader must acknowledge them or put them back."""
        references = self._streams[stream]
        found = references[:limit]
        del references[:limit]
        self._held.update((reference, stream) for reference in found)
        return found

    def put_back(self, references: Iterable[Reference]) -> None:
        for reference in references:
            stream = self._held.pop(reference, None)
            if stream is not None:
                self._streams[stream].append(reference)

    def acknowledge(self, references: Iterable[Reference]) -> None:
        for reference in references:
            self._held.pop(reference, None)

    @property
    def held(self) -> set[UUID]:
        """Messages with a reference that was read and not acknowledged."""
        return {reference.message_id for reference in self._held}


class BrokerReadyQueue(WorkSignal):
    """See `queue.ready.ReadyQueue`."""

    def __init__(self, broker: UnreliableBroker, ledger: Ledger, patience: float) -> None:
        super().__init__()
        self._broker = broker
        self._ledger = ledger
        self._patience = patience
        self._surveyed_at = float("-inf")  # when the ledger was last surveyed for waiting lanes
        self._waiting_since: dict[LaneId, float] = {}  # lanes with due rows, by these surveys
        self._buffer: dict[LaneId, list[Reference]] = {}  # left over by a limit
        self._claimed: dict[UUID, list[Reference]] = {}  # not acknowledged yet

    async def listen(self, stop: asyncio.Event) -> None:
        """Hear of publications; the relay runs meanwhile."""
        self._broker.subscribers.append(self.wake)
        while not await wait(stop, 0.02):
            await self._broker.relay()
        self._broker.subscribers.remove(self.wake)

    async def survey(self, after: LaneId, limit: int) -> list[SurveyedLane]:
        await self._broker.relay()
        referenced = {lane for lane in self._broker.lanes() | self._buffer.keys() if lane > after}
        named = await self._ledger.survey_lanes(sorted(referenced))
        found = {lane.id: lane for lane in named}
        await self._delete_stale(referenced - found.keys())
        for lane in await self._waiting_lanes(after, limit):
            found.setdefault(lane.id, lane)
        for lane in found.values():
            if not (lane.is_own or lane.free or lane.order is Order.PARALLEL):
                self._broker.put_back(self._buffer.pop(lane.id, ()))
        return [found[lane] for lane in sorted(found)[:limit]]

    async def _delete_stale(self, lanes: Set[LaneId]) -> None:
        """Delete the references of lanes in which nothing waits."""
        found = {}
        for lane in lanes:
            found[lane] = self._buffer.pop(lane, [])
            for is_retry in (False, True):
                found[lane] += self._broker.read(Stream(lane, is_retry), self._broker.window)
        await self._sort_out(found, set())

    async def _waiting_lanes(self, after: LaneId, limit: int) -> list[SurveyedLane]:
        """Survey the ledger, once in the patience; the lanes to claim from directly are noted."""
        now = asyncio.get_running_loop().time()
        if now < self._surveyed_at + self._patience:
            return []
        self._surveyed_at = now
        surveyed = await self._ledger.survey(after, limit)
        due = {lane.id for lane in surveyed if lane.waits}
        self._waiting_since = {lane: self._waiting_since.get(lane, now) for lane in due}
        return surveyed

    def _is_overdue(self, lane: LaneId) -> bool:
        """Whether due rows of a lane have waited for longer than the patience."""
        since = self._waiting_since.get(lane)
        return since is not None and self._surveyed_at - since >= self._patience

    async def claim(
        self, quotas: Sequence[Quota], limit: int, max_bytes: int, allow_oversized: bool
    ) -> list[ClaimedMessage]:
        claims, were_stale = await self._claim(quotas, limit, max_bytes, allow_oversized)
        while were_stale and len(claims) < limit:  # they took the place of others
            taken = Counter(claimed.lane_id for claimed in claims)
            left = [_less(quota, taken[quota.lane.id]) for quota in quotas]
            left = [quota for quota in left if quota.limit]
            bytes_left = max_bytes - sum(claimed.size for claimed in claims)
            more, were_stale = await self._claim(
                left, limit - len(claims), bytes_left, allow_oversized and not claims
            )
            claims += more
        return claims

    async def _claim(
        self, quotas: Sequence[Quota], limit: int, max_bytes: int, allow_oversized: bool
    ) -> tuple[list[ClaimedMessage], bool]:
        """Claim once; whether some references claimed nothing, and were deleted."""
        found = {quota.lane.id: self._read(quota) for quota in quotas}
        hints = {
            quota.lane.id: found[quota.lane.id]
            for quota in quotas
            if len(found[quota.lane.id]) >= quota.limit or not self._is_overdue(quota.lane.id)
        }
        # A lane without an entry is claimed from directly; one with no references has nothing.
        asked = [quota for quota in quotas if hints.get(quota.lane.id, True)]
        if not asked:
            return [], False
        try:
            claims = await self._ledger.claim(asked, limit, max_bytes, allow_oversized, hints)
        except StoreError:
            self._buffer |= {lane: references for lane, references in found.items() if references}
            raise
        return claims, await self._sort_out(found, {claimed.message.id for claimed in claims})

    def _read(self, quota: Quota) -> list[Reference]:
        """References to as many different messages as the quota allows, those left over first."""
        lane = quota.lane.id
        found = _Distinct(self._buffer.pop(lane, ()))
        retries = Stream(lane, is_retry=True)
        found.fill(self._broker, retries, min(quota.deferred_limit, quota.limit - len(found)))
        found.fill(self._broker, Stream(lane, is_retry=False), quota.limit - len(found))
        return list(found.by_message.values())

    async def _sort_out(self, found: dict[LaneId, list[Reference]], claimed: set[UUID]) -> None:
        """Keep references until their claims are settled; delete those that claim nothing."""
        left = []
        for references in found.values():
            for reference in references:
                if reference.message_id in claimed:
                    self._claimed.setdefault(reference.message_id, []).append(reference)
                else:
                    left.append(reference)
        if not left:
            return False
        try:
            unclaimable = await self._ledger.unclaimable(left)
        except StoreError:  # the claim itself succeeded; the next one asks again
            unclaimable = set()
        self._broker.acknowledge(unclaimable)
        for reference in left:
            if reference not in unclaimable:
                self._buffer.setdefault(reference.lane, []).append(reference)
        return bool(unclaimable)

    async def acknowledge(self, claims: Sequence[ClaimedMessage]) -> None:
        for claimed in claims:
            self._broker.acknowledge(self._claimed.pop(claimed.message.id, ()))


def _less(quota: Quota, taken: int) -> Quota:
    limit = quota.limit - taken
    return quota._replace(limit=limit, deferred_limit=min(quota.deferred_limit, limit))


class _Distinct:
    """References to different messages; repeated ones are acknowledged at once."""

    def __init__(self, references: Iterable[Reference]) -> None:
        self.by_message = {reference.message_id: reference for reference in references}

    def __len__(self) -> int:
        return len(self.by_message)

    def fill(self, broker: UnreliableBroker, stream: Stream, limit: int) -> None:
        """Read until there are `limit` more, or no others."""
        wanted = len(self) + limit
        while references := broker.read(stream, max(wanted - len(self), 0)):
            for reference in references:
                kept = self.by_message.setdefault(reference.message_id, reference)
                if kept != reference:
                    broker.acknowledge([reference])
