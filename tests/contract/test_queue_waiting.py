"""The contract of the ReadyQueue port about waiting: news of work ends a wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests import PATIENCE
from tests.contract.queues import NewQueue, QueueWorker, ids, take
from tests.contract.unreliable_broker import UnreliableBroker
from tests.harness import enqueue

from pillarbox.store.database import Database


@asynccontextmanager
async def listening(queue: QueueWorker) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(queue.ready.listen(stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def test_a_mail_ends_the_wait_for_work(
    new_queue: NewQueue, database: Database, broker: UnreliableBroker
) -> None:
    broker.faults.loss = 0.0  # a lost reference is found by polling
    queue = await new_queue()
    async with listening(queue), asyncio.timeout(PATIENCE):
        for _ in range(3):
            adding = asyncio.create_task(enqueue(database))
            while not (claims := await take(queue)):
                await queue.ready.wait(10 * PATIENCE, None)
            assert ids(claims) == [await adding]


async def test_a_wait_ends_when_something_is_due_or_at_the_next_poll(new_queue: NewQueue) -> None:
    queue = await new_queue()
    async with asyncio.timeout(PATIENCE):
        assert await queue.ready.wait(10 * PATIENCE, 0.0) == "due"
        assert await queue.ready.wait(0.01, None) == "poll"


async def test_a_lane_that_may_go_on_ends_the_wait_without_a_survey(new_queue: NewQueue) -> None:
    queue = await new_queue()
    async with asyncio.timeout(PATIENCE):
        queue.ready.resume()
        assert await queue.ready.wait(10 * PATIENCE, None) == "settled"
        queue.ready.resume()
        queue.ready.wake()
        assert await queue.ready.wait(10 * PATIENCE, None) == "notify"


async def test_a_hint_that_comes_between_waits_is_taken_once(new_queue: NewQueue) -> None:
    queue = await new_queue()
    assert not queue.ready.take_hint()
    queue.ready.wake()
    assert queue.ready.take_hint()
    assert not queue.ready.take_hint()
