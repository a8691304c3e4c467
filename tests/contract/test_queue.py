"""The contract of the queue, run over every adapter of the ReadyQueue port."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.contract.queues import PLENTY, NewQueue, defer, take
from tests.contract.record import (
    add_class,
    count_unknown_attempts,
    events,
    expire_messages,
    fill,
    make_due,
    set_tenant,
)
from tests.harness import attempts, deliveries, enqueue, states

from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason, accepted, deferred
from pillarbox.queue.records import ClaimedMessage, Settlement, SettlementBatch
from pillarbox.store.database import Database


def settle_all(claimed: ClaimedMessage, **changes: Any) -> list[Settlement]:
    given = {
        "state": State.SENT,
        "outcome": accepted(250, "2.0.0 ok"),
        "ended": asyncio.get_running_loop().time(),
    } | changes
    return [
        Settlement(claimed.message.id, n, claimed.claim, **given) for n in claimed.recipient_numbers
    ]


async def test_a_claim_carries_the_whole_message(new_queue: NewQueue, database: Database) -> None:
    queue = await new_queue()
    message_id = await enqueue(
        database, "a@x.example", "b@x.example", cc=["c@x.example"], bcc=["d@x.example"], html="<p>"
    )
    [claimed] = await take(queue)
    assert claimed.message.id == message_id
    assert list(claimed.recipients) == ["a@x.example", "b@x.example", "c@x.example", "d@x.example"]
    assert list(claimed.recipient_numbers) == [0, 1, 2, 3]
    assert claimed.content is not None
    assert (claimed.content.text, claimed.content.html) == ("Hi!", "<p>")
    assert await states(database, message_id) == ["processing"] * 4


@pytest.mark.req("REQ-QUEUE-U001")
@pytest.mark.req("REQ-QUEUE-N004")
async def test_first_attempts_come_in_the_order_of_acceptance(
    new_queue: NewQueue, database: Database
) -> None:
    ids = [await enqueue(database) for _ in range(20)]
    queue = await new_queue()
    claimed = [one.message.id for _ in range(4) for one in await take(queue, 5)]
    assert claimed == ids


@pytest.mark.req("REQ-QUEUE-O001")
async def test_urgent_goes_first_and_bulk_last(new_queue: NewQueue, database: Database) -> None:
    ids = {
        priority: await enqueue(database, priority=priority)
        for priority in ("bulk", "normal", "urgent")
    }
    claimed = [one.message.id for one in await take(await new_queue())]
    assert claimed == [ids["urgent"], ids["normal"], ids["bulk"]]


async def test_claims_are_bounded_by_count_and_bytes(
    new_queue: NewQueue, database: Database
) -> None:
    for _ in range(5):
        await enqueue(database, text="x" * 10_000)
    queue = await new_queue()
    assert len(await queue.claim(2, PLENTY, True)) == 2
    assert len(await queue.claim(5, 25_000, True)) == 2
    assert len(await queue.claim(5, 100, False)) == 0
    assert len(await queue.claim(5, 100, True)) == 1  # alone, it may be larger than the bound


@pytest.mark.req("REQ-QUEUE-E010")
async def test_settling_needs_the_current_claim(new_queue: NewQueue, database: Database) -> None:
    await set_tenant(database, order_mode="parallel")
    first, second = await new_queue(), await new_queue()
    message_id = await enqueue(database)
    [lost] = await take(first)
    await first.release([lost])
    [held] = await take(second)
    assert await first.settle(SettlementBatch(settle_all(lost, state=State.FAILED))) == set()
    assert await states(database, message_id) == ["processing"]
    assert len(await second.settle(SettlementBatch(settle_all(held)))) == 1
    assert await states(database, message_id) == ["sent"]
    assert len(await attempts(database, message_id)) == 1


async def test_settling_twice_changes_nothing(new_queue: NewQueue, database: Database) -> None:
    queue = await new_queue()
    message_id = await enqueue(database)
    [claimed] = await take(queue)
    batch = SettlementBatch(settle_all(claimed))
    settled = await queue.settle(batch)
    assert len(settled) == 1
    assert await queue.settle(batch) == settled  # as if the answer to the first had been lost
    assert len(await attempts(database, message_id)) == 1


async def test_a_deferred_delivery_waits_and_comes_back(
    new_queue: NewQueue, database: Database
) -> None:
    queue = await new_queue()
    message_id = await enqueue(database)
    [claimed] = await take(queue)
    later = settle_all(
        claimed,
        state=State.QUEUED,
        outcome=deferred(Reason.GREYLISTED, 451),
        reason="greylisted",
        delay=30.0,
        retry="quadratic",
    )
    await queue.settle(SettlementBatch(later))
    assert await take(queue) == []
    assert 25 < (queue.next_due() or 0) <= 30
    await make_due(database)
    [again] = await take(queue)
    assert again.message.id == message_id
    assert list(again.attempts) == [1]
    assert again.claim != claimed.claim


async def test_with_nothing_deferred_nothing_is_due(
    new_queue: NewQueue, database: Database
) -> None:
    queue = await new_queue()
    assert queue.next_due() is None
    await enqueue(database)
    assert queue.next_due() is None


async def test_outcomes_are_per_recipient(new_queue: NewQueue, database: Database) -> None:
    queue = await new_queue()
    message_id = await enqueue(database, "a@x.example", "b@x.example")
    [claimed] = await take(queue)
    one, two = settle_all(claimed)
    two.state, two.outcome, two.delay = State.QUEUED, deferred(Reason.MAILBOX_FULL, 452), 0.0
    await queue.settle(SettlementBatch([one, two]))
    assert await states(database, message_id) == ["sent", "queued"]
    [again] = await take(queue)
    assert list(again.recipients) == ["b@x.example"]


async def test_a_backlog_of_deferred_mails_does_not_starve_new_ones(
    new_queue: NewQueue, database: Database
) -> None:
    queue = await new_queue()
    await fill(database, 20)
    await defer(queue, await take(queue, 20), 0)
    fresh = {await enqueue(database) for _ in range(20)}
    claimed = {one.message.id for one in await take(queue, 10)}
    assert len(claimed) == 10
    assert len(claimed & fresh) == 5


@pytest.mark.req("REQ-QUEUE-N005")
async def test_the_reaper_takes_back_what_a_dead_worker_held(
    new_queue: NewQueue, database: Database
) -> None:
    await set_tenant(database, order_mode="parallel")
    dead, alive = await new_queue(0.0), await new_queue()
    kept = await enqueue(database)
    assert await take(dead) == []  # an expired lease claims nothing
    [held] = await take(alive)
    assert held.message.id == kept
    message_id = await enqueue(database)
    await dead.heartbeat(60)  # nobody has reaped it yet: it may go on
    [lost] = await take(dead)
    await dead.heartbeat(0.0)
    assert await alive.reap(100, 0.0) == 1
    assert await states(database, kept) == ["processing"]
    [row] = await deliveries(database, message_id)
    assert (row["state"], row["attempts"], row["reason"]) == ("queued", 1, "lost")
    [attempt] = await attempts(database, message_id)
    assert (attempt["verdict"], attempt["claim"]) == ("unknown", lost.claim)
    assert await events(database, message_id) == ["unknown"]
    assert await dead.heartbeat(60) is False
    assert await dead.settle(SettlementBatch(settle_all(lost))) == set()


async def test_reaping_concurrently_counts_each_claim_once(
    new_queue: NewQueue, database: Database
) -> None:
    for _ in range(30):
        await enqueue(database)
    dead = await new_queue()
    await take(dead, 30)
    await dead.heartbeat(0.0)
    reapers = [await new_queue() for _ in range(4)]
    assert sum(await asyncio.gather(*(reaper.reap(1000, 0.0) for reaper in reapers))) == 30
    assert await count_unknown_attempts(database) == 30


async def test_a_class_can_hold_unknowns_for_a_person(
    new_queue: NewQueue, database: Database
) -> None:
    await add_class(database, "payment", unknown="hold")
    message_id = await enqueue(database, **{"class": "payment"})
    dead, alive = await new_queue(), await new_queue()
    await take(dead)
    await dead.heartbeat(0.0)
    await alive.reap(100, 0.0)
    assert await states(database, message_id) == ["held"]
    assert await take(alive) == []


async def test_released_claims_keep_their_attempts(new_queue: NewQueue, database: Database) -> None:
    queue = await new_queue()
    message_id = await enqueue(database)
    await queue.release(await take(queue))
    [row] = await deliveries(database, message_id)
    assert (row["state"], row["attempts"], row["claim"]) == ("queued", 0, None)
    assert await attempts(database, message_id) == []


async def test_expired_mails_are_marked(new_queue: NewQueue, database: Database) -> None:
    await enqueue(database)
    await expire_messages(database)
    [claimed] = await take(await new_queue())
    assert claimed.expired


async def test_claims_whose_answer_was_lost_are_given_back(
    new_queue: NewQueue, database: Database
) -> None:
    await set_tenant(database, order_mode="parallel")
    queue, other = await new_queue(), await new_queue()
    for _ in range(3):
        await enqueue(database)
    [known] = await take(queue, 1)
    [stray] = await take(queue, 1)  # as if its answer had never arrived
    [theirs] = await take(other, 1)
    assert await queue.release_strays([known.claim]) == 1
    found = [await states(database, claimed.message.id) for claimed in (known, stray, theirs)]
    assert found == [["processing"], ["queued"], ["processing"]]
