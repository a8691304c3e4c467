"""Who waits for whom: single mails beside a tenant with a great many, and bulk beside a flood of
urgent mails.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from bisect import bisect
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pillarbox
from benchmarks import chart, harness, installation, mails
from benchmarks.harness import Bench, Sample, middle, percentile
from benchmarks.report import FOLDER, Finding, Report, Table, at_most, number, within
from pillarbox.store import providers
from pillarbox.store.database import Database
from pillarbox.testing.sink import read_records

ABOUT = """One tenant has a great many mails waiting, in the normal or in the bulk lane. Meanwhile a
second tenant enqueues a normal mail now and then, and a third an urgent one, each in a transaction
of its own at random moments. One worker with 10 connections, the default, or 50; with two
providers, the third tenant's mails go to the second. Waiting counts from the return of the enqueue
call until the sink has the whole mail. `sent before it`: mails of the great many that the sink got
meanwhile; it must be a batch at most, for each single mail: what a worker holds (connections × 10).
`delayed by`: mails of the great many that leave in the time by which it waits longer than on an
idle system, at the same percentile. `plain FIFO` is computed, not measured: the mails that still
waited at that moment, at the rate at which they left.

![Waiting times beside a tenant with a great many mails](fairness.svg)

Then one tenant has a great many urgent mails waiting and another has bulk mails: what of the bulk
leaves while urgent ones still wait."""
TENANTS = ("crowd", "second", "third")
NORMAL, URGENT = "another tenant's mail", "another tenant's urgent mail"
IDLE = "on an idle system"
LANES = {"normal": 1, "bulk": 2}
RATE = 20  # of the single mails per second, for each of the two tenants
PIPELINE = 10  # of a worker with default settings: mails for each connection
URGENT_LANE, BULK_LANE = 0, 2
WAITING = """SELECT EXISTS (SELECT FROM pillarbox.deliveries
  WHERE tenant_id = {} AND lane = {} AND state = 'queued' AND attempts = 0)"""
# What of the bulk left while urgent mails still waited, and the longest that none did.
FLOODED = """WITH urgent AS (SELECT count(*) AS count, min(settled_at) AS first, max(settled_at) AS last
  FROM pillarbox.deliveries WHERE lane = 0
), bulk AS (SELECT settled_at, settled_at - lag(settled_at, 1, urgent.first) OVER (ORDER BY settled_at) AS gap
  FROM pillarbox.deliveries, urgent WHERE lane = 2 AND settled_at <= urgent.last
)
SELECT extract(epoch FROM last - first)::float8 AS seconds, urgent.count AS urgent,
  (SELECT count(*) FROM bulk) AS bulk, (SELECT extract(epoch FROM max(gap))::float8 FROM bulk) AS gap FROM urgent"""


class Wait(NamedTuple):
    """One single mail."""

    at: float  # seconds after the first of the great many left
    took: float  # milliseconds
    before: int  # mails of the great many that left meanwhile
    fifo: float  # milliseconds that it would have taken behind all that waited


@dataclass(frozen=True, slots=True)
class Setup:
    """One worker, and what it sends through."""

    connections: int = 10
    providers: int = 1

    @property
    def batch(self) -> int:
        return self.connections * PIPELINE

    def __str__(self) -> str:
        return (
            f"1 × {self.connections}, {'one provider' if self.providers == 1 else 'two providers'}"
        )


USUAL = Setup()
SETUPS = (USUAL, Setup(providers=2), Setup(connections=50), Setup(connections=50, providers=2))


@dataclass(slots=True)
class Run:
    waits: dict[str, list[Wait]]
    rate: float = 0.0  # at which the great many left


async def run(bench: Bench) -> Report:
    crowd = bench.scale(100_000, 10_000)
    async with bench.schema("fairness") as url:
        tenants = await _tenants(url)
        variants: dict[str, Any] = {
            IDLE: partial(
                _beside,
                bench,
                url,
                tenants,
                0,
                1,
                USUAL,
            )
        }
        for where, (lane, setup) in _variants(crowd).items():
            variants[where] = partial(
                _beside,
                bench,
                url,
                tenants,
                crowd,
                lane,
                setup,
            )
        variants["flood"] = partial(
            _flood,
            bench,
            url,
            tenants,
            crowd // 2,
        )
        results = await bench.rounds_of("fairness", variants)
    floods = results.pop("flood")
    return _report(bench, crowd, results, harness.median(floods))


def _variants(crowd: int) -> dict[str, tuple[int, Setup]]:
    """The lane of the great many, and the worker: every worker beside normal mails, the usual one
    beside bulk.
    """
    found = {_beside_name(crowd, "bulk", USUAL): (LANES["bulk"], USUAL)}
    return found | {
        _beside_name(crowd, "normal", setup): (LANES["normal"], setup) for setup in SETUPS
    }


def _beside_name(crowd: int, lane: str, setup: Setup) -> str:
    return f"beside {crowd:,} {lane} ones ({setup})"


# --- reporting


def _report(
    bench: Bench,
    crowd: int,
    results: Mapping[str, Sequence[Run]],
    flood: Sample,
) -> Report:
    columns = (
        "which",
        "mails",
        "p50 ms",
        "p95",
        "p99",
        "longest",
        "sent before it: p50",
        "p99",
        "most",
        "plain FIFO: p50 ms",
    )
    table = Table("COMMIT → sink has the mail", columns)
    findings: list[Finding] = []
    for where, runs in results.items():
        for who in (NORMAL, URGENT):
            waits = [wait for one in runs for wait in one.waits[who]]
            table.rows.append([f"{who}, {where}", *_cells(waits, where != IDLE)])
            if where != IDLE and waits:
                idle = [wait.took for one in results[IDLE] for wait in one.waits[who]]
                findings += _findings(f"{who}, {where}", waits, idle, _variants(crowd)[where][1])
    findings.append(
        Finding(
            "bulk while urgent floods",
            flood.rate,
            "mails/s",
            flood.extra["all"],
            "all that left",
        )
    )
    if bench.write:
        (FOLDER / "fairness.svg").write_text(_drawing(crowd, results))
    return Report(
        "fairness",
        ABOUT,
        [table, _flooded(flood)],
        findings,
        _notes(results, flood),
    )


def _notes(results: Mapping[str, Sequence[Run]], flood: Sample) -> list[str]:
    rates = {
        name: middle([one.rate for one in runs]) for name, runs in results.items() if name != IDLE
    }
    told = ", ".join(f"{number(rate)} ({name})" for name, rate in rates.items())
    share = flood.rate / flood.extra["all"]
    return [
        f"The great many left at, in mails/s: {told}.",
        f"Bulk was {share:.1%} of what left while urgent mails still waited.",
    ]


def _cells(waits: Sequence[Wait], beside: bool) -> list[str]:
    if not waits:
        return ["0", *["–"] * 8]
    took, before = [wait.took for wait in waits], [float(wait.before) for wait in waits]
    cells = [
        str(len(waits)),
        *(number(percentile(took, share)) for share in (0.5, 0.95, 0.99)),
        number(max(took)),
    ]
    if not beside:
        return [*cells, "–", "–", "–", "–"]
    overtaken = [*(number(percentile(before, share)) for share in (0.5, 0.99)), number(max(before))]
    return [*cells, *overtaken, number(percentile([wait.fifo for wait in waits], 0.5))]


def _findings(
    what: str,
    waits: Sequence[Wait],
    idle: Sequence[float],
    setup: Setup,
) -> list[Finding]:
    took, fifo = [wait.took for wait in waits], [wait.fifo for wait in waits]
    before = float(max(wait.before for wait in waits))
    rate = sum(wait.before for wait in waits) / sum(took)  # per millisecond
    delay = (percentile(took, 0.99) - percentile(idle, 0.99)) * rate
    return [
        Finding(
            f"{what}, p50",
            percentile(took, 0.5),
            "ms",
            percentile(fifo, 0.5),
            "plain FIFO, computed",
        ),
        Finding(
            f"{what}, p95",
            percentile(took, 0.95),
            "ms",
            percentile(idle, 0.95),
            "idle",
        ),
        within(f"{what}: delayed by, p99", max(delay, 0.0), "mails", setup.batch),
        at_most(f"{what}: sent before it, at most", before, "mails", setup.batch),
    ]


def _flooded(flood: Sample) -> Table:
    columns = ("", "mails", "mails/s", "longest without one, ms")
    seconds, urgent = flood.extra["seconds"], flood.extra["urgent"]
    table = Table("While urgent mails flood", columns)
    table.rows.append(["urgent", f"{urgent:,.0f}", number(urgent / seconds), "–"])
    table.rows.append(
        [
            "bulk",
            f"{flood.extra['bulk']:,.0f}",
            number(flood.rate),
            number(flood.extra["gap"] * 1e3),
        ]
    )
    return table


def _drawing(crowd: int, results: Mapping[str, Sequence[Run]]) -> str:
    """The last round beside the crowd in the same lane; waiting over time, as each mail saw it."""
    one = results[_beside_name(crowd, "normal", USUAL)][-1]
    idle = percentile([wait.took for run in results[IDLE] for wait in run.waits[NORMAL]], 0.5)
    points = {"normal": [(wait.at, wait.took) for wait in one.waits[NORMAL]]}
    points["urgent"] = [(wait.at, wait.took) for wait in one.waits[URGENT]]
    fifo = sorted((wait.at, wait.fifo) for waits in one.waits.values() for wait in waits)
    labels = chart.Labels(
        f"Waiting beside a tenant with {crowd:,} mails in the normal lane",
        f"COMMIT → SMTP sink, one worker; one machine, {os.cpu_count()} cores, PostgreSQL durable",
        "seconds since the great many began to leave",
        "milliseconds (logarithmic)",
        "mails of other tenants",
    )
    return chart.point_chart(labels, points, {"FIFO, computed": fifo}, {"normal, idle (p50)": idle})


# --- measuring


async def _tenants(url: str) -> list[int]:
    async with harness.connected(url) as connection:
        await mails.stock(connection, mails.samples())
        query = "INSERT INTO pillarbox.tenants (name) SELECT unnest($1::text[]) RETURNING id"
        return [row["id"] for row in await connection.fetch(query, TENANTS)]


async def _beside(
    bench: Bench,
    url: str,
    tenants: Sequence[int],
    crowd: int,
    lane: int,
    setup: Setup,
) -> Run:
    """Single mails, while `crowd` mails of another tenant leave; without a crowd for a while."""
    record = bench.directory / "fairness-arrivals"
    record.unlink(missing_ok=True)
    await harness.empty(url)
    async with AsyncExitStack() as stack:
        watch = await stack.enter_async_context(harness.connected(url))
        await mails.fill(watch, crowd, tenants[0], lane)
        to = await stack.enter_async_context(harness.sink(record))
        await harness.add_provider(url, to.port)
        await _route(url, to.port, tenants[2], setup)
        given = {"worker_concurrency": setup.connections, "worker_pipeline": PIPELINE}
        worker = await stack.enter_async_context(harness.worker(bench, url, **given))
        await harness.until(watch, "SELECT count(*) FROM pillarbox.workers", 1, worker)
        sent: dict[str, dict[str, float]] = {NORMAL: {}, URGENT: {}}
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(
                _singles(
                    url,
                    TENANTS[1],
                    "normal",
                    sent[NORMAL],
                    enough,
                )
            )
            group.create_task(
                _singles(
                    url,
                    TENANTS[2],
                    "urgent",
                    sent[URGENT],
                    enough,
                )
            )
            await asyncio.sleep(0 if crowd else bench.scale(10, 3))
            await harness.until(watch, WAITING.format(tenants[0], lane), False, worker)
            enough.set()
        return _judged(crowd, sent, *await _arrivals(record, crowd + sum(map(len, sent.values()))))


async def _route(
    url: str,
    port: int,
    tenant: int,
    setup: Setup,
) -> None:
    """With two providers, the tenant's mails go to the second: another name for the same sink."""
    database = await Database.connect(url)
    try:
        await database.execute("DELETE FROM pillarbox.routes")
        if setup.providers == 2:
            given = {"host": "127.0.0.1", "port": port, "tls": "none"}
            number = await providers.add_provider(
                database,
                lambda: None,
                "second",
                "smtp",
                given,
            )  # type: ignore[arg-type,return-value]
            query = "INSERT INTO pillarbox.routes (name, place, tenant_id, providers) VALUES ('second', 1, $1, $2)"
            await database.execute(query, tenant, [number])
    finally:
        await database.close()


