"""The first promise: nothing accepted is lost; a second send only comes from an attempt recorded as unknown."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.acceptance.cluster import LEASE, WINDOW, Cluster, cluster
from tests.conftest import server_binaries
from tests.places import short_directory

from pillarbox.store.database import FOREIGN_ERRORS
from pillarbox.store.embedded import EmbeddedPostgres

PRODUCERS, MAILS = 3, 1000
ROLLED_BACK = 0.1


@pytest.fixture
async def running() -> AsyncIterator[Cluster]:
    directory = short_directory()
    server = EmbeddedPostgres(directory / "data", server_binaries(), {"max_connections": "100"})
    try:
        async with cluster(directory, server) as one:
            yield one
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def produce(
    url: str, producer: int, chance: random.Random, committed: set[str], doubtful: set[str]
) -> None:
    """Write mails in transactions, some of which are rolled back, through every outage."""
    connection: asyncpg.Connection | None = None
    for k in range(MAILS):
        number = f"{producer}-{k}"
        while True:
            try:
                connection = connection or await asyncpg.connect(url, timeout=10)
                await write(connection, number, chance, committed, doubtful)
                break
            except FOREIGN_ERRORS:
                connection = None
                if number in doubtful:  # the COMMIT was under way: it may or may not have happened
                    break
                await asyncio.sleep(0.1)
        await asyncio.sleep(0.005)
    if connection is not None:
        await connection.close()


async def write(
    connection: asyncpg.Connection,
    number: str,
    chance: random.Random,
    committed: set[str],
    doubtful: set[str],
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    await connection.fetchval(
        """SELECT pillarbox.enqueue(sender => 'app@shop.example', "to" => ARRAY['r@mail.example'],
                                    subject => 'Hello', text => 'x', headers => $1::jsonb)""",
        json.dumps({"X-Number": number}),
    )
    if chance.random() < ROLLED_BACK:
        await transaction.rollback()
        return
    doubtful.add(number)
    await transaction.commit()
    doubtful.discard(number)
    committed.add(number)


async def havoc(one: Cluster, chance: random.Random) -> None:
    """Kill workers, crash PostgreSQL, cut connections and freeze a worker past its lease, one after another."""
    acts = [
        "kill",
        "kill",
        "kill",
        "kill",
        "crash",
        "cut",
        "freeze",
        "crash",
        "kill",
        "cut",
        "kill",
        "kill",
    ]
    chance.shuffle(acts)
    for act in acts:
        await asyncio.sleep(chance.uniform(0.2, 0.9))
        worker = chance.choice(one.workers)
        if act == "kill":
            await one.kill_worker(worker)
            await one.start_worker()
        elif act == "crash":
            await one.crash_postgres()
        elif act == "freeze":
            await one.freeze_worker(worker, LEASE + 2)
        else:
            await cut_connections(one.url)


async def cut_connections(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    )
    await connection.close()


async def drained(url: str) -> None:
    """Wait until nothing is left to do; makes deferred mails due."""
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(90):
        while await connection.fetchval(
            "SELECT count(*) FROM pillarbox.deliveries WHERE state NOT IN ('sent', 'failed')"
        ):
            await connection.execute(
                "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state = 'queued' AND attempts > 0"
            )
            await asyncio.sleep(0.2)
    await connection.close()


@pytest.mark.req("REQ-QUEUE-N001")
@pytest.mark.req("REQ-QUEUE-N005")
@pytest.mark.parametrize("seed", [1])
async def test_nothing_is_lost_whatever_crashes(running: Cluster, seed: int) -> None:
    chance = random.Random(seed)
    committed: set[str] = set()
    doubtful: set[str] = set()
    for _ in range(3):
        await running.start_worker()
    producers = [
        asyncio.create_task(
            produce(running.url, k, random.Random(seed * 100 + k), committed, doubtful)
        )
        for k in range(PRODUCERS)
    ]
    await havoc(running, chance)
    await asyncio.gather(*producers)
    await drained(running.url)
    await running.stop()

    received = running.received()
    connection = await asyncpg.connect(running.url)
    unknown = await connection.fetchval(
        "SELECT count(*) FROM pillarbox.attempts WHERE verdict = 'unknown'"
    )
    states = dict(
        await connection.fetch("SELECT state::text, count(*) FROM pillarbox.deliveries GROUP BY 1")
    )
    await connection.close()
    twice = sum(count - 1 for count in received.values())
    assert committed - set(received) == set(), "lost"
    assert set(received) - committed <= doubtful, "sent although never committed"
    assert set(states) == {"sent"}
    assert twice <= unknown <= running.kills * WINDOW
    assert len(committed) > PRODUCERS * MAILS * 0.8
