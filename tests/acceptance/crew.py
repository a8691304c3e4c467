"""Worker processes on a test's database, and a server that writes down in which order they begin."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests import PATIENCE
from tests.harness import add_smtp, eventually

from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Drop, Extensions, Faults

# Small numbers, so that seconds hold many leases.
LEASE, REAP, POLL = 2.0, 0.3, 0.3
WINDOW = 10


class Lane(NamedTuple):
    tenant: str
    priority: str


class Beginning(NamedTuple):
    """MAIL was said for the nth mail of a lane."""

    at: float  # seconds since the epoch
    n: int


class Wire:
    """What the server saw. Each mail says in its sender which it is; trouble comes by chance, if asked for."""

    def __init__(self, seed: int | None = None) -> None:
        self.began: dict[Lane, list[Beginning]] = defaultdict(list)
        self.all: list[tuple[Lane, int]] = []
        self._chance = random.Random(seed)
        self._trouble = seed is not None
        self.faults = Faults(mail=self._mail, rcpt=self._rcpt, body=self._body)

    def first(self, lane: Lane) -> list[int]:
        """The mails of a lane in the order in which they first began."""
        return list(dict.fromkeys(beginning.n for beginning in self.began[lane]))

    def _roll(self) -> float:
        return self._chance.random() if self._trouble else 1.0

    async def _mail(self, session: Any, argument: str) -> Any:
        n, priority, tenant = argument.partition("<")[2].partition("@")[0].split(".")
        lane = Lane(tenant, priority)
        self.began[lane].append(Beginning(time.time(), int(n)))
        self.all.append((lane, int(n)))
        roll = self._roll()
        if roll < 0.02:
            return Drop(reset=roll < 0.01)
        return "451 4.3.2 try later" if roll < 0.05 else None

    async def _rcpt(self, session: Any, argument: str) -> Any:
        roll = self._roll()
        return "450 4.2.1 try later" if roll < 0.04 else "550 5.1.1 never" if roll < 0.07 else None

    async def _body(self, session: Any, argument: str) -> Any:
        roll = self._roll()
        if roll < 0.02:
            await asyncio.sleep(0.15)  # long enough for a full worker to step aside
        return Drop(stored=roll < 0.03) if 0.02 <= roll < 0.04 else None


class Crew:
    """The workers of a test, each with one connection: what it begins is seen in that order."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self.log = log
        self.workers: list[asyncio.subprocess.Process] = []

    async def start(self, **settings: str) -> asyncio.subprocess.Process:
        usual = {
            "DATABASE_URL": self.url, "WORKER_LEASE": f"{LEASE}s", "WORKER_CONCURRENCY": "1",
            "WORKER_PIPELINE": str(WINDOW), "REAP_INTERVAL": f"{REAP}s", "WORKER_POLL_INTERVAL": f"{POLL}s",
            "LOG_LEVEL": "warning",
        }  # fmt: skip
        environment = os.environ | {
            f"PILLARBOX_{name}": value for name, value in (usual | settings).items()
        }
        with self.log.open("ab") as log:
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "pillarbox", "worker", env=environment, stdout=log, stderr=log
            )
        self.workers.append(worker)
        return worker

    async def kill(self, worker: asyncio.subprocess.Process) -> None:
        worker.kill()
        await worker.wait()
        self.workers.remove(worker)

    async def freeze(self, worker: asyncio.subprocess.Process, seconds: float) -> None:
        """Stop it past its lease, and let it wake up late."""
        worker.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)  # the time itself is what is tested
        worker.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            await worker.wait()
        print(self.log.read_text()[-4000:])  # shown when the test fails


@asynccontextmanager
async def crew(
    database: Database, url: str, wire: Wire, directory: Path, count: int
) -> AsyncIterator[Crew]:
    """So many workers, ready, that send to a server which reads each command when it comes."""
    async with SmtpServer(wire.faults, Extensions(pipelining=False)) as server:
        await add_smtp(database, server)
        one = Crew(url, directory / "workers.log")
        try:
            await asyncio.gather(*(one.start() for _ in range(count)))
            await eventually(lambda: _alive(database, count), PATIENCE)
            yield one
        finally:
            await one.end()


async def _alive(database: Database, count: int) -> bool:
    alive = "SELECT count(*) FROM pillarbox.workers WHERE reaped_at IS NULL AND lease_until > now()"
    return bool(await database.fetchval(alive) >= count)


async def dispatcher(
    database: Database, crew: Crew, tenant: str
) -> asyncio.subprocess.Process | None:
    """The process that dispatches the tenant's normal lane."""
    name = await database.fetchval(
        """SELECT w.name FROM pillarbox.lanes l JOIN pillarbox.tenants t ON t.id = l.tenant_id AND t.name = $1
             JOIN pillarbox.workers w ON w.id = l.worker WHERE l.lane = 1""",
        tenant,
    )
    pids = {str(worker.pid): worker for worker in crew.workers}
    return pids.get(name.rpartition(":")[2]) if name else None


async def write(database: Database, lane: Lane, n: int, **arguments: Any) -> None:
    """Accept the nth mail of a lane."""
    given = {
        "sender": f"{n}.{lane.priority}.{lane.tenant}@shop.example", "to": ["r@x.example"], "subject": "x", "text": "x",
        "tenant": lane.tenant, "priority": lane.priority,
    } | arguments  # fmt: skip
    names = ", ".join(f'"{name}" => ${place}' for place, name in enumerate(given, 1))
    await database.execute(f"SELECT pillarbox.enqueue({names})", *given.values())


async def drained(database: Database, seconds: float = PATIENCE) -> None:
    """Wait until nothing is left to do; makes deferred mails due."""

    async def done() -> bool:
        await database.execute(
            "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state = 'queued' AND next_attempt_at > now()"
        )
        await asyncio.sleep(0.1)
        left = "SELECT count(*) FROM pillarbox.deliveries WHERE state NOT IN ('sent', 'failed')"
        return not await database.fetchval(left)

    await eventually(done, seconds)


async def lost(database: Database) -> dict[Lane, set[int]]:
    """Mails whose first attempt nobody saw, because its worker was killed or frozen."""
    rows = await database.fetch(
        """SELECT m.sender FROM pillarbox.messages m CROSS JOIN LATERAL (
             SELECT verdict, provider_id FROM pillarbox.attempts WHERE message_id = m.id ORDER BY claim LIMIT 1) a
           WHERE a.verdict = 'unknown' AND a.provider_id IS NULL"""
    )
    found: dict[Lane, set[int]] = defaultdict(set)
    for row in rows:
        n, priority, tenant = row["sender"].partition("@")[0].split(".")
        found[Lane(tenant, priority)].add(int(n))
    return found
