"""A whole installation in processes that can be killed: PostgreSQL, a recording sink, workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests import PATIENCE
from tests.harness import eventually

from pillarbox.store import providers
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.migrations import migrate
from pillarbox.testing.sink import read_records

# Small numbers, so that a minute holds many crashes.
LEASE = 3
CONCURRENCY, PIPELINE = 4, 5
WINDOW = CONCURRENCY * PIPELINE


@dataclass
class Cluster:
    """What is running; `kills` counts every end that leaves a window of mails in the dark."""

    directory: Path
    server: EmbeddedPostgres
    record: Path
    workers: list[asyncio.subprocess.Process] = field(default_factory=list)
    kills: int = 0

    @property
    def url(self) -> str:
        return self.server.url()

    async def start_worker(self) -> asyncio.subprocess.Process:
        environment = os.environ | {
            "PILLARBOX_DATABASE_URL": self.url,
            "PILLARBOX_WORKER_LEASE": f"{LEASE}s",
            "PILLARBOX_WORKER_CONCURRENCY": str(CONCURRENCY),
            "PILLARBOX_WORKER_PIPELINE": str(PIPELINE),
            "PILLARBOX_REAP_INTERVAL": "500ms",
            "PILLARBOX_WORKER_POLL_INTERVAL": "500ms",
            "PILLARBOX_LOG_LEVEL": "warning",
        }
        with (self.directory / "workers.log").open("ab") as log:
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "pillarbox", "worker", env=environment, stdout=log, stderr=log
            )
        self.workers.append(worker)
        return worker

    async def kill_worker(self, worker: asyncio.subprocess.Process) -> None:
        worker.kill()
        await worker.wait()
        self.workers.remove(worker)
        self.kills += 1

    async def freeze_worker(self, worker: asyncio.subprocess.Process, seconds: float) -> None:
        """Stop it past its lease and let it wake up late."""
        worker.send_signal(signal.SIGSTOP)
        self.kills += 1
        await asyncio.sleep(seconds)  # the time itself is what is tested
        worker.send_signal(signal.SIGCONT)

    async def crash_postgres(self) -> None:
        await asyncio.to_thread(self.server.stop, "immediate")
        await asyncio.to_thread(self.server.start)

    def received(self) -> Counter[str]:
        """How often each mail arrived, by its X-Number."""
        return Counter(record.headers[0] for record in read_records(self.record))

    async def stop(self) -> None:
        """Ask every worker to drain and go; those just started first get to the point where they listen."""
        await self._all_registered()
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            assert await asyncio.wait_for(worker.wait(), PATIENCE) == 0, (
                "a stopped worker exits with 0"
            )
        self.workers.clear()

    async def _all_registered(self) -> None:
        database = await Database.connect(self.url)
        pids = {str(worker.pid) for worker in self.workers}

        async def there() -> bool:
            names = await database.fetch(
                "SELECT name FROM pillarbox.workers WHERE reaped_at IS NULL"
            )
            return pids <= {row["name"].rpartition(":")[2] for row in names}

        await eventually(there, PATIENCE)
        await database.close()


@asynccontextmanager
async def cluster(directory: Path, server: EmbeddedPostgres) -> AsyncIterator[Cluster]:
    """PostgreSQL with fsync, one provider that points at a sink which records before it answers."""
    record = directory / "received"
    sink = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pillarbox.testing.sink", "--port", "0", "--out", str(record), "--record", "X-Number",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    one = Cluster(directory, server, record)
    try:
        assert sink.stdout
        port = int((await sink.stdout.readline()).split()[-1].rpartition(b":")[2])
        await asyncio.to_thread(server.start)
        await _prepare(server.url(), port)
        yield one
    finally:
        await _kill([*one.workers, sink])
        await asyncio.to_thread(server.stop, "immediate")
        with contextlib.suppress(FileNotFoundError):
            print((directory / "workers.log").read_text()[-5000:])  # shown when the test fails


async def _prepare(url: str, port: int) -> None:
    database = await Database.connect(url)
    async with database.connection() as connection:
        await migrate(connection)
    given = {"host": "127.0.0.1", "port": port, "tls": "none"}
    await providers.add_provider(database, lambda: None, "sink", "smtp", given)
    await database.close()


async def _kill(processes: list[asyncio.subprocess.Process]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
