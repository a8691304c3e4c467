"""The contract of the queue about strict lanes: one mail at a time, never overtaken."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.queues import NewQueue, begin, defer, give_back, ids, send, settle, take
from tests.contract.record import cancel, fill, make_due, set_tenant
from tests.harness import enqueue, states

from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason, deferred, rejected, unknown
from pillarbox.queue.records import Settlement, SettlementBatch
from pillarbox.store.database import Database


@pytest.fixture
async def strict(database: Database) -> None:
    await set_tenant(database, order_mode="strict")


@pytest.mark.usefixtures("strict")
async def test_a_strict_lane_gives_one_at_a_time(new_queue: NewQueue, database: Database) -> None:
    mails = await fill(database, 3)
    queue = await new_queue()
    for mail in mails:
        claims = await take(queue)
        assert ids(claims) == [mail]
        begin(queue, claims)
        assert await take(queue) == []
        await settle(queue, claims)


@pytest.mark.usefixtures("strict")
async def test_a_deferred_mail_blocks_its_strict_lane_until_it_is_settled(
    new_queue: NewQueue, database: Database
) -> None:
    mails = await fill(database, 3)
    queue = await new_queue()
    await defer(queue, await take(queue), 30)
    assert await take(queue) == []
    assert 25 < (queue.next_due() or 0) <= 30
    await make_due(database)
    for _ in range(2):
        claims = await take(queue)
        assert ids(claims) == mails[:1]
        await defer(queue, claims, 0)
    assert await send(queue) == mails[:1]
    assert await send(queue) == mails[1:2]


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("end_state", ["sent", "failed", "held", "cancelled"])
async def test_whatever_ends_it_lets_a_strict_lane_go_on(
    new_queue: NewQueue, database: Database, end_state: str
) -> None:
    mails = await fill(database, 2)
    queue = await new_queue()
    claims = await take(queue)
    if end_state == "failed":
        await settle(queue, claims, state=State.FAILED, outcome=rejected(Reason.REFUSED, 550))
    elif end_state == "held":
        await settle(queue, claims, state=State.HELD, outcome=unknown(Reason.LOST, "gone"))
    elif end_state == "cancelled":
        await defer(queue, claims)
        await cancel(database, mails[0])
    else:
        await settle(queue, claims)
    assert await states(database, mails[0]) == [end_state]
    assert await send(queue) == mails[1:]


@pytest.mark.usefixtures("strict")
async def test_a_released_mail_comes_back_first(new_queue: NewQueue, database: Database) -> None:
    mails = await fill(database, 2)
    queue = await new_queue()
    await give_back(queue, await take(queue))
    urgent = await enqueue(database, priority="urgent")  # a lane of its own
    assert await send(queue) == [urgent, mails[0]]
    assert await send(queue) == mails[1:]


@pytest.mark.usefixtures("strict")
async def test_a_strict_lane_waits_for_every_recipient(
    new_queue: NewQueue, database: Database
) -> None:
    await enqueue(database, "a@x.example", "b@x.example", "c@x.example", "d@x.example")
    [following] = await fill(database, 1)
    queue = await new_queue()
    [claimed] = await take(queue)
    now = asyncio.get_running_loop().time()
    later = deferred(Reason.MAILBOX_FULL, 452)
    keys = [(claimed.message.id, n, claimed.claim) for n in claimed.recipient_numbers]
    await queue.settle(SettlementBatch([
        Settlement(*keys[0], State.SENT, later, ended=now),
        Settlement(*keys[1], State.FAILED, later, ended=now),
        Settlement(*keys[2], State.QUEUED, later, delay=0.0, ended=now),
        Settlement(*keys[3], State.QUEUED, later, delay=3600.0, ended=now),
    ]))  # fmt: skip
    queue.end(claimed)
    claims = await take(queue)
    assert [list(one.recipients) for one in claims] == [["c@x.example"]]
    await settle(queue, claims)
    assert await take(queue) == []  # the fourth is still to come
    await make_due(database)
    claims = await take(queue)
    assert [list(one.recipients) for one in claims] == [["d@x.example"]]
    await settle(queue, claims, state=State.HELD)
    assert await send(queue) == [following]


@pytest.mark.usefixtures("strict")
async def test_a_strict_lane_stays_with_its_worker_until_the_mail_has_ended(
    new_queue: NewQueue, database: Database
) -> None:
    mails = await fill(database, 2)
    first, second = await new_queue(), await new_queue()
    claims = await take(first)
    begin(first, claims)
    await first.step_aside()
    assert await take(second) == []
    await settle(first, claims)
    await first.step_aside()
    assert await send(second) == mails[1:]


@pytest.mark.usefixtures("strict")
async def test_a_strict_lane_of_a_dead_worker_sends_the_lost_mail_first(
    new_queue: NewQueue, database: Database
) -> None:
    mails = await fill(database, 2)
    dead, alive = await new_queue(), await new_queue()
    begin(dead, await take(dead))
    await dead.heartbeat(0.0)
    assert await take(alive) == []
    await alive.reap(100, 0.0)
    assert await send(alive) == mails[:1]
    assert await send(alive) == mails[1:]


async def test_what_fifo_left_deferred_comes_one_at_a_time_once_strict(
    new_queue: NewQueue, database: Database
) -> None:
    mails = await fill(database, 4)
    queue = await new_queue()
    await defer(queue, await take(queue, 3))
    await set_tenant(database, order_mode="strict")
    await make_due(database)
    came = []
    while claims := await take(queue):
        assert len(claims) == 1
        assert await take(queue) == []
        if claims[0].attempts == [1]:
            await defer(queue, claims)
            assert await take(queue) == []  # it is the one that blocks now
            await make_due(database)
        else:
            await settle(queue, claims)
            came += ids(claims)
    assert sorted(came) == sorted(mails)