async def _singles(
    url: str,
    tenant: str,
    priority: str,
    sent: dict[str, float],
    enough: asyncio.Event,
) -> None:
    """A mail now and then; notes when each was committed."""
    samples = mails.samples(20)
    async with harness.connected(url) as connection:
        due = time.monotonic()
        while not enough.is_set():
            key = f"{random.getrandbits(64):016x}"
            more = {"headers": {"X-Number": key}, "tenant": tenant, "priority": priority}
            await pillarbox.enqueue(connection, mails.given([random.choice(samples)], **more)[0])
            sent[key] = time.monotonic()
            due += random.expovariate(RATE)
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _arrivals(record: Path, count: int) -> tuple[list[float], dict[str, float]]:
    """When each of the great many came, and when each single mail did."""
    await installation.received(record, count)
    came = read_records(record)
    return sorted(one.at for one in came if not one.headers[0]), {
        one.headers[0]: one.at for one in came
    }


def _judged(
    crowd: int,
    sent: Mapping[str, Mapping[str, float]],
    many: list[float],
    came: Mapping[str, float],
) -> Run:
    """What each single mail had to wait; those that came while none of the great many waited do not
    count.
    """
    rate, first, last = 0.0, 0.0, float("inf")
    if crowd:
        first, last = many[0], many[-1]
        rate = crowd / (last - first)
    waits = {
        who: [_wait(many, rate, at, came[key]) for key, at in keys.items() if first <= at <= last]
        for who, keys in sent.items()
    }
    return Run(waits, rate)


def _wait(
    many: Sequence[float],
    rate: float,
    sent: float,
    came: float,
) -> Wait:
    took = (came - sent) * 1e3
    if not many:
        return Wait(0.0, took, 0, 0.0)
    gone = bisect(many, sent)
    return Wait(sent - many[0], took, bisect(many, came) - gone, (len(many) - gone) / rate * 1e3)


async def _flood(
    bench: Bench,
    url: str,
    tenants: Sequence[int],
    crowd: int,
) -> Sample:
    """Twice as many urgent mails of one tenant as bulk mails of another, all waiting; the rate is
    the bulk's.
    """
    await harness.empty(url)
    async with harness.connected(url) as connection:
        await mails.fill(connection, crowd // 2, tenants[1], BULK_LANE)
        await mails.fill(connection, crowd, tenants[0], URGENT_LANE)
        sample = await harness.drain(bench, url, crowd + crowd // 2)
        found = dict(await connection.fetchrow(FLOODED))
    extra = {name: float(value or 0.0) for name, value in found.items()}
    extra["all"] = (extra["bulk"] + extra["urgent"]) / extra["seconds"]
    return Sample(extra["bulk"] / extra["seconds"], sample.count, sample.cpu, extra)
