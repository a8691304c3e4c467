"""A stalled database takes nothing from live workers; a dead worker's mails come back while it is available."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pillarbox.deliver.housekeeping import Housekeeping
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.testing import SmtpServer
from tests.contract.queues import postgres_worker
from tests.contract.record import fill
from tests.harness import add_smtp, enqueue, eventually, opened, states, working

LEASE = 3.0
MAILS = 400


@contextmanager
def stalled(server: EmbeddedPostgres) -> Iterator[None]:
    """All processes of the server stand still: connections stay, and nothing answers."""
    postmaster = int((server.directory / "postmaster.pid").read_text().split()[0])
    stopped = [postmaster]
    os.kill(postmaster, signal.SIGSTOP)  # first, so that it makes no more
    stopped += [
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/stat")
        if parent_of(stat) == postmaster
    ]
    for pid in stopped[1:]:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def parent_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0


async def test_a_stall_longer_than_the_lease_makes_no_duplicates(
    stoppable: EmbeddedPostgres,
) -> None:
    """Workers with finished results in hand keep them, although every lease has run out meanwhile."""
    database = await Database.connect(stoppable.url())
    patient = {
        "worker_lease": f"{LEASE}s",
        "reap_interval": "50ms",
        "worker_poll_interval": "100ms",
    }
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(stoppable.url(), **patient), working(stoppable.url(), **patient):
            for round_ in (1, 2):
                await fill(database, MAILS)
                await server.wait_for(
                    lambda done=(round_ - 1) * MAILS + 50: len(server.mails) >= done, 60
                )
                with stalled(stoppable):
                    await asyncio.sleep(LEASE * 1.5)  # the time itself is what is tested
                await eventually(lambda: all_sent(database), 120)
        verdicts = await database.fetch("SELECT DISTINCT verdict FROM pillarbox.attempts")
    assert [row["verdict"] for row in verdicts] == ["accepted"]
    assert len(server.mails) == 2 * MAILS
    await database.close()


async def all_sent(database: Database) -> bool:
    rows = await database.fetch("SELECT state, count(*) FROM pillarbox.deliveries GROUP BY state")
    return set(Counter(dict(rows))) == {"sent"}


async def test_a_dead_worker_is_reaped_while_others_go_on(
    database: Database, database_url: str
) -> None:
    """It claimed, and was never heard of again."""
    dead = postgres_worker(database)
    await dead.register("dead", LEASE)
    message_id = await enqueue(database)
    assert len(await dead.claim(1, 2**30, True)) == 1
    async with opened(database_url, worker_lease=f"{LEASE}s", reap_interval="100ms") as app:
        stop = asyncio.Event()
        housekeeping = asyncio.create_task(
            Housekeeping(app.database, dead.ledger, app.metrics, app.settings).run(stop)
        )
        await eventually(lambda: is_queued(database, message_id), 120)
        stop.set()
        await asyncio.wait_for(housekeeping, 60)


async def is_queued(database: Database, message_id: object) -> bool:
    return await states(database, message_id) == ["queued"]  # type: ignore[arg-type]


async def test_reaping_by_hand_waits_until_it_is_safe(
    database: Database, database_url: str
) -> None:
    """Nobody has watched the database for long: a person's command does so first."""
    dead = postgres_worker(database)
    await dead.register("dead", 1.0)
    await enqueue(database)
    assert len(await dead.claim(1, 2**30, True)) == 1
    await database.execute(
        """WITH dead AS (UPDATE pillarbox.workers SET lease_until = now() - interval '1 minute')
           UPDATE pillarbox.availability SET touched_at = now() - interval '1 minute'"""
    )
    waits: list[float] = []
    async with opened(database_url, worker_lease="1s") as app:
        assert await app.housekeeping().reap_patiently(waits.append) == 1
        assert await app.housekeeping().reap_patiently(waits.append) == 0
    assert len(waits) == 1
