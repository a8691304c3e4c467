"""The promise about order: first attempts in the order of acceptance, whatever the workers go through."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.acceptance.crew import (
    LEASE,
    WINDOW,
    Crew,
    Lane,
    Wire,
    crew,
    dispatcher,
    drained,
    lost,
    write,
)
from tests.contract.record import add_tenant
from tests.harness import eventually

from pillarbox.store.database import Database

FIFO = [
    Lane("alpha", "normal"),
    Lane("alpha", "urgent"),
    Lane("beta", "normal"),
    Lane("beta", "bulk"),
]
STRICT, PARALLEL = Lane("gamma", "normal"), Lane("delta", "normal")
MAILS = dict.fromkeys([*FIFO, PARALLEL], 400) | {STRICT: 80}


async def produce(database: Database, lane: Lane, seconds: float) -> None:
    """Accept the mails of a lane one after another, spread over some time."""
    for n in range(MAILS[lane]):
        await write(database, lane, n)
        await asyncio.sleep(seconds / MAILS[lane])


async def havoc(workers: Crew, chance: random.Random) -> None:
    """Kill workers with -9 and start others, and freeze one past its lease."""
    acts = ["kill", "freeze", "kill", "kill"]
    chance.shuffle(acts)
    for act in acts:
        await asyncio.sleep(chance.uniform(0.3, 1.5))
        worker = chance.choice(workers.workers)
        if act == "kill":
            await workers.kill(worker)
            await workers.start()
        else:
            await workers.freeze(worker, LEASE + chance.choice([-0.2, 0.2, 1.0]))


@pytest.mark.req("REQ-QUEUE-U001")
@pytest.mark.req("REQ-QUEUE-N004")
@pytest.mark.parametrize("seed", [1])
async def test_order_survives_kills_freezes_and_a_troublesome_server(
    database: Database, database_url: str, tmp_path: Path, seed: int
) -> None:
    for tenant, order in (
        ("alpha", "fifo"),
        ("beta", "fifo"),
        ("gamma", "strict"),
        ("delta", "parallel"),
    ):
        await add_tenant(database, tenant, order)
    wire = Wire(seed)
    async with crew(database, database_url, wire, tmp_path, 3) as workers:
        producing = [asyncio.create_task(produce(database, lane, 6)) for lane in MAILS]
        await havoc(workers, random.Random(seed))
        await asyncio.gather(*producing)
        await drained(database)
    unseen = await lost(database)
    for lane, mails in MAILS.items():
        assert set(wire.first(lane)) | unseen[lane] == set(range(mails)), "every mail was tried"
    for lane in FIFO:
        assert len(unseen[lane]) < MAILS[lane] / 2
        order = [n for n in wire.first(lane) if n not in unseen[lane]]
        assert order == sorted(order), lane
    assert await workers_of(database, "alpha") > 1, "its lanes moved"
    await assert_one_at_a_time(database, wire)


async def workers_of(database: Database, tenant: str) -> int:
    return await database.fetchval(
        """SELECT count(DISTINCT a.worker) FROM pillarbox.attempts a JOIN pillarbox.messages m ON m.id = a.message_id
             JOIN pillarbox.tenants t ON t.id = m.tenant_id AND t.name = $1""",
        tenant,
    )


async def assert_one_at_a_time(database: Database, wire: Wire) -> None:
    """Of the strict lane nothing began before the mail before it was settled, attempts that were lost included."""
    began = wire.began[STRICT]
    numbers = [beginning.n for beginning in began]
    assert numbers == sorted(numbers)
    rows = await database.fetch(
        """SELECT split_part(m.sender, '.', 1)::int AS n, d.settled_at FROM pillarbox.messages m
             JOIN pillarbox.deliveries d ON d.message_id = m.id WHERE m.sender LIKE '%.gamma@%'"""
    )
    settled = {row["n"]: row["settled_at"].timestamp() for row in rows}
    for beginning in began:
        if beginning.n:
            assert settled[beginning.n - 1] <= beginning.at + 0.001


@pytest.mark.req("REQ-QUEUE-U001")
async def test_lanes_of_a_killed_dispatcher_move_on_when_its_lease_ends(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    lane, wire = Lane("default", "normal"), Wire()
    wire.faults.delay["body"] = 0.01
    async with crew(database, database_url, wire, tmp_path, 2) as workers:
        for n in range(300):
            await write(database, lane, n)
        victim = await eventually(lambda: dispatcher(database, workers, "default"))
        await eventually(lambda: _many(wire, lane, 20))
        await workers.kill(victim)
        await drained(database)
    unseen = (await lost(database))[lane]
    assert len(unseen) <= WINDOW
    order = [n for n in wire.first(lane) if n not in unseen]
    assert order == sorted(order)
    assert set(order) | unseen == set(range(300))


async def _many(wire: Wire, lane: Lane, count: int) -> bool:
    return len(wire.first(lane)) >= count


@pytest.mark.req("REQ-QUEUE-O005")
@pytest.mark.req("REQ-QUEUE-O001")
async def test_scheduled_and_urgent_mails_leave_in_time(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    wire = Wire()
    async with crew(database, database_url, wire, tmp_path, 1):
        scheduled = Lane("default", "normal")
        times = [datetime.now(UTC) + timedelta(seconds=1 + n * 0.3) for n in range(3)]
        for n, at in enumerate(times):
            await write(database, scheduled, n, send_at=at)
        await eventually(lambda: _many(wire, scheduled, 3))
        late = [
            beginning.at - times[beginning.n].timestamp() for beginning in wire.began[scheduled]
        ]
        assert min(late) >= 0

        wire.faults.delay["body"] = 0.005
        bulk, urgent = Lane("default", "bulk"), Lane("default", "urgent")
        for n in range(400):
            await write(database, bulk, n)
        await eventually(lambda: _many(wire, bulk, 20))
        await write(database, urgent, 0)
        before = len(wire.first(bulk))
        await eventually(lambda: _many(wire, urgent, 1))
        overtaken = [lane for lane, _ in wire.all].index(urgent) - 3 - before
        assert (
            overtaken <= 20 * WINDOW
        )  # what was in flight, and what left until the worker looked around again
        await drained(database)
    assert wire.first(bulk) == list(range(400))
