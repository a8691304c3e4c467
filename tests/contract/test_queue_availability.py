"""The reaper tells a dead worker from an unavailable database."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests.contract.queues import NewQueue, QueueWorker, settle, take
from tests.contract.record import (
    availability,
    delete_availability,
    end_lease,
    forget_lease,
    set_availability,
)
from tests.harness import enqueue, states

from pillarbox.queue.ledger import Ledger
from pillarbox.queue.records import ClaimedMessage
from pillarbox.store.database import Database

LEASE = 60.0


async def touched(database: Database, ago: float, since: float = 3600) -> None:
    """Processes have reached the database for an hour, the last one `ago` seconds before."""
    await set_availability(database, ago, since)


async def holding(
    new_queue: NewQueue, database: Database, lease: float = LEASE
) -> tuple[QueueWorker, ClaimedMessage, UUID]:
    """A worker that holds a claim, and whose lease ran out a moment ago."""
    queue = await new_queue(lease)
    message_id = await enqueue(database)
    [claimed] = await take(queue)
    await end_lease(database, queue.worker)
    return queue, claimed, message_id


async def test_a_worker_that_had_no_chance_to_renew_its_lease_keeps_its_claims(
    new_queue: NewQueue, database: Database
) -> None:
    late, claimed, message_id = await holding(new_queue, database)
    reaper = await new_queue()
    await touched(database, ago=LEASE)
    assert await reaper.reap(100, LEASE) == 0
    assert await reaper.reap(100, LEASE) == 0  # the first look after the gap does not end the wait
    await settle(late, [claimed])
    assert await late.heartbeat(LEASE)
    assert await states(database, message_id) == ["sent"]


async def test_a_dead_worker_is_reaped_while_the_database_is_available(
    new_queue: NewQueue, database: Database
) -> None:
    _, _, message_id = await holding(new_queue, database)
    reaper = await new_queue()
    await touched(database, ago=LEASE / 4)
    assert await reaper.reap(100, LEASE) == 1
    assert await states(database, message_id) == ["queued"]


async def test_after_a_gap_a_dead_worker_is_reaped_a_lease_later(
    new_queue: NewQueue, database: Database
) -> None:
    await holding(new_queue, database)
    reaper = await new_queue()
    await touched(database, ago=LEASE)
    assert await reaper.reap(100, LEASE) == 0
    await touched(database, ago=0, since=LEASE / 2)
    assert await reaper.reap(100, LEASE) == 0
    await touched(database, ago=0, since=LEASE + 1)
    assert await reaper.reap(100, LEASE) == 1


async def test_a_gap_is_judged_by_the_shortest_lease(
    new_queue: NewQueue, database: Database
) -> None:
    """Processes have leases of different lengths: the gap is short for this reaper, and long for that worker."""
    await holding(new_queue, database, 6.0)
    reaper = await new_queue()
    await touched(database, ago=4)
    assert await reaper.reap(100, LEASE) == 0


async def test_a_worker_has_the_time_of_its_own_lease(
    new_queue: NewQueue, database: Database
) -> None:
    await holding(new_queue, database, LEASE)
    reaper = await new_queue(6.0)
    await touched(database, ago=0, since=10)
    assert await reaper.reap(100, 6.0) == 0
    await touched(database, ago=0, since=LEASE + 1)
    assert await reaper.reap(100, 6.0) == 1


async def test_a_worker_of_the_version_before_has_the_lease_of_the_reaper(
    new_queue: NewQueue, database: Database
) -> None:
    old, *_ = await holding(new_queue, database)
    await forget_lease(database, old.worker)
    reaper = await new_queue()
    await touched(database, ago=0, since=LEASE - 10)
    assert await reaper.reap(100, LEASE) == 0
    await touched(database, ago=0, since=LEASE + 1)
    assert await reaper.reap(100, LEASE) == 1


@pytest.mark.parametrize("broken", ["missing", "clock set back"])
async def test_what_is_known_of_the_database_begins_again(
    broken: str, new_queue: NewQueue, database: Database
) -> None:
    await holding(new_queue, database)
    reaper = await new_queue()
    if broken == "missing":
        await delete_availability(database)
    else:
        await touched(database, ago=-86_400, since=86_400)
    assert await reaper.reap(100, LEASE) == 0
    _, ago = await availability(database)
    assert ago >= 0
    await touched(database, ago=0)
    assert await reaper.reap(100, LEASE) == 1


async def test_many_processes_touch_at_once_and_one_writes(database: Database) -> None:
    await touched(database, ago=5)
    ledger = Ledger(database)
    await asyncio.gather(*(ledger.touch(LEASE) for _ in range(20)))
    since, ago = await availability(database)
    assert since >= 3600
    assert ago < 5
