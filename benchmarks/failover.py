"""What mails feel when a provider fails under load, and that none is lost or sent twice."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple

import asyncpg

import pillarbox
from benchmarks import chart, harness, mails, twins
from benchmarks.harness import Bench, Process, middle, percentile
from benchmarks.report import FOLDER, Finding, Report, Table, number, within
from benchmarks.twins import TwinProcess

RATE = 500  # mails per second
CONNECTIONS = 50  # ten, the default, would carry no more than 500 mails a second at this latency
TOGETHER = 10  # in one transaction
BIN = 0.5  # seconds for which a P95 is taken
LIMIT = 5.0  # seconds after the breaker opened
NORMAL = 2.0  # times the highest P95 before: those before differ by less
CALM = 100.0  # milliseconds that are normal in any case: the second provider need not be as quick as the first
STEADY = 4  # half seconds in a row that must be normal
MOSTLY = 0.9  # and this part of all that follow: a checkpoint of PostgreSQL is no failover
WARMING = 2.0  # seconds at the start that say nothing: plans, connections
ABOUT = f"""{RATE} mails of 4 KB a second, on schedule whatever became of those before, {TOGETHER}
in a transaction → one worker with {CONNECTIONS} connections → a twin of SendGrid; a twin of SES is
the next provider. Each takes {twins.LATENCY * 1e3:.0f} ms for an answer and is a process of its
own. After a while the first one answers 503, is killed, or takes mails and answers nobody: either
it has lost them, or (`stored`) it sends them all the same. Latency counts from COMMIT until a twin
has the mail, whichever is first, and P95 is of the mails committed within half a second. Normal is
at most {NORMAL:g} × the highest P95 before it failed, or {CALM:.0f} ms, for {STEADY * BIN:g} s and
for {MOSTLY:.0%} of the time after. `lost`: mails that no twin ever got. `twice`: those that came
more than once; each must have an attempt that is recorded as unknown.

![Latency while a provider fails](failover.svg)"""
# How the first provider fails: its dials; killed without any.
TROUBLES: Mapping[str, dict[str, object]] = {
    "answers 503": {"status": 503, "latency": twins.LATENCY},
    "is killed": {},
    "hangs": {"hang": True},
    "hangs, stored": {"hang": True, "stored": True},
}
COLUMNS = ("the first provider", "mails", "usual P95 ms", "worst P95", "longest", "breaker open after s",
           "normal again s later", "lost", "unknown", "twice", "twice, not unknown")  # fmt: skip
OPENED = "SELECT min(at) FROM pillarbox.provider_events WHERE provider_id = $1 AND kind = 'opened'"
UNKNOWN = "SELECT DISTINCT message_id::text FROM pillarbox.attempts WHERE verdict = 'unknown'"


class Bin(NamedTuple):
    """Half a second of mails."""

    at: float  # seconds after the first mail, of its end
    p95: float  # milliseconds


@dataclass(slots=True)
class Run:
    mails: int
    bins: list[Bin]
    longest: float  # milliseconds
    failed: float  # seconds after the first mail
    opened: float | None
    lost: int
    unknown: int
    twice: int
    unexplained: int  # of those that came twice

    @property
    def before(self) -> list[float]:
        """P95 while all was well. The last half second is not of them: it may hold mails whose end
        is unknown.
        """
        return [one.p95 for one in self.bins if WARMING < one.at <= self.failed - BIN]

    @property
    def worst(self) -> float:
        return max(one.p95 for one in self.bins if one.at > self.failed - BIN)

    @property
    def normal_after(self) -> float | None:
        """Seconds from the breaker's opening until P95 is normal again, and stays so; None: never."""
        if self.opened is None:
            return None
        most = max(NORMAL * max(self.before), CALM)
        after = [one for one in self.bins if one.at > self.failed]
        for place in range(len(after) - STEADY + 1):
            normal = [one.p95 <= most for one in after[place:]]
            if all(normal[:STEADY]) and sum(normal) >= MOSTLY * len(normal):
                return max(0.0, after[place].at - BIN - self.opened)
        return None


async def run(bench: Bench) -> Report:
    async with bench.schema("failover") as url:
        variants = {name: partial(_fail, bench, url, dials) for name, dials in TROUBLES.items()}
        rounds, bench.rounds = bench.rounds, 1  # these take long
        try:
            results = await bench.rounds_of("failover", variants)
        finally:
            bench.rounds = rounds
    return _report(bench, {name: runs[0] for name, runs in results.items()})


# --- reporting


def _report(bench: Bench, runs: Mapping[str, Run]) -> Report:
    table = Table(f"{RATE} mails a second; the first of two providers fails", COLUMNS)
    findings: list[Finding] = []
    for name, one in runs.items():
        opened = None if one.opened is None else one.opened - one.failed
        times = [number(middle(one.before)), number(one.worst), number(one.longest)]
        times += [_seconds(opened), _seconds(one.normal_after)]
        counts = [str(count) for count in (one.lost, one.unknown, one.twice, one.unexplained)]
        table.rows.append([name, f"{one.mails:,}", *times, *counts])
        findings += _findings(name, one)
    if bench.write:
        (FOLDER / "failover.svg").write_text(_drawing(runs))
    return Report(
        "failover",
        ABOUT,
        [table],
        findings,
        ["One run each."],
    )


def _seconds(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:.2f}"


