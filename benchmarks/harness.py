"""What every benchmark needs: PostgreSQL, a sink and workers as processes, CPU accounts, rounds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import psutil

from pillarbox.store import providers
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.migrations import migrate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

ROOT = Path(__file__).parent.parent
# As a small server would be set up; durable, because losing mails quickly is no feat.
SERVER_OPTIONS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "max_connections": "200",
}
TABLES = ("messages", "contents", "deliveries", "attempts", "conversations", "events", "workers")
# A whole drain at a hundredth of the expected rate: whatever takes longer hangs.
PATIENCE = 1200.0


class Skipped(Exception):
    """This cannot be measured here; the text says why."""


@dataclass(slots=True)
class Sample:
    """One measured run: how many per second, and CPU seconds by kind of process."""

    rate: float
    count: int = 0
    cpu: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)

    def per_mail(self, kind: str) -> float:
        """Microseconds of CPU per mail."""
        return self.cpu.get(kind, 0.0) / max(self.count, 1) * 1e6


def median(samples: Sequence[Sample]) -> Sample:
    """The middle run by rate, whole: its CPU belongs to its rate."""
    return sorted(samples, key=lambda sample: sample.rate)[(len(samples) - 1) // 2]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


@dataclass(slots=True)
class Bench:
    """The stage on which benchmarks play."""

    directory: Path
    server: EmbeddedPostgres
    console: Console
    progress: Progress
    rounds: int
    quick: bool
    write: bool  # whether files of results are to be written
    skipped: list[str] = field(default_factory=list)
    version: str = ""

    def scale(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    async def rounds_of(
        self, name: str, variants: Mapping[str, Callable[[], Awaitable[Any]]]
    ) -> dict[str, list[Any]]:
        """Run the variants in turns, so that slow drifts of the machine meet them all alike."""
        results: dict[str, list[Any]] = {variant: [] for variant in variants}
        task = self.progress.add_task(name, total=self.rounds * len(variants))
        for turn in range(self.rounds):
            for variant, run in variants.items():
                if variant in results:
                    self.progress.update(
                        task, description=f"{name}: {variant} ({turn + 1} of {self.rounds})"
                    )
                    await self._one(results, variant, run)
                self.progress.advance(task)
        self.progress.remove_task(task)
        return results

    async def _one(
        self, results: dict[str, list[Any]], variant: str, run: Callable[[], Awaitable[Any]]
    ) -> None:
        try:
            results[variant].append(await run())
        except Skipped as skipped:
            del results[variant]
            self.skipped.append(f"{variant}: skipped, {skipped}")
            self.console.print(f"[yellow]{variant}: skipped, {skipped}")

    @asynccontextmanager
    async def schema(self, name: str) -> AsyncIterator[str]:
        """A database of its own with our tables; dropped at the end. Gives its URL."""
        async with connected(self.server.url()) as admin:
            await admin.execute(f"CREATE DATABASE {name}")
            try:
                async with connected(self.server.url(name)) as connection:
                    await migrate(connection)
                yield self.server.url(name)
            finally:
                await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def postgres_cpu(self) -> float:
        """CPU seconds of the server since it started."""
        return tree_cpu(int((self.server.directory / "postmaster.pid").read_text().split()[0]))


@asynccontextmanager
async def stage(
    console: Console,
    progress: Progress,
    rounds: int,
    quick: bool,
    write: bool,
) -> AsyncIterator[Bench]:
    """PostgreSQL in a temporary directory, gone with everything in it at the end."""
    directory = Path(tempfile.mkdtemp(prefix="pillarbox-bench-"))
    directory.chmod(0o711)  # as root PostgreSQL has a uid of its own, which has to pass
    server = EmbeddedPostgres(directory / "postgres", options=SERVER_OPTIONS)
    try:
        await asyncio.to_thread(server.start)
        bench = Bench(
            directory,
            server,
            console,
            progress,
            rounds,
            quick,
            write,
        )
        async with connected(server.url()) as connection:
            bench.version = await connection.fetchval("SHOW server_version")
        yield bench
    finally:
        server.stop("immediate")
        shutil.rmtree(directory, ignore_errors=True)


# --- processes


def tree_cpu(pid: int) -> float:
    """CPU seconds of a process and all it started: those alive, and those that ended."""
    try:
        root = psutil.Process(pid)
        times = root.cpu_times()
        ended = times.children_user + times.children_system
        return ended + sum(map(_cpu, [root, *root.children(recursive=True)]))
    except psutil.NoSuchProcess:
        return 0.0


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


class Process:
    """A child that ends with us, in a session of its own: Ctrl-C is for us, and we stop it in
    order.
    """

    def __init__(self, child: asyncio.subprocess.Process, log: Path | None) -> None:
        self.child = child
        self.pid = child.pid
        self._log = log

    @classmethod
    async def start(cls, *command: str, log: Path | None = None, **options: Any) -> Process:
        options = {
            "stdin": asyncio.subprocess.PIPE,
            "stdout": asyncio.subprocess.PIPE,
            "cwd": ROOT,
        } | options
        with contextlib.ExitStack() as stack:
            options["stderr"] = stack.enter_context(log.open("ab")) if log else None
            child = await asyncio.create_subprocess_exec(
                *command, start_new_session=True, **options
            )
        return cls(child, log)

    @property
    def cpu(self) -> float:
        """CPU seconds so far, its children's too."""
        return tree_cpu(self.pid)

    @property
    def peak(self) -> float:
        """The most memory it ever had resident, in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6

    def last_words(self) -> str:
        lines: list[str] = []
        if self._log:
            lines = self._log.read_text(errors="replace").splitlines()
        if not lines:
            return f"exit code {self.child.returncode}"
        return lines[-1]

    def tell(self, line: str = "") -> None:
        assert self.child.stdin
        self.child.stdin.write(f"{line}\n".encode())

    async def line(self, patience: float = PATIENCE) -> str:
        assert self.child.stdout
        read = await asyncio.wait_for(self.child.stdout.readline(), patience)
        if not read:
            await self.child.wait()
            raise RuntimeError(f"a process ended early: {self.last_words()}")
        return read.decode().strip()

    async def stop(self, patience: float = 30) -> None:
        """SIGTERM; SIGKILL for the whole session when that does not help."""
        if self.child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.child.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.child.wait(), patience)
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


@asynccontextmanager
async def process(*command: str, **options: Any) -> AsyncIterator[Process]:
    child = await Process.start(*command, **options)
    try:
        yield child
    finally:
        await child.stop()


class SinkProcess:
    """Where the mails go; `record` is a file of what came when."""

    def __init__(self, child: Process, port: int, record: Path | None) -> None:
        self.child, self.port, self.record = child, port, record

    async def total(self) -> int:
        """Stop it; returns how many mails it accepted."""
        self.child.child.terminate()
        return int(await self.child.line(30))


@asynccontextmanager
async def sink(record: Path | None = None, header: str = "X-Number") -> AsyncIterator[SinkProcess]:
    command = [sys.executable, "-m", "pillarbox.testing.sink", "--port", "0"]
    if record:
        command += ["--out", str(record), "--record", header]
    async with process(*command) as child:
        yield SinkProcess(child, int((await child.line(30)).rpartition(":")[2]), record)


async def add_provider(url: str, port: int) -> None:
    """The sink as the only provider."""
    database = await Database.connect(url)
    try:
        await database.execute("DELETE FROM pillarbox.providers")
        given = {"host": "127.0.0.1", "port": port, "tls": "none"}
        await providers.add_provider(
            database,
            lambda: None,
            "sink",
            "smtp",
            given,
        )  # type: ignore[arg-type,return-value]
    finally:
        await database.close()


@asynccontextmanager
async def worker(bench: Bench, url: str, **settings: Any) -> AsyncIterator[Process]:
    """One `pillarbox worker`."""
    async with pillarbox(bench, url, "worker", **settings) as child:
        yield child


@asynccontextmanager
async def pillarbox(
    bench: Bench, url: str, *arguments: str, **settings: Any
) -> AsyncIterator[Process]:
    """A command of ours that stays, with JSON logs in a file."""
    given = {"database_url": url, "log_format": "json", "log_level": "info"} | settings
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)
    }
    environment |= {f"PILLARBOX_{name.upper()}": str(value) for name, value in given.items()}
    command = [sys.executable, "-m", "pillarbox", *arguments]
    log = bench.directory / f"{arguments[0]}.log"
    async with process(*command, log=log, env=environment, cwd=bench.directory) as child:
        yield child


FOREIGN = (
    "PILLARBOX_",
    "EMAIL_WORKER_",
    "SMTP_",
)  # settings of whoever runs this are not to be measured
# In three parts, so that each uses its own small index however many finished ones there are.
UNFINISHED = " OR ".join(
    f"EXISTS (SELECT FROM pillarbox.deliveries WHERE {which})"
    for which in (
        "state = 'queued' AND attempts = 0",
        "state = 'queued' AND attempts > 0",
        "state = 'processing'",
    )
)


async def empty(url: str) -> None:
    """Forget every mail, and begin with a calm server."""
    async with connected(url) as connection:
        await connection.execute(f"TRUNCATE {', '.join(f'pillarbox.{table}' for table in TABLES)}")
        await connection.execute("CHECKPOINT")


async def drain(
    bench: Bench,
    url: str,
    count: int,
    workers: int = 1,
    **settings: Any,
) -> Sample:
    """Let workers deliver the `count` mails that wait in `url` to a sink."""
    async with sink() as to:
        await add_provider(url, to.port)
        sample = await drain_into(
            bench,
            url,
            to.child,
            count,
            workers,
            **settings,
        )
        if (arrived := await to.total()) != count:
            bench.console.print(f"[red]{count} mails were sent, {arrived} arrived")
    return sample


async def drain_into(
    bench: Bench,
    url: str,
    to: Process,
    count: int,
    workers: int = 1,
    **settings: Any,
) -> Sample:
    """Let workers deliver the `count` mails that wait in `url`, from the moment all of them are
    ready.
    """
    async with AsyncExitStack() as stack:
        watch = await stack.enter_async_context(connected(url))
        gate = watch.transaction()
        await gate.start()
        await watch.execute(
            "LOCK TABLE pillarbox.deliveries IN SHARE ROW EXCLUSIVE MODE"
        )  # claims wait
        crew = [
            await stack.enter_async_context(worker(bench, url, **settings)) for _ in range(workers)
        ]
        await until(watch, "SELECT count(*) FROM pillarbox.workers", workers, *crew)
        before = _spent(bench, crew, to)
        begun = await watch.fetchval("SELECT clock_timestamp()")
        await gate.commit()
        await until(watch, f"SELECT {UNFINISHED}", False, *crew)
        ended = await watch.fetchval("SELECT max(settled_at) FROM pillarbox.deliveries")
        cpu = {kind: spent - before[kind] for kind, spent in _spent(bench, crew, to).items()}
        peak = max(one.peak for one in crew)
        for one in crew:
            await one.stop()
    return Sample(count / (ended - begun).total_seconds(), count, cpu, {"peak": peak})


def _spent(bench: Bench, crew: Sequence[Process], to: Process) -> dict[str, float]:
    return {
        "worker": sum(one.cpu for one in crew),
        "PostgreSQL": bench.postgres_cpu(),
        "sink": to.cpu,
    }


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url, command_timeout=PATIENCE)
    try:
        yield connection
    finally:
        connection.terminate()


async def until(watch: asyncpg.Connection, query: str, wanted: object, *crew: Process) -> None:
    """Wait until the query gives what is wanted; RuntimeError when one of those who work for it has
    ended.
    """
    deadline = time.monotonic() + PATIENCE
    while await watch.fetchval(query) != wanted:
        if ended := [one for one in crew if one.child.returncode is not None]:
            raise RuntimeError(f"a worker ended early: {ended[0].last_words()}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"never became {wanted}: {query}")
        await asyncio.sleep(0.1)
