"""A worker frozen past its lease, in the middle of a conversation: it neither sends nor settles what it lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest
from tests import PATIENCE
from tests.harness import add_smtp, attempts, enqueue, eventually, settled

from pillarbox.queue.ledger import Ledger
from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Faults

LEASE = 2


@pytest.fixture
async def worker(database_url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = os.environ | {
        "PILLARBOX_DATABASE_URL": database_url,
        "PILLARBOX_WORKER_LEASE": f"{LEASE}s",
        "PILLARBOX_WORKER_POLL_INTERVAL": "100ms",
        "PILLARBOX_REAP_INTERVAL": "1h",  # the test itself reaps
        "PILLARBOX_LOG_LEVEL": "warning",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pillarbox", "worker", env=environment
    )
    yield process
    process.send_signal(signal.SIGCONT)
    process.terminate()
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


async def test_a_late_worker_neither_sends_nor_settles(
    database: Database, worker: asyncio.subprocess.Process
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(session: object, argument: object) -> None:
        asked.set()
        await go_on.wait()

    async with SmtpServer(Faults(data=[slowly])) as server:
        await add_smtp(database, server)
        message_id = await enqueue(database)
        await asyncio.wait_for(
            asked.wait(), PATIENCE
        )  # the server has been asked to take the content
        worker.send_signal(signal.SIGSTOP)
        reaper = Ledger(database)
        await eventually(lambda: reaper.reap(10, 0.0))
        await database.execute(
            "UPDATE pillarbox.deliveries SET next_attempt_at = now() + interval '1 hour'"
        )
        go_on.set()
        worker.send_signal(signal.SIGCONT)
        await eventually(lambda: _registered_anew(database))
        assert server.mails == []
        assert [row["verdict"] for row in await attempts(database, message_id)] == ["unknown"]

        await database.execute("UPDATE pillarbox.deliveries SET next_attempt_at = now()")
        await settled(database, message_id, "sent")
        assert len(server.mails) == 1
        assert [row["verdict"] for row in await attempts(database, message_id)] == [
            "unknown",
            "accepted",
        ]


async def _registered_anew(database: Database) -> bool:
    """The late worker has come back under a new id, and had time to settle what it thought it held."""
    return bool(
        await database.fetchval("SELECT count(*) FROM pillarbox.workers WHERE reaped_at IS NULL")
    )
