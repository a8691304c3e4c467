"""Whether a long queue slows itself down: claiming and settling with a million waiting mails, with
JIT, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

import asyncpg

from benchmarks import harness
from benchmarks.harness import Bench, Sample
from benchmarks.history import sent
from benchmarks.report import Report, Table, compare, number
from pillarbox.queue.dispatcher import Dispatcher
from pillarbox.queue.ledger import Ledger
from pillarbox.queue.ready_queues.postgres import PostgresReadyQueue
from pillarbox.queue.records import SettlementBatch
from pillarbox.store.database import SESSION, Database
from pillarbox.store.embedded import EmbeddedPostgres

ABOUT = """One dispatcher claims waiting mails by 100 and settles them as sent, batch by batch and
nothing in between, while a tenant that had nothing waiting gets a mail every 50 ms; in a database
in which few mails of five tenants wait, and in one in which many do. On the embedded server, and on
Debian's PostgreSQL with stock settings: as workers connect (`jit = off`), and in sessions that keep
its default (`jit = on`), as behind a pooler. Ratio: with many to with few. Wait: from the commit of
the other tenant's mail until it is claimed."""
BATCH = 100  # mails per claim and per settlement: the default window
TENANTS = 5
EVERY = 0.05  # seconds between two mails of the other tenant
GENERIC = {"plan_cache_mode": "force_generic_plan"}  # as a worker's queue has it
FILL = """
WITH mail AS MATERIALIZED (
  SELECT pillarbox._new_id() AS id, nextval('pillarbox.message_seq') AS seq, t.id AS tenant
  FROM generate_series(1, $1::int) AS i JOIN pillarbox.tenants t ON t.name = 'tenant' || i % $2::int
), messages AS (
  INSERT INTO pillarbox.messages (id, tenant_id, size, lane, created_at, class, sender, "to", subject)
  SELECT id, tenant, 4096, 1, clock_timestamp(), 'transactional', 'orders@shop.example', '{reader@mail.example}',
    'Your order' FROM mail
), contents AS (
  INSERT INTO pillarbox.contents (message_id, text) SELECT id, 'Your order was shipped.' FROM mail
)
INSERT INTO pillarbox.deliveries
  (message_id, seq, next_attempt_at, state, tenant_id, size, n, lane, role, recipient)
SELECT id, seq, clock_timestamp(), 'queued', tenant, 4096, 0, 1, 't', 'reader@mail.example' FROM mail
"""  # fmt: skip
WAITING = "SELECT count(*) FROM pillarbox.deliveries WHERE state = 'queued' AND attempts = 0"
OTHER = """
SELECT pillarbox.enqueue(
  sender => 'a@other.example', "to" => '{b@other.example}', text => 'Hi', tenant => 'other')
"""


async def run(bench: Bench) -> Report:
    few, many = bench.scale(10_000, 1_000), bench.scale(1_000_000, 20_000)
    async with AsyncExitStack() as stack:
        variants = {}
        for name, place, session in await stack.enter_async_context(_servers(bench)):
            for waiting in (few, many):
                url = await stack.enter_async_context(_queue(place, waiting))
                variants[f"{name}, {waiting:,}"] = partial(
                    _claim_and_settle,
                    bench,
                    url,
                    waiting,
                    session,
                )
        results = await bench.rounds_of("backlog", variants)
    return _report({name: runs for name, runs in results.items() if runs}, few, many)


@asynccontextmanager
async def _servers(bench: Bench) -> AsyncIterator[list[tuple[str, Bench, Mapping[str, str]]]]:
    """The servers to measure on, each with the settings of a session."""
    servers = [("embedded", bench, SESSION | GENERIC)]
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not binaries:
        bench.skipped.append("Debian's PostgreSQL: skipped, not installed (package postgresql)")
        yield servers
        return
    server = EmbeddedPostgres(bench.directory / "stock" / "data", binaries[-1])
    await asyncio.to_thread(server.start)
    try:
        async with harness.connected(server.url()) as connection:
            version = await connection.fetchval("SHOW server_version_num")
            if not await connection.fetchval("SELECT pg_jit_available()"):
                bench.skipped.append("Debian's PostgreSQL has no JIT here")
        name = f"PostgreSQL {int(version) // 10000}"
        stock = replace(bench, server=server)
        yield [
            *servers,
            (f"{name}, jit = off", stock, SESSION | GENERIC),
            (f"{name}, jit = on", stock, GENERIC),
        ]
    finally:
        await asyncio.to_thread(server.stop, "immediate")


