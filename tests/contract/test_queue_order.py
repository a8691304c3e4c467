"""The contract of the queue about order: one dispatcher for each lane, and what may begin."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from uuid import UUID

import pytest
from tests import PATIENCE
from tests.contract.queues import (
    NewQueue,
    QueueWorker,
    begin,
    defer,
    give_back,
    ids,
    send,
    settle,
    take,
)
from tests.contract.record import (
    add_tenant,
    claims_blocked,
    count_deliveries,
    fill,
    seq_of_messages,
    set_tenant,
)

from pillarbox.queue.records import ClaimedMessage
from pillarbox.store.database import Database

# -- fifo: one dispatcher


async def test_a_lane_has_one_dispatcher(new_queue: NewQueue, database: Database) -> None:
    mails = await fill(database, 6)
    first, second = await new_queue(), await new_queue()
    assert await send(first, 2) == mails[:2]
    assert await send(second) == []
    assert await send(first) == mails[2:]


async def test_who_steps_aside_lets_the_next_go_on(new_queue: NewQueue, database: Database) -> None:
    mails = await fill(database, 6)
    first, second = await new_queue(), await new_queue()
    claims = await take(first, 2)
    begin(first, claims)  # in flight, not settled
    await first.step_aside()
    assert await send(second, 2) == mails[2:4]
    assert await send(first) == []
    await settle(first, claims)
    assert await send(first) == []
    assert await send(second) == mails[4:]


async def test_claims_that_have_not_begun_keep_the_lane(
    new_queue: NewQueue, database: Database
) -> None:
    mails = await fill(database, 4)
    first, second = await new_queue(), await new_queue()
    one, two = await take(first, 2)
    begin(first, [one])
    await first.step_aside()
    assert await take(second) == []
    begin(first, [two])
    await first.step_aside()
    assert await send(second) == mails[2:]


async def test_a_lane_that_gave_nothing_is_not_kept(
    new_queue: NewQueue, database: Database
) -> None:
    first, second = await new_queue(), await new_queue()
    mails = await fill(database, 2)
    assert await send(first, 2) == mails
    assert await send(first, 2, look=False) == []  # asked, and there was no more
    mails = await fill(database, 2)
    await first.step_aside()
    assert await send(second) == mails


async def test_who_retires_leaves_its_lanes(new_queue: NewQueue, database: Database) -> None:
    mails = await fill(database, 4)
    first, second = await new_queue(), await new_queue()
    assert await send(first, 2) == mails[:2]
    await first.retire()
    assert await send(second) == mails[2:]


async def test_lanes_of_a_dead_worker_move_on_with_its_lease(
    new_queue: NewQueue, database: Database
) -> None:
    mails = await fill(database, 4)
    dead, alive = await new_queue(), await new_queue()
    assert await send(dead, 2) == mails[:2]
    assert await take(alive) == []
    assert 50 < (alive.next_due() or 0) <= 60
    await dead.heartbeat(0.0)
    assert await send(alive) == mails[2:]


async def test_what_a_dead_worker_had_claimed_is_taken_back_first(
    new_queue: NewQueue, database: Database
) -> None:
    """It may be late and about to begin, not dead: nothing overtakes what it holds."""
    mails = await fill(database, 4)
    dead, alive = await new_queue(), await new_queue()
    await take(dead, 2)
    await dead.heartbeat(0.0)
    assert await take(alive) == []
    assert (alive.next_due() or 0) <= 0  # look again soon
    assert await alive.reap(100, 0.0) == 2
    assert sorted(await send(alive)) == sorted(mails)


async def test_a_late_worker_keeps_its_place(new_queue: NewQueue, database: Database) -> None:
    mails = await fill(database, 4)
    late, other = await new_queue(), await new_queue()
    claims = await take(late, 2)
    await late.heartbeat(0.0)
    assert await take(other) == []
    await late.heartbeat(60)
    begin(late, claims)
    assert ids(claims) == mails[:2]
    assert await send(late) == mails[2:]


async def test_a_late_worker_claims_nothing_from_a_lane_it_lost(
    new_queue: NewQueue, database: Database
) -> None:
    mails = await fill(database, 4)
    late, other = await new_queue(), await new_queue()
    assert await send(late, 1) == mails[:1]
    await late.heartbeat(0.0)
    assert await send(other, 1) == mails[1:2]
    await late.heartbeat(60)
    assert await send(late, look=False) == []  # it believes that the lane is still its own
    assert await send(other) == mails[2:]


async def test_lanes_move_to_a_new_worker(new_queue: NewQueue, database: Database) -> None:
    names = [f"tenant{n}" for n in range(8)]
    for name in names:
        await add_tenant(database, name)
        await fill(database, 4, name)
    first = await new_queue()
    assert len(await send(first, 8)) == 8
    second = await new_queue()
    assert await take(second) == []
    assert len(await send(first, 8)) > 0  # it sees that there are two now
    assert len(await take(second)) >= 3


async def test_a_worker_without_room_leaves_all_lanes_to_the_others(
    new_queue: NewQueue, database: Database
) -> None:
    """Also those that it never took: its share of them must not wait until it has room."""
    full, other = await new_queue(), await new_queue()
    [mail] = await fill(database, 1)
    claims = await take(full)
    assert ids(claims) == [mail]
    begin(full, claims)
    await full.step_aside()
    mails = set()
    for name in ("a", "b", "c", "d"):
        await add_tenant(database, name)
        mails.update(await fill(database, 2, name))
    assert set(await send(other)) == mails
    for name in ("a", "b", "c", "d"):
        await fill(database, 2, name)
    assert await take(full) == []  # it is back, and gets its share once the other has seen that
    await send(other, 4)
    assert len(await take(full)) == 4


# -- what was given back


async def test_nothing_overtakes_what_is_given_back(
    new_queue: NewQueue, database: Database
) -> None:
    """A mail that could not begin goes back to the queue; those claimed after it must follow it there."""
    mails = await fill(database, 6)
    queue = await new_queue()
    begun, *claims = await take(queue, 4)
    begin(queue, [begun])
    queue.give_back(claims[0])
    assert not queue.begin(claims[1])
    assert await take(queue) == []
    await give_back(queue, claims[:2])
    assert not queue.begin(claims[2])
    await give_back(queue, claims[2:])
    assert await send(queue) == mails[1:]


async def test_nor_does_what_was_being_claimed_meanwhile(
    new_queue: NewQueue, database: Database
) -> None:
    mails = await fill(database, 4)
    queue = await new_queue()
    claims = await take(queue, 2)
    async with claims_blocked(database) as one_waits:
        claiming = asyncio.create_task(take(queue, 2))
        await one_waits()
        queue.give_back(claims[0])
    later = await claiming
    assert ids(later) == mails[2:]
    assert [queue.begin(one) for one in later] == [False, False]
    await give_back(queue, [*claims, *later])
    assert await send(queue) == mails


async def test_a_lane_is_not_given_away_while_something_comes_back(
    new_queue: NewQueue, database: Database
) -> None:
    mails = await fill(database, 3)
    first, second = await new_queue(), await new_queue()
    claims = await take(first, 1)
    first.give_back(claims[0])
    await first.step_aside()
    assert await take(second) == []
    await give_back(first, claims)
    await first.step_aside()
    assert await send(second) == mails


# -- parallel, and changes of mind


async def test_workers_share_a_parallel_lane(new_queue: NewQueue, database: Database) -> None:
    await set_tenant(database, order_mode="parallel")
    mails = await fill(database, 100)
    queues = [await new_queue() for _ in range(4)]
    sent = [
        one for some in await asyncio.gather(*(send(queue, 25) for queue in queues)) for one in some
    ]
    assert sorted(sent) == sorted(mails)


async def test_the_order_can_be_changed_while_mails_wait(
    new_queue: NewQueue, database: Database
) -> None:
    mails = await fill(database, 12)
    first, second = await new_queue(), await new_queue()
    assert await send(first, 2) == mails[:2]
    await set_tenant(database, order_mode="parallel")
    sent = await send(second, 2)  # any two
    left = [mail for mail in mails[2:] if mail not in sent]
    assert len(left) == 8
    await set_tenant(database, order_mode="strict")
    assert await take(second) == []  # the first has the lane
    for mail in left[:2]:
        assert await send(first) == [mail]
    await set_tenant(database, order_mode="fifo")
    assert await send(first) == left[2:]


# -- all at once


class Race:
    """Workers that claim, begin, fail, defer, give back and step aside at random, all at the same time."""

    def __init__(self, seqs: dict[UUID, int], chance: random.Random) -> None:
        self.seqs = seqs
        self.chance = chance
        self.begun: dict[tuple[int, int], list[int]] = defaultdict(
            list
        )  # first attempts, lane by lane
        self.held: set[UUID] = set()
        self.left = len(seqs)

    async def run(self, queue: QueueWorker) -> None:
        while self.left:
            claims = await take(queue, self.chance.randint(1, 12))
            twice = self.held.intersection(ids(claims))
            assert not twice, "claimed while another worker holds it"
            self.held.update(ids(claims))
            await self.attempt(queue, claims)
            if self.chance.random() < 0.4:
                await queue.step_aside()
            await asyncio.sleep(0)

    async def attempt(self, queue: QueueWorker, claims: list[ClaimedMessage]) -> None:
        begun, back = [], []
        for claimed in claims:
            if self.chance.random() < 0.03:
                queue.give_back(claimed)
            elif queue.begin(claimed):
                if claimed.attempts[0] == 0:
                    self.begun[claimed.tenant_id, claimed.lane].append(
                        self.seqs[claimed.message.id]
                    )
                begun.append(claimed)
                continue
            back.append(claimed)
            await asyncio.sleep(0)
        await self.finish(queue, begun)
        if back:
            self.held.difference_update(ids(back))
            await give_back(queue, back)

    async def finish(self, queue: QueueWorker, claims: list[ClaimedMessage]) -> None:
        again = [one for one in claims if self.chance.random() < 0.2]
        done = [one for one in claims if one not in again]
        self.held.difference_update(ids(claims))
        if again:
            await defer(queue, again, 0)
        if done:
            await settle(queue, done)
            self.left -= len(done)


@pytest.mark.req("REQ-QUEUE-U001")
@pytest.mark.req("REQ-QUEUE-N004")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_many_workers_keep_every_lanes_order(
    new_queue: NewQueue, database: Database, seed: int
) -> None:
    for name in ("a", "b", "c", "d"):
        await add_tenant(database, name)
        for priority in ("urgent", "normal"):
            await fill(database, 40, name, priority)
    race = Race(await seq_of_messages(database), random.Random(seed))
    queues = [await new_queue() for _ in range(4)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(race.run(queue) for queue in queues))
    assert len(race.begun) == 8
    for lane, seqs in race.begun.items():
        assert seqs == sorted(seqs), lane
    assert await count_deliveries(database, "sent") == 320
