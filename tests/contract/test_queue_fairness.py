"""The contract of the queue about fair shares: priorities, tenants, retries, rate limits."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from uuid import UUID

import pytest
from tests.contract.queues import NewQueue, QueueWorker, defer, ids, send, take
from tests.contract.record import add_tenant, age_rates, claim_times, fill, make_due, set_tenant
from tests.harness import enqueue

from pillarbox.model.fairness import LARGE_QUANTUM
from pillarbox.store.database import Database

SECONDS = {"rate_per_second": 1, "rate_per_hour": 3600, "rate_per_day": 86_400}

# -- priorities


@pytest.mark.req("REQ-QUEUE-O001")
async def test_urgent_goes_before_normal_before_bulk(
    new_queue: NewQueue, database: Database
) -> None:
    """Within a tenant and across them, whatever came first."""
    await add_tenant(database, "shop")
    wanted: dict[str, set[UUID]] = defaultdict(set)
    for priority in ("bulk", "normal", "urgent"):
        for tenant in ("default", "shop"):
            wanted[priority].update(await fill(database, 2, tenant, priority))
    queue = await new_queue()
    came = [*await send(queue), *await send(queue)]
    assert set(came[:4]) == wanted["urgent"]
    assert set(came[4:8]) == wanted["normal"]
    assert set(came[8:]) == wanted["bulk"]


@pytest.mark.parametrize("room", [1, 3, 25])
async def test_bulk_still_moves_under_a_flood_of_urgent(
    new_queue: NewQueue, database: Database, room: int
) -> None:
    kinds = {
        one: kind
        for kind in ("bulk", "normal", "urgent")
        for one in await fill(database, 150, priority=kind)
    }
    queue, came = await new_queue(), Counter[str]()
    for _ in range(100 // room):
        came.update(kinds[one] for one in await send(queue, room, look=False))
    assert came["urgent"] >= 70
    assert came["normal"] >= 18
    assert came["bulk"] >= 4


# -- tenants


async def test_a_tenant_with_one_mail_does_not_wait_for_one_with_thousands(
    new_queue: NewQueue, database: Database
) -> None:
    await add_tenant(database, "small")
    await fill(database, 2000)
    queue = await new_queue()
    await send(queue, 100)
    mail = await enqueue(database, tenant="small")
    assert (await send(queue, 25))[:2].count(mail) == 1


async def test_many_waiting_tenants_are_served_in_turn(
    new_queue: NewQueue, database: Database
) -> None:
    names = [f"tenant{n}" for n in range(30)]
    whose = {}
    for name in names:
        await add_tenant(database, name)
        whose |= dict.fromkeys(await fill(database, 40, name), name)
    queue, came = await new_queue(), Counter[str]()
    for _ in range(12):
        came.update(whose[one] for one in await send(queue, 50))
    assert came.total() == 600
    assert max(came.values()) - min(came[name] for name in names) <= LARGE_QUANTUM


async def test_deferred_mails_of_one_tenant_do_not_delay_another(
    new_queue: NewQueue, database: Database
) -> None:
    await add_tenant(database, "patient")
    await fill(database, 300, "patient")
    queue = await new_queue()
    while claims := await take(queue):
        await defer(queue, claims)
    await make_due(database)
    mails = await fill(database, 10)
    came = await send(queue, 20)
    assert set(mails) <= set(came)


async def test_a_backlog_of_retries_is_worked_off_beside_a_trickle_of_new_mails(
    new_queue: NewQueue, database: Database
) -> None:
    await fill(database, 60)
    queue = await new_queue()
    await defer(queue, await take(queue))
    await make_due(database)
    fresh = await fill(database, 2)
    came = await send(queue, 20)
    assert set(fresh) <= set(came)
    while some := await send(queue, 20, look=False):  # known to be there: no new look is needed
        came += some
    assert len(came) == 62


async def test_a_survey_of_hundreds_of_lanes_misses_none(
    new_queue: NewQueue, database: Database
) -> None:
    names = [f"tenant{n}" for n in range(100)]
    lanes: dict[UUID, tuple[str, str]] = {}
    for name in names:
        await add_tenant(database, name)
        for priority in ("urgent", "normal", "bulk"):
            lanes |= dict.fromkeys(await fill(database, 2, name, priority), (name, priority))
    queue, came = await new_queue(), list[UUID]()
    while some := await send(queue):
        came += some
    assert len(came) == len(set(came)) == 600
    accepted: dict[tuple[str, str], list[UUID]] = defaultdict(list)
    left: dict[tuple[str, str], list[UUID]] = defaultdict(list)
    for order, by_lane in ((lanes, accepted), (came, left)):
        for one in order:
            by_lane[lanes[one]].append(one)
    assert accepted == left


# -- rate limits


class Virtual:
    """A clock for limits: time passes by making what was used up older. The database's own goes on, too."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.slept = 0.0
        self.left: list[tuple[float, int]] = []

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        await age_rates(self.database, seconds)

    async def note(self, some: Sequence[UUID]) -> None:
        times = await claim_times(self.database, some)
        self.left += [(at + self.slept, count) for at, count in times]

    def most_in(self, seconds: float) -> int:
        return max(
            sum(n for at, n in self.left if begin <= at < begin + seconds) for begin, _ in self.left
        )


