"""What a broker may do to references, and what the order and the record make of it."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests import PATIENCE
from tests.contract.queues import QueueWorker, begin, defer, give_back, send, settle, take
from tests.contract.record import (
    add_tenant,
    count_deliveries,
    fill,
    make_due,
    seq_of_messages,
    set_tenant,
)
from tests.contract.test_queue_order import Race
from tests.contract.unreliable_broker import BrokerReadyQueue, Faults, UnreliableBroker

from pillarbox.queue.ledger import Ledger
from pillarbox.store.database import Database

NEVER = 1e9
RELIABLE = Faults(loss=0.0, repetition=0.0, reordering=0.0, redelivery=0.0)


async def new_worker(
    database: Database, broker: UnreliableBroker, patience: float = NEVER
) -> QueueWorker:
    ledger = Ledger(database)
    queue = QueueWorker(ledger, BrokerReadyQueue(broker, ledger, patience))
    await queue.register("broker", 60)
    return queue


async def send_all(queue: QueueWorker, limit: int) -> list[UUID]:
    sent: list[UUID] = []
    while some := await send(queue, limit):
        sent += some
    return sent


@pytest.mark.parametrize("order", ["fifo", "strict"])
async def test_references_that_are_repeated_and_reordered_keep_the_order(
    database: Database, broker: UnreliableBroker, order: str
) -> None:
    broker.faults = Faults(loss=0.0, repetition=0.7, reordering=0.9, redelivery=0.3)
    await set_tenant(database, order_mode=order)
    mails = await fill(database, 30)
    assert await send_all(await new_worker(database, broker), 7) == mails


async def test_a_later_reference_makes_up_for_lost_ones(
    database: Database, broker: UnreliableBroker
) -> None:
    queue = await new_worker(database, broker)
    broker.faults = Faults(loss=1.0)
    mails = await fill(database, 10)
    assert await take(queue) == []
    broker.faults = RELIABLE
    mails += await fill(database, 1)
    assert await send(queue, 4) == mails[:4]
    assert await send_all(queue, 4) == mails[4:]


async def test_what_a_broker_lost_is_claimed_directly_after_the_patience(
    database: Database, broker: UnreliableBroker
) -> None:
    broker.faults = Faults(loss=1.0)
    queue = await new_worker(database, broker, patience=0.2)
    mails = await fill(database, 5)
    assert await take(queue) == []
    sent: list[UUID] = []
    async with asyncio.timeout(PATIENCE):
        while len(sent) < 5:
            sent += await send(queue)
            await asyncio.sleep(0.01)
    assert sent == mails


async def test_retries_are_claimed_by_their_references(
    database: Database, broker: UnreliableBroker
) -> None:
    queue = await new_worker(database, broker)
    broker.faults = RELIABLE
    mails = await fill(database, 4)
    await defer(queue, await take(queue))
    await make_due(database)
    assert await send(queue) == mails
    assert broker.held == set()


async def test_a_parallel_lane_gives_the_referenced_messages(
    database: Database, broker: UnreliableBroker
) -> None:
    await set_tenant(database, order_mode="parallel")
    queue = await new_worker(database, broker)
    broker.faults = Faults(loss=1.0)
    await fill(database, 3)
    await broker.relay()
    broker.faults = RELIABLE
    mails = await fill(database, 3)
    assert await send(queue) == mails


async def test_a_reference_is_acknowledged_when_its_outcome_is_committed(
    database: Database, broker: UnreliableBroker
) -> None:
    broker.faults = RELIABLE
    mails = await fill(database, 3)
    queue = await new_worker(database, broker)
    sent, released, unsettled = await take(queue)
    assert broker.held == set(mails)
    begin(queue, [sent])
    await settle(queue, [sent])
    assert broker.held == {released.message.id, unsettled.message.id}
    await give_back(queue, [released])
    assert broker.held == {unsettled.message.id}


async def test_a_reference_that_claims_nothing_is_deleted(
    database: Database, broker: UnreliableBroker
) -> None:
    broker.faults = Faults(loss=0.0, repetition=1.0, reordering=0.0, redelivery=0.0)
    mails = await fill(database, 3)
    queue = await new_worker(database, broker)
    for mail in mails:  # one by one: the second reference is read after the first was settled
        assert await send(queue, 1) == [mail]
    assert await take(queue) == []
    assert (broker.held, broker.lanes()) == (set(), set())


async def test_references_left_over_by_a_limit_stay_unacknowledged(
    database: Database, broker: UnreliableBroker
) -> None:
    broker.faults = RELIABLE
    await set_tenant(database, rate_per_day=10)
    mails = await fill(database, 4)
    queue = await new_worker(database, broker)
    assert await send(queue) == mails[:1]
    assert broker.held == set(mails[1:])
    await set_tenant(database, rate_per_day=None)
    assert await send(queue) == mails[1:]


async def test_references_of_a_lane_that_was_lost_go_back_to_the_broker(
    database: Database, broker: UnreliableBroker
) -> None:
    broker.faults = RELIABLE
    await set_tenant(database, rate_per_day=10)
    mails = await fill(database, 4)
    first, second = await new_worker(database, broker), await new_worker(database, broker)
    assert await send(first) == mails[:1]
    await first.step_aside()
    await set_tenant(database, rate_per_day=None)
    assert await send(second) == []  # the references are still with the first
    assert await take(first) == []
    assert await send(second) == mails[1:]


async def test_workers_that_wait_for_a_broker_keep_every_lanes_order(
    database: Database, broker: UnreliableBroker
) -> None:
    for name in ("a", "b", "c"):
        await add_tenant(database, name)
        await fill(database, 40, name)
    race = Race(await seq_of_messages(database), broker.chance)
    queues = [await new_worker(database, broker, patience=0.1) for _ in range(3)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(race.run(queue) for queue in queues))
    assert len(race.begun) == 3
    for lane, seqs in race.begun.items():
        assert seqs == sorted(seqs), lane
    assert await count_deliveries(database, "sent") == 120
