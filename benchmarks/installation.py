"""The way in: Pillarbox's processes by role, and those who send to them (smtp-source, and our own
`load`).
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import harness
from benchmarks.harness import PATIENCE, Bench, Process, SinkProcess, Skipped
from pillarbox.model.access import Scope
from pillarbox.store import access
from pillarbox.store.database import Database
from pillarbox.testing.sink import read_records

SMTP_SOURCE = Path("/usr/sbin/smtp-source")
SESSIONS = 50
OCTETS = 4096  # of a mail of smtp-source
TOGETHER = {"worker": "up"}  # one process does it all; it counts as a worker
# `up` without its worker: `serve` takes no mail by SMTP without TLS and a login.
APART = {"front door": "up", "worker": "serve --roles worker"}
FRONT = {"front door": "up"}
_place = re.compile(r"\s*(http|smtp)\s.*127\.0\.0\.1:(\d+)").match


@dataclass(slots=True)
class Installation:
    """Processes that run, by what they are, and their ports by protocol."""

    bench: Bench
    crew: dict[str, Process] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def spent(self, **others: Process) -> dict[str, float]:
        """CPU seconds so far, by kind of process."""
        own = {kind: one.cpu for kind, one in self.crew.items()}
        return (
            own
            | {"PostgreSQL": self.bench.postgres_cpu()}
            | {kind: one.cpu for kind, one in others.items()}
        )


@asynccontextmanager
async def running(
    bench: Bench,
    url: str,
    commands: Mapping[str, str],
    to: SinkProcess | None = None,
) -> AsyncIterator[Installation]:
    """An empty installation with default settings, which delivers to the sink; ready when all of it
    is.
    """
    await harness.empty(url)
    if to:
        await harness.add_provider(url, to.port)
    running = Installation(bench)
    # Loopback without TLS and login, as the development listener is: ciphers are not what is
    # compared.
    given = {"http": "127.0.0.1:0", "smtp": "127.0.0.1:0", "development": "on"}
    async with AsyncExitStack() as stack, harness.connected(url) as watch:
        for kind, command in commands.items():
            delivers = {"worker_enabled": "false" if kind == "front door" else "true"}
            child = await stack.enter_async_context(
                harness.pillarbox(
                    bench,
                    url,
                    *command.split(),
                    **given,
                    **delivers,
                )
            )
            running.crew[kind] = child
            running.ports |= await _ports(child)
        if "worker" in commands:
            await harness.until(
                watch, "SELECT count(*) FROM pillarbox.workers", 1, running.crew["worker"]
            )
        yield running


async def _ports(child: Process) -> dict[str, int]:
    """Where it listens, as it tells in its first lines."""
    found = {}
    while not (line := await child.line(60)).startswith("stop"):
        if place := _place(line):
            found[place[1]] = int(place[2])
    return found


async def key(url: str) -> str:
    """A new API key of the tenant `default`."""
    database = await Database.connect(url)
    try:
        _, token = await access.add_key(database, "default", "benchmark", [Scope.SEND])
        return token.reveal()
    finally:
        await database.close()


# --- smtp-source


async def smtp_source(
    port: int,
    count: int,
    *,
    keep: bool,
    sessions: int = SESSIONS,
) -> float:
    """Let Postfix's smtp-source send mails until each is answered; returns its CPU seconds.

    With `keep` each session sends its mails over one connection, else each mail comes over its own.
    """
    if not SMTP_SOURCE.exists():
        raise Skipped(f"{SMTP_SOURCE} is not installed (Debian: apt-get install postfix)")
    command = (str(SMTP_SOURCE), *(["-d"] if keep else []), "-s", str(sessions), "-m", str(count), "-l", str(OCTETS),
               "-f", "orders@shop.example", "-t", "reader@mail.example", f"127.0.0.1:{port}")  # fmt: skip
    before = _ended_children()
    async with harness.process(*command) as source:
        code = await asyncio.wait_for(source.child.wait(), PATIENCE)
    if code:
        raise RuntimeError(f"smtp-source gave up with exit code {code}")
    return _ended_children() - before


def _ended_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def received(record: Path, count: int) -> float:
    """Wait until the sink has them all; returns when the last came."""
    deadline = time.monotonic() + PATIENCE
    while record.read_bytes().count(b"\n") < count:
        if time.monotonic() > deadline:
            raise Skipped("it did not deliver everything")
        await asyncio.sleep(0.2)
    return max(one.at for one in read_records(record))


# --- load


class Timed(NamedTuple):
    """A request: its number, when it was to be made, and when it was answered."""

    number: int
    due: float
    answered: float

    @property
    def took(self) -> float:
        """Milliseconds."""
        return (self.answered - self.due) * 1e3


class Load:
    """A `benchmarks.load`, connected."""

    def __init__(self, child: Process, out: Path) -> None:
        self.child, self._out = child, out

    async def closed(self, count: int) -> list[Timed]:
        """So many requests, each connection's next when its last is answered."""
        return await self._run(count=count)

    async def open(self, rate: float, seconds: float) -> list[Timed]:
        """Requests on schedule, whatever became of those before."""
        return await self._run(rate=rate, count=int(rate * seconds))

    async def _run(self, **asked: Any) -> list[Timed]:
        self.child.tell(json.dumps(asked))
        told = json.loads(await self.child.line())
        if told["refused"]:
            raise RuntimeError(
                f"{told['refused']} of {asked['count']} requests were refused: {told['why']}"
            )
        return [Timed(*row) for row in json.loads(self._out.read_text())]


@asynccontextmanager
async def load(
    bench: Bench,
    protocol: str,
    port: int,
    requests: Sequence[tuple[bytes, bytes]],
) -> AsyncIterator[Load]:
    """Somebody who sends: each request is what comes before and after its number."""
    given, out = bench.directory / "requests.json", bench.directory / "answers.json"
    given.write_text(json.dumps([[part.decode("latin-1") for part in one] for one in requests]))
    command = (
        sys.executable,
        "-m",
        "benchmarks.load",
        protocol,
        str(port),
        str(SESSIONS),
        str(given),
        str(out),
    )
    async with harness.process(*command) as child:
        await child.line(60)
        yield Load(child, out)