@pytest.mark.parametrize("setting", SECONDS)
@pytest.mark.parametrize("most", [3, 50])
async def test_no_time_sees_more_than_its_limit(
    new_queue: NewQueue, database: Database, setting: str, most: int
) -> None:
    await set_tenant(database, **{setting: most})
    await fill(database, 5 * most)
    queue, clock, chance = await new_queue(), Virtual(database), random.Random(most)
    while clock.slept < 3.5 * SECONDS[setting]:
        await clock.note(await send(queue, chance.randint(1, 100)))
        await clock.sleep(chance.choice([0.01, 0.05, 0.1]) * SECONDS[setting])
    assert clock.most_in(SECONDS[setting]) <= most * 1.1 + 1
    assert sum(n for _, n in clock.left) >= 2 * most  # nor is it kept from leaving


async def test_the_queue_knows_when_more_may_leave(new_queue: NewQueue, database: Database) -> None:
    await set_tenant(database, rate_per_hour=60)
    mails = await fill(database, 20)
    queue, clock = await new_queue(), Virtual(database)
    assert await send(queue) == mails[:6]
    assert await take(queue) == []
    wait = queue.next_due()
    assert wait is not None
    assert 55 < wait <= 60
    await clock.sleep(wait - 2)
    assert await take(queue) == []
    await clock.sleep(2.1)
    assert await send(queue) == mails[6:7]


async def test_workers_keep_a_limit_together(new_queue: NewQueue, database: Database) -> None:
    await set_tenant(database, order_mode="parallel")
    await set_tenant(database, rate_per_hour=100)
    await fill(database, 60)
    queues = [await new_queue() for _ in range(6)]

    async def all_at_once() -> int:
        return sum(map(len, await asyncio.gather(*(take(queue) for queue in queues))))

    assert await all_at_once() == 10
    assert await all_at_once() == 0
    await Virtual(database).sleep(200)
    assert await all_at_once() == 5


async def test_a_limit_holds_for_its_tenant_alone(new_queue: NewQueue, database: Database) -> None:
    await add_tenant(database, "slow", rate_per_day=1)
    slow = await fill(database, 5, "slow")
    mails = await fill(database, 50)
    queue = await new_queue()
    assert set(await send(queue, 60)) | set(await send(queue, 60)) == {slow[0], *mails}


async def test_without_the_limit_mails_leave_at_once(
    new_queue: NewQueue, database: Database
) -> None:
    await set_tenant(database, rate_per_day=1)
    mails = await fill(database, 10)
    queue = await new_queue()
    assert await send(queue) == mails[:1]
    assert await take(queue) == []
    await set_tenant(database, rate_per_day=None)
    assert await send(queue) == mails[1:]


async def test_a_raised_limit_helps_at_once(new_queue: NewQueue, database: Database) -> None:
    """What was used up under the old limit would be hours of waiting under the new one."""
    await set_tenant(database, rate_per_day=1)
    mails = await fill(database, 20)
    queue = await new_queue()
    assert await send(queue) == mails[:1]
    await set_tenant(database, rate_per_day=100)
    assert await send(queue) == mails[1:11]


async def test_what_else_is_changed_does_not_forgive_what_was_used_up(
    new_queue: NewQueue, database: Database
) -> None:
    await set_tenant(database, rate_per_day=1)
    await fill(database, 5)
    queue = await new_queue()
    assert len(await send(queue)) == 1
    await set_tenant(database, rate_per_day=1, rate_per_second=5, order_mode="parallel")
    assert await send(queue) == []


async def test_under_a_limit_urgent_goes_first_and_bulk_still_moves(
    new_queue: NewQueue, database: Database
) -> None:
    await set_tenant(database, rate_per_day=1)
    lanes = {
        kind: await fill(database, 120, priority=kind) for kind in ("bulk", "normal", "urgent")
    }
    kinds = {one: kind for kind, mails in lanes.items() for one in mails}
    came = await _one_by_one(await new_queue(), Virtual(database), 120)
    got = Counter(kinds[one] for one in came)
    assert got["urgent"] > got["normal"] > 0
    assert got["urgent"] >= 60
    assert got["bulk"] > 0
    for kind in got:
        assert [one for one in came if kinds[one] == kind] == lanes[kind][: got[kind]], (
            "each lane in its order"
        )


async def _one_by_one(queue: QueueWorker, clock: Virtual, count: int) -> list[UUID]:
    came: list[UUID] = []
    while len(came) < count:
        claims = await take(queue)
        assert len(claims) == 1
        came += ids(claims)
        await clock.sleep(86_400)
        for claimed in claims:
            queue.begin(claimed)
            queue.end(claimed)
    return came
