"""What tests of the queue share: workers on an adapter, and what a worker does with its claims."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason, accepted, deferred
from pillarbox.queue.dispatcher import Dispatcher
from pillarbox.queue.ledger import Ledger
from pillarbox.queue.ready import ReadyQueue
from pillarbox.queue.ready_queues.postgres import PostgresReadyQueue
from pillarbox.queue.records import ClaimedMessage, DeliveryKey, Settlement, SettlementBatch
from pillarbox.store.database import Database

PLENTY = 2**30


class QueueWorker:
    """The three parts of the queue as one worker uses them."""

    def __init__(self, ledger: Ledger, ready: ReadyQueue) -> None:
        self.ledger = ledger
        self.ready = ready
        self.dispatcher = Dispatcher(ledger, ready)
        self.register = self.dispatcher.register
        self.retire = self.dispatcher.retire
        self.heartbeat = ledger.heartbeat
        self.begin = self.dispatcher.begin
        self.give_back = self.dispatcher.give_back
        self.end = self.dispatcher.end
        self.step_aside = self.dispatcher.step_aside
        self.next_due = self.dispatcher.next_due
        self.release_strays = ledger.release_strays
        self.reap = ledger.reap
        self._held: dict[int, list[ClaimedMessage]] = {}

    @property
    def worker(self) -> int:
        return self.ledger.worker

    async def claim(
        self, limit: int, max_bytes: int, allow_oversized: bool, **arguments: Any
    ) -> list[ClaimedMessage]:
        claims = await self.dispatcher.claim(limit, max_bytes, allow_oversized, **arguments)
        for claimed in claims:
            self._held.setdefault(claimed.claim, []).append(claimed)
        return claims

    async def settle(self, batch: SettlementBatch) -> set[DeliveryKey]:
        """Settle, and acknowledge what was claimed here."""
        settled = await self.ledger.settle(batch)
        messages = {(each.message_id, each.claim) for each in batch.settlements}
        await self.ready.acknowledge(
            [
                claimed
                for claims in self._held.values()
                for claimed in claims
                if (claimed.message.id, claimed.claim) in messages
            ]
        )
        return settled

    async def release(self, claims: Sequence[ClaimedMessage]) -> None:
        await self.ledger.release(claims)
        await self.ready.acknowledge(claims)


NewQueue = Callable[..., Awaitable[QueueWorker]]


def postgres_worker(database: Database, listening: Database | None = None) -> QueueWorker:
    """A worker on the PostgreSQL adapter, not yet registered."""
    ledger = Ledger(database)
    return QueueWorker(ledger, PostgresReadyQueue(listening or database, ledger))


async def take(queue: QueueWorker, limit: int = 100, **arguments: Any) -> list[ClaimedMessage]:
    return await queue.claim(limit, PLENTY, True, **arguments)


def ids(claims: Iterable[ClaimedMessage]) -> list[UUID]:
    return [claimed.message.id for claimed in claims]


def begin(queue: QueueWorker, claims: Iterable[ClaimedMessage]) -> None:
    for claimed in claims:
        assert queue.begin(claimed)


async def settle(queue: QueueWorker, claims: Sequence[ClaimedMessage], **changes: Any) -> None:
    """Settle all deliveries alike; accepted unless told."""
    usual = {
        "state": State.SENT,
        "outcome": accepted(250),
        "ended": asyncio.get_running_loop().time(),
    }
    settlements = [
        Settlement(c.message.id, n, c.claim, **(usual | changes))
        for c in claims
        for n in c.recipient_numbers
    ]
    assert len(await queue.settle(SettlementBatch(settlements))) == len(settlements)
    end(queue, claims)


async def defer(
    queue: QueueWorker, claims: Sequence[ClaimedMessage], seconds: float = 3600
) -> None:
    later = deferred(Reason.GREYLISTED, 451)
    await settle(
        queue,
        claims,
        state=State.QUEUED,
        outcome=later,
        reason=Reason.GREYLISTED,
        delay=float(seconds),
    )


async def give_back(queue: QueueWorker, claims: Sequence[ClaimedMessage]) -> None:
    for claimed in claims:
        queue.give_back(claimed)
    await queue.release(claims)
    end(queue, claims)


def end(queue: QueueWorker, claims: Iterable[ClaimedMessage]) -> None:
    for claimed in claims:
        queue.end(claimed)


async def send(queue: QueueWorker, limit: int = 100, **arguments: Any) -> list[UUID]:
    """Claim, begin and settle; returns the messages in the order in which they began."""
    claims = await take(queue, limit, **arguments)
    begin(queue, claims)
    if claims:
        await settle(queue, claims)
    return ids(claims)