def _findings(name: str, one: Run) -> list[Finding]:
    after, what = one.normal_after, f"a provider {name}: P95 normal again after the breaker opened"
    watched = one.bins[-1].at - (one.opened or one.failed)
    never = Finding(
        f"{what} (never seen)",
        watched,
        "s",
        LIMIT,
        "limit",
        f"< {LIMIT:g} s",
        met=False,
    )
    return [
        never if after is None else within(what, after, "s", LIMIT),
        Finding(
            f"the same: mails lost of {one.mails:,}",
            one.lost,
            "mails",
            target="0",
            met=not one.lost,
        ),
        Finding(
            "the same: sent twice, not unknown",
            one.unexplained,
            "mails",
            target="0",
            met=not one.unexplained,
        ),
    ]


def _drawing(runs: Mapping[str, Run]) -> str:
    curves = {name: [(one.at - BIN / 2, one.p95) for one in run.bins] for name, run in runs.items()}
    marks = {"it fails": middle([one.failed for one in runs.values()])} | _openings(runs)
    labels = chart.Labels(
        f"{RATE} mails a second while the first of two providers fails",
        f"COMMIT → twin, P95 of each half second; one machine, {os.cpu_count()} cores, PostgreSQL durable",
        "seconds since the first mail",
        "milliseconds (logarithmic)",
        "the first provider",
    )
    usual = {"usual P95": middle([p95 for one in runs.values() for p95 in one.before])}
    return chart.point_chart(
        labels,
        {},
        curves,
        usual,
        marks,
    )


def _openings(runs: Mapping[str, Run]) -> dict[str, float]:
    """When breakers opened; those within the same half second are one mark."""
    found = sorted((one.opened, name) for name, one in runs.items() if one.opened is not None)
    groups: list[list[tuple[float, str]]] = []
    for moment in found:
        if groups and moment[0] - groups[-1][0][0] < BIN:
            groups[-1].append(moment)
        else:
            groups.append([moment])
    return {
        f"breaker opens: {'; '.join(name for _, name in group)}": group[0][0] for group in groups
    }


# --- measuring


async def _fail(bench: Bench, url: str, dials: Mapping[str, object]) -> Run:
    calm, after = bench.scale(10, 5), bench.scale(20, 12)
    await twins.forget(url)
    async with AsyncExitStack() as stack:
        watch = await stack.enter_async_context(harness.connected(url))
        both = [await stack.enter_async_context(_twin(bench, kind)) for kind in ("sendgrid", "ses")]
        numbers = await twins.use(url, *both, timeout=bench.scale(30, 8))
        settings = twins.SETTINGS | {"worker_concurrency": CONNECTIONS}
        worker = await stack.enter_async_context(harness.worker(bench, url, **settings))
        await harness.until(watch, "SELECT count(*) FROM pillarbox.workers", 1, worker)
        begun = time.monotonic()
        load = asyncio.create_task(_send(url, begun, (calm + after) * RATE))
        await asyncio.sleep(calm)
        failed = await both[0].dial(**dials) if dials else _killed(both[0].child)
        sent = await load
        await harness.until(watch, f"SELECT {harness.UNFINISHED}", False, worker)
        opened = await _monotonic(watch, await watch.fetchval(OPENED, numbers[0]))
        unknown = {row[0] for row in await watch.fetch(UNKNOWN)}
    return _judged(
        both,
        sent,
        unknown,
        begun,
        failed,
        opened,
    )


def _twin(bench: Bench, kind: str) -> AbstractAsyncContextManager[TwinProcess]:
    return twins.twin(kind, record=bench.directory / f"failover-{kind}")


def _killed(child: Process) -> float:
    child.kill()
    return time.monotonic()


async def _send(url: str, begun: float, count: int) -> dict[str, float]:
    """Mails on schedule, each transaction at its time; when each mail was committed."""
    samples = mails.given(mails.samples())
    sent: dict[str, float] = {}
    async with harness.connected(url) as connection:
        for start in range(0, count, TOGETHER):
            await asyncio.sleep(max(0.0, begun + start / RATE - time.monotonic()))
            some = [samples[n % len(samples)] for n in range(start, start + TOGETHER)]
            async with connection.transaction():
                made = await pillarbox.enqueue_many(connection, some)
            now = time.monotonic()
            sent.update((str(one), now) for one in made)
    return sent


async def _monotonic(watch: asyncpg.Connection, at: datetime | None) -> float | None:
    """A moment of PostgreSQL's clock by ours."""
    if at is None:
        return None
    ago = await watch.fetchval(
        "SELECT extract(epoch FROM clock_timestamp() - $1::timestamptz)::float8", at
    )
    return time.monotonic() - float(ago)


def _judged(
    both: Sequence[TwinProcess],
    sent: Mapping[str, float],
    unknown: set[str],
    begun: float,
    failed: float,
    opened: float | None,
) -> Run:
    came: dict[str, list[float]] = {}
    for record in (record for one in both for record in one.records()):
        came.setdefault(record.message_uuid, []).append(record.at)
    took = {one: (min(came[one]) - at) * 1e3 for one, at in sent.items() if one in came}
    bins: dict[int, list[float]] = {}
    for one, milliseconds in took.items():
        bins.setdefault(int((sent[one] - begun) / BIN), []).append(milliseconds)
    twice = {one for one, times in came.items() if len(times) > 1}
    return Run(
        mails=len(sent),
        bins=[
            Bin((place + 1) * BIN, percentile(some, 0.95)) for place, some in sorted(bins.items())
        ],
        longest=max(took.values()),
        failed=failed - begun,
        opened=None if opened is None else opened - begun,
        lost=len(sent.keys() - came.keys()),
        unknown=len(unknown),
        twice=len(twice),
        unexplained=len(twice - unknown),
    )
