"""Workers share the queue by SELECT … FOR UPDATE SKIP LOCKED."""

from __future__ import annotations

import asyncio

from tests import PATIENCE
from tests.contract.queues import QueueWorker, postgres_worker
from tests.harness import enqueue

from pillarbox.store.database import Database


async def registered(database: Database) -> QueueWorker:
    queue = postgres_worker(database)
    await queue.register("test", 60)
    return queue


async def test_select_for_update_skip_locked(database: Database) -> None:
    """A claim passes over rows that another open transaction has locked, and concurrent claims never share one."""
    ids = {await enqueue(database, f"r{k}@mail.example") for k in range(50)}
    queue = await registered(database)
    async with database.transaction() as open_elsewhere:
        locked = "SELECT message_id FROM pillarbox.deliveries ORDER BY seq LIMIT 10 FOR UPDATE"
        rows = await open_elsewhere.fetch(locked)
        elsewhere = {row["message_id"] for row in rows}
        here = {
            claimed.message.id
            for claimed in await asyncio.wait_for(queue.claim(100, 2**30, True), PATIENCE)
        }
    assert len(elsewhere) == 10
    assert here == ids - elsewhere


async def test_concurrent_claims_are_disjoint(database: Database) -> None:
    ids = {await enqueue(database, f"r{k}@mail.example") for k in range(60)}
    await database.execute("UPDATE pillarbox.tenants SET order_mode = 'parallel'")
    queues = [await registered(database) for _ in range(4)]
    claims = await asyncio.gather(
        *(queue.claim(10, 2**30, True) for queue in queues for _ in range(3))
    )
    claimed = [one.message.id for batch in claims for one in batch]
    assert len(claimed) == len(set(claimed))
    assert set(claimed) <= ids
