"""What tests of the Queue port share: queues of several workers, and what a worker does with what it claimed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from tests.harness import SENDER

from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason, accepted, deferred
from pillarbox.queue.base import ClaimedMessage, Queue, Settlement, SettlementBatch
from pillarbox.store.database import Database

PLENTY = 2**30
NewQueue = Callable[..., Awaitable[Queue]]


async def take(queue: Queue, limit: int = 100, **arguments: Any) -> list[ClaimedMessage]:
    return await queue.claim(limit, PLENTY, True, **arguments)


def ids(claims: Iterable[ClaimedMessage]) -> list[UUID]:
    return [claimed.message.id for claimed in claims]


def begin(queue: Queue, claims: Iterable[ClaimedMessage]) -> None:
    for claimed in claims:
        assert queue.begin(claimed)


async def settle(queue: Queue, claims: Sequence[ClaimedMessage], **changes: Any) -> None:
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


async def defer(queue: Queue, claims: Sequence[ClaimedMessage], seconds: float = 3600) -> None:
    later = deferred(Reason.GREYLISTED, 451)
    await settle(
        queue,
        claims,
        state=State.QUEUED,
        outcome=later,
        reason=Reason.GREYLISTED,
        delay=float(seconds),
    )


async def give_back(queue: Queue, claims: Sequence[ClaimedMessage]) -> None:
    for claimed in claims:
        queue.give_back(claimed)
    await queue.release(claims)
    end(queue, claims)


def end(queue: Queue, claims: Iterable[ClaimedMessage]) -> None:
    for claimed in claims:
        queue.end(claimed)


async def send(queue: Queue, limit: int = 100, **arguments: Any) -> list[UUID]:
    """Claim, begin and settle; returns the messages in the order in which they began."""
    claims = await take(queue, limit, **arguments)
    begin(queue, claims)
    if claims:
        await settle(queue, claims)
    return ids(claims)


async def add_tenant(database: Database, name: str, order: str = "fifo", **settings: Any) -> None:
    columns = {"name": name, "order_mode": order} | settings
    places = ", ".join(f"${place}" for place in range(1, len(columns) + 1))
    await database.execute(
        f"INSERT INTO pillarbox.tenants ({', '.join(columns)}) VALUES ({places})", *columns.values()
    )


async def set_tenant(database: Database, name: str = "default", **settings: Any) -> None:
    changes = ", ".join(f"{column} = ${place}" for place, column in enumerate(settings, 2))
    await database.execute(
        f"UPDATE pillarbox.tenants SET {changes} WHERE name = $1", name, *settings.values()
    )


async def fill(
    database: Database, count: int, tenant: str = "default", priority: str = "normal"
) -> list[UUID]:
    """Accept many mails in one go; returns them in the order of acceptance."""
    rows = await database.fetch(
        """SELECT pillarbox.enqueue(sender => $1, "to" => ARRAY['r@x.example'], subject => 'x', text => 'x',
                                    tenant => $2, priority => $3) FROM generate_series(1, $4)""",
        SENDER, tenant, priority, count,
    )  # fmt: skip
    return [row[0] for row in rows]


async def make_due(database: Database) -> None:
    """Let the time of everything that was deferred come."""
    await database.execute(
        "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state = 'queued'"
    )