@asynccontextmanager
async def _queue(place: Bench, waiting: int) -> AsyncIterator[str]:
    """A database in which so many mails wait; the same for all sessions of a server."""
    name = f"waiting_{waiting}"
    async with harness.connected(place.server.url()) as connection:
        exists = await connection.fetchval(
            "SELECT count(*) FROM pg_database WHERE datname = $1", name
        )
    if exists:
        yield place.server.url(name)
        return
    async with place.schema(name) as url:
        async with harness.connected(url) as connection:
            for tenant in ("other", *(f"tenant{n}" for n in range(TENANTS))):
                await connection.execute("INSERT INTO pillarbox.tenants (name) VALUES ($1)", tenant)
            task = place.progress.add_task(
                f"backlog: making {waiting:,} waiting mails", total=waiting
            )
            await _fill(connection, waiting)
            place.progress.remove_task(task)
        yield url


async def _fill(connection: asyncpg.Connection, waiting: int) -> None:
    """Let so many mails wait, with statistics as autovacuum leaves them after such an influx."""
    missing = waiting - await connection.fetchval(WAITING)
    for start in range(0, missing, 100_000):
        await connection.execute(FILL, min(100_000, missing - start), TENANTS)
    await connection.execute("VACUUM ANALYZE pillarbox.deliveries")
    await connection.execute("CHECKPOINT")


async def _claim_and_settle(
    bench: Bench,
    url: str,
    waiting: int,
    session: Mapping[str, str],
) -> Sample:
    """Claim and settle half of the smaller backlog, several times over; each time it is filled up
    before.
    """
    count = bench.scale(5_000, 500)
    done, seconds, waits = 0, 0.0, list[float]()
    async with harness.connected(url) as connection:
        for _ in range(bench.scale(4, 1)):
            await _fill(connection, waiting)
            more, took = await _run_once(url, count, session, waits)
            done, seconds = done + more, seconds + took
    p99 = harness.percentile(waits, 0.99) * 1e3
    return Sample(done / seconds, done, extra={"p50": harness.middle(waits) * 1e3, "p99": p99})


async def _run_once(
    url: str,
    count: int,
    session: Mapping[str, str],
    waits: list[float],
) -> tuple[int, float]:
    database = await Database.connect(url, least=1, most=1, session=session)
    ledger = Ledger(database)
    ready = PostgresReadyQueue(database, ledger)
    dispatcher = Dispatcher(ledger, ready)
    await dispatcher.register("benchmark", 3600)
    sent_at: dict[UUID, float] = {}
    others = asyncio.create_task(_send_others(url, sent_at))
    try:
        begun, done = time.perf_counter(), 0
        while done < count or not waits:
            if sent_at:
                ready.wake()
            claims = await dispatcher.claim(BATCH, 2**40, True, look=False)
            for claimed in claims:
                dispatcher.begin(claimed)
                if (at := sent_at.pop(claimed.message.id, None)) is not None:
                    waits.append(time.perf_counter() - at)
            await ledger.settle(SettlementBatch([sent(claimed) for claimed in claims]))
            for claimed in claims:
                dispatcher.end(claimed)
            done += len(claims)
        return done, time.perf_counter() - begun
    finally:
        others.cancel()
        await dispatcher.retire()  # else its lanes stay its own until the lease runs out
        await database.close()


async def _send_others(url: str, sent_at: dict[UUID, float]) -> None:
    async with harness.connected(url) as connection:
        while True:
            sent_at[await connection.fetchval(OTHER)] = time.perf_counter()
            await asyncio.sleep(EVERY)


def _report(results: Mapping[str, list[Sample]], few: int, many: int) -> Report:
    middle = {name: harness.median(runs) for name, runs in results.items()}
    table = Table(
        f"Claim and settle by {BATCH}, deliveries/s, beside {few:,} and {many:,} waiting; another tenant's wait in ms",
        (
            "server",
            f"{few:,}",
            f"{many:,}",
            "ratio",
            f"wait p50: {few:,}",
            f"{many:,}",
            f"p99: {few:,}",
            f"{many:,}",
        ),
    )
    findings = []
    for server in dict.fromkeys(name.rpartition(", ")[0] for name in middle):
        short, long = middle.get(f"{server}, {few:,}"), middle.get(f"{server}, {many:,}")
        if short is None or long is None:
            continue
        waits = [number(one.extra[share]) for share in ("p50", "p99") for one in (short, long)]
        table.rows.append(
            [
                server,
                number(short.rate),
                number(long.rate),
                f"{long.rate / short.rate:.2f} ×",
                *waits,
            ]
        )
        what = f"claim + settle, {server}, {many:,} waiting"
        findings.append(
            compare(
                what,
                long.rate,
                short.rate,
                f"{few:,} waiting",
                0.9,
                "deliveries/s",
            )
        )
        wait = "the same: another tenant's mail waits, p50"
        findings.append(
            compare(
                wait,
                long.extra["p50"],
                short.extra["p50"],
                f"{few:,} waiting",
                unit="ms",
            )
        )
    return Report("backlog", ABOUT, [table], findings)
