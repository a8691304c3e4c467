"""No token is lost and none is mailed twice: collectors killed, PostgreSQL restarted, two at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest_asyncio
from tests import PATIENCE
from tests.harness import eventually
from tests.integration.lifecycle.collector_helpers import accounts, mailed, outcomes, running, until
from tests.integration.lifecycle.lifecycle_helpers import install

from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres


async def test_two_collectors_and_five_thousand_tokens(
    database: Database, database_url: str
) -> None:
    await install(database)
    async with (
        running(database_url, "--batch-limit", "70") as one,
        running(database_url, "--batch-limit", "90") as two,
    ):
        await asyncio.gather(one.says("collecting tokens"), two.says("collecting tokens"))
        for turn in range(10):
            await accounts(database, 500, prefix=f"t{turn}-")
        await until(database, 120, mailed=5000)
        for each in (one, two):
            assert (
                '"event": "processing rows"' in each.said
                or '"event":"processing rows"' in each.said
            )
            each.signal()
            assert await each.end() == 0
    counts = await mailed(database)
    assert len(counts) == 5000
    assert set(counts.values()) == {1}


async def test_a_killed_collector_loses_nothing(database: Database, database_url: str) -> None:
    """Killed again and again, between batches and within them; the last one finishes."""
    await install(database)
    await accounts(database, 3000)
    for turn in range(5):
        async with running(database_url, "--batch-limit", "25") as one:
            await one.says("processing rows", 3 + turn)
            one.signal(signal.SIGKILL)
            await one.end()
        counts = await outcomes(database)
        assert counts.get("mailed", 0) == sum((await mailed(database)).values()), (
            "a mail for each that is settled"
        )
    assert counts["waiting"] > 0, "the test itself: killed before the end"
    async with running(database_url, "--once", "--batch-limit", "500") as last:
        assert await last.end(120) == 0
    counts = await mailed(database)
    assert len(counts) == 3000
    assert set(counts.values()) == {1}


@pytest_asyncio.fixture
async def store(stoppable: EmbeddedPostgres) -> AsyncIterator[Database]:
    database = await Database.connect(stoppable.url())
    await install(database)
    yield database
    await database.close()


async def test_postgresql_restarted(stoppable: EmbeddedPostgres, store: Database) -> None:
    """It reconnects by itself, hears notifications again, and goes on where it was."""
    poll = {"PILLARBOX_WORKER_POLL_INTERVAL": "1h"}  # only notifications wake it
    async with running(stoppable.url(), "--batch-limit", "20", **poll) as one:
        await accounts(store, 2000)
        await one.says("processing rows", 3)
        await asyncio.to_thread(stoppable.stop, "immediate")
        await one.says("task failed; it will be retried")
        await asyncio.to_thread(stoppable.start)
        await eventually(lambda: all_mailed(store, 2000), 120)
        await eventually(lambda: listening(store), PATIENCE)
        await accounts(store, 5, prefix="later")
        await eventually(lambda: all_mailed(store, 2005), PATIENCE)
        one.signal()
        assert await one.end() == 0
    counts = await mailed(store)
    assert len(counts) == 2005
    assert set(counts.values()) == {1}


async def listening(database: Database) -> bool:
    return bool(
        await database.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
    )


async def all_mailed(database: Database, count: int) -> bool:
    try:
        return (await outcomes(database)).get("mailed") == count
    except Exception:  # the pool's connections are of before
        return False


async def test_a_terminated_connection(database: Database, database_url: str) -> None:
    """The original's own test of reconnecting: pg_terminate_backend on all of its connections."""
    await install(database)
    poll = {"PILLARBOX_WORKER_POLL_INTERVAL": "1h"}
    async with running(database_url, **poll) as one:
        await eventually(lambda: listening(database))
        await database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE 'LISTEN%'"
        )
        await accounts(database, 2)
        await until(database, mailed=2)
        await eventually(lambda: listening(database))
        await accounts(database, 2, prefix="later")
        await until(database, mailed=4)
        one.signal()
        assert await one.end() == 0
