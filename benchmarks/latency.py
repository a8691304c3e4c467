"""From COMMIT to the SMTP server: idle, under load, and beside a transaction that stays open."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiosmtplib
import asyncpg

import pillarbox
from benchmarks import harness, mails
from benchmarks.harness import Bench, middle, percentile
from benchmarks.report import Report, Table, number, within
from pillarbox.testing.sink import read_records

ABOUT = """One mail per transaction, at random moments around a steady rate whatever became of the
mails before; one worker with default settings. The time counts from the return of the enqueue call,
which is when the application knows of its COMMIT, until the sink has the whole mail; `from the
call` counts from before the call and so includes the enqueue itself. `open` means that another
transaction enqueued a mail and stays open all the while. The reference is the least such a path can
do: NOTIFY, its callback, one send on an open aiosmtplib connection, nothing stored."""
HEADER = "X-Number"
RATES = {"idle": 10, "20/s": 20, "100/s": 100, "500/s": 500}
CONNECTIONS = 20  # of the application
SHARES = (0.5, 0.95, 0.99)
REFERENCE = "NOTIFY + aiosmtplib, idle"
SAMPLES = mails.samples(100)


@dataclass(slots=True)
class Times:
    """Milliseconds of each mail, from the return of the call and from the call."""

    returned: list[float]
    called: list[float]


async def run(bench: Bench) -> Report:
    seconds = bench.scale(10, 2)
    async with bench.schema("latency") as url, _working(bench, url) as record:
        idle = bench.scale(20, 4)
        variants = {REFERENCE: partial(_bare, bench, idle)}
        for name, rate in RATES.items():
            length = idle if name == "idle" else seconds
            variants[name] = partial(
                _phase,
                url,
                record,
                rate,
                length,
            )
            variants[f"{name}, open"] = partial(
                _phase,
                url,
                record,
                rate,
                seconds,
                open_too=True,
            )
        results = await bench.rounds_of("latency", variants)
    return _report(results)


def _report(results: Mapping[str, Sequence[Times]]) -> Report:
    columns = (
        "mails",
        "p50 ms",
        "p95",
        "p99",
        "p50 of reference",
        "from the call: p50",
        "p95",
        "p99",
    )
    table = Table("COMMIT → sink has the mail", columns)
    bare = _middle([times.returned for times in results[REFERENCE]])[0]
    findings = []
    for name, rounds in results.items():
        since = _middle([times.returned for times in rounds])
        called = _middle([times.called for times in rounds])
        ratio = f"{since[0] / bare:.1f} ×"
        table.rows.append([name, *map(number, since), ratio, *map(number, called)])
        if name == "idle":
            findings.append(within("latency, idle, p50", since[0], "ms", 5))
            findings.append(within("latency, idle, p99", since[2], "ms", 25))
        elif name != REFERENCE:
            findings.append(within(f"latency, {name}, p99", since[2], "ms", 50))
    return Report("latency", ABOUT, [table], findings)


def _middle(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The median of the rounds' percentiles."""
    return [middle([percentile(times, share) for times in rounds]) for share in SHARES]


@asynccontextmanager
async def _working(bench: Bench, url: str) -> AsyncIterator[Path]:
    """A worker and a sink that notes when each mail came; gives the file."""
    record = bench.directory / "arrivals"
    async with harness.sink(record, HEADER) as to:
        await harness.add_provider(url, to.port)
        async with harness.worker(bench, url) as one, harness.connected(url) as watch:
            await harness.until(watch, "SELECT count(*) FROM pillarbox.workers", 1, one)
            await _phase(url, record, 50, 1)  # connections open, plans made
            yield record


async def _phase(
    url: str,
    record: Path,
    rate: int,
    seconds: int,
    open_too: bool = False,
) -> Times:
    count = rate * seconds
    sent: dict[str, tuple[float, float]] = {}
    pool = await asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    try:
        async with (
            _open_transaction(url) if open_too else nullcontext(),
            asyncio.TaskGroup() as group,
        ):
            begun = time.monotonic()
            for n in range(count):
                # On schedule, not when the one before is done: waiting would hide what slowness
                # costs.
                at = begun + (n + random.random()) / rate
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                group.create_task(_one(pool, sent))
        arrived = await _arrivals(record, sent)
    finally:
        await pool.close()
    pairs = [(arrived[key], *sent[key]) for key in sent]
    return Times(
        [(at - after) * 1e3 for at, _, after in pairs],
        [(at - before) * 1e3 for at, before, _ in pairs],
    )


async def _one(pool: asyncpg.Pool, sent: dict[str, tuple[float, float]]) -> None:
    key = f"{random.getrandbits(64):016x}"
    mail = mails.given([random.choice(SAMPLES)], headers={HEADER: key})[0]
    async with pool.acquire() as connection:
        before = time.monotonic()
        await pillarbox.enqueue(connection, mail)
        sent[key] = (before, time.monotonic())


@asynccontextmanager
async def _open_transaction(url: str) -> AsyncIterator[None]:
    """Another transaction that has enqueued a mail and does not end."""
    async with harness.connected(url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await pillarbox.enqueue(connection, mails.given(SAMPLES[:1])[0])
        yield
        await transaction.rollback()


async def _arrivals(record: Path, sent: Mapping[str, object]) -> dict[str, float]:
    """When each came; a mail that never does ends the benchmark."""
    deadline = time.monotonic() + 60
    while True:
        came = {one.headers[0]: one.at for one in read_records(record)}
        if sent.keys() <= came.keys():
            return came
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(sent.keys() - came.keys())} mails never arrived")
        await asyncio.sleep(0.1)


async def _bare(bench: Bench, seconds: int) -> Times:
    """NOTIFY → callback → one send on an open connection."""
    record = bench.directory / "bare-arrivals"
    record.unlink(missing_ok=True)
    content = mails.finished(SAMPLES[:1])[0]
    times: list[float] = []
    async with AsyncExitStack() as stack:
        to = await stack.enter_async_context(harness.sink(record, HEADER))
        speaker = await stack.enter_async_context(harness.connected(bench.server.url()))
        ear = await stack.enter_async_context(harness.connected(bench.server.url()))
        client = await stack.enter_async_context(
            aiosmtplib.SMTP(hostname="127.0.0.1", port=to.port, start_tls=False)
        )
        heard: asyncio.Queue[str] = asyncio.Queue()
        await ear.add_listener("bare", lambda *event: heard.put_nowait(event[3]))
        for n in range(seconds * RATES["idle"]):
            await asyncio.sleep(1 / RATES["idle"])
            await speaker.execute(f"NOTIFY bare, '{n}'")
            told = time.monotonic()
            key = await heard.get()
            await client.sendmail(
                "a@shop.example", ["b@mail.example"], f"{HEADER}: {key}\r\n".encode() + content
            )
            times.append((read_records(record)[-1].at - told) * 1e3)
    return Times(times, times)
