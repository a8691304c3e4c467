"""SMTP in: how fast mails are accepted durably, and how fast they come out again; beside Postfix
doing the same.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from benchmarks import harness, installation
from benchmarks.harness import Bench, Sample, Skipped
from benchmarks.peers import postfix
from benchmarks.report import Finding, Report, Table, compare, number, number_or_dash

ABOUT = f"""`smtp-source` of Debian's Postfix sends mails of 4 KB in {installation.SESSIONS}
sessions, with a connection for each mail (as it does unless told otherwise) or with one for each
session. Accepting: Pillarbox (`up` without its worker, one process) commits to PostgreSQL before it
answers, Postfix syncs each mail into its hold queue; the clock runs until the last answer. End to
end: the same mails, accepted and relayed to an SMTP sink, until the last is there; Pillarbox with
default settings as one process (`up`) and as two (`up` without its worker, and `serve --roles
worker`), Postfix set up as wide as it goes. All write a log line per mail. Sending to the sink
itself, which stores nothing, is the limit of the load. CPU of `up` and of a relaying Postfix counts
as worker."""
EACH, KEPT = "a connection per mail", "connections kept"
LIMIT, HELD, OURS = "sink, stores nothing", "Postfix, hold queue", "pillarbox"
RELAY, UP, ROLES = "Postfix, relaying", "pillarbox, one process", "pillarbox, two processes"
KINDS = ("front door", "worker", "PostgreSQL", "sink", "client")
COLUMNS = (
    "who, how",
    "mails/s",
    "ratio to Postfix",
    "µs CPU: front door",
    "worker",
    "PostgreSQL",
    "sink",
    "client",
)


async def run(bench: Bench) -> Report:
    count = bench.scale(20_000, 1_000)
    async with bench.schema("submission") as url:
        variants: dict[str, Callable[[], Awaitable[Sample]]] = {}
        for how, keep in ((EACH, False), (KEPT, True)):
            variants |= {
                f"{LIMIT}, {how}": partial(_limit, count, keep),
                f"{HELD}, {how}": partial(postfix.hold, bench, count, keep),
                f"{OURS}, {how}": partial(
                    _accept,
                    bench,
                    url,
                    count,
                    keep,
                ),
                f"{RELAY}, {how}": partial(
                    postfix.relay,
                    bench,
                    count,
                    installation.SESSIONS,
                    keep,
                ),
                f"{UP}, {how}": partial(
                    _relay,
                    bench,
                    url,
                    count,
                    keep,
                    installation.TOGETHER,
                ),
                f"{ROLES}, {how}": partial(
                    _relay,
                    bench,
                    url,
                    count,
                    keep,
                    installation.APART,
                ),
            }
        results = await bench.rounds_of("submission", variants)
    return _report({name: harness.median(runs) for name, runs in results.items()})


def _report(middle: Mapping[str, Sample]) -> Report:
    accepting = _table("SMTP in → durable", middle, HELD, (LIMIT, HELD, OURS))
    relaying = _table("SMTP in → durable → SMTP out", middle, RELAY, (RELAY, UP, ROLES))
    findings = []
    for how in (EACH, KEPT):
        findings += _findings(
            middle,
            how,
            "SMTP accept",
            HELD,
            (OURS,),
            2.0,
        )
        findings += _findings(
            middle,
            how,
            "SMTP in and out",
            RELAY,
            (UP, ROLES),
            3.0,
        )
    return Report("submission", ABOUT, [accepting, relaying], findings)


def _table(
    title: str,
    middle: Mapping[str, Sample],
    peer: str,
    names: tuple[str, ...],
) -> Table:
    table = Table(title, COLUMNS)
    for how in (EACH, KEPT):
        for name in (f"{one}, {how}" for one in names):
            if sample := middle.get(name):
                beside = middle.get(f"{peer}, {how}")
                ratio = f"{sample.rate / beside.rate:.2f} ×" if beside else "–"
                cpu = [number_or_dash(sample.per_mail(kind)) for kind in KINDS]
                table.rows.append([name, number(sample.rate), ratio, *cpu])
    return table


def _findings(
    middle: Mapping[str, Sample],
    how: str,
    what: str,
    peer: str,
    names: tuple[str, ...],
    target: float,
) -> list[Finding]:
    beside = middle.get(f"{peer}, {how}")
    mine = {name: sample for name in names if (sample := middle.get(f"{name}, {how}"))}
    return [
        compare(
            f"{what}, {how}{name.removeprefix(OURS)}",
            sample.rate,
            beside.rate,
            peer,
            target,
        )
        for name, sample in mine.items()
        if beside
    ]


# --- measuring


async def _limit(count: int, keep: bool) -> Sample:
    """smtp-source by itself: a server that does nothing is not what it waits for."""
    async with harness.sink() as to:
        before = to.child.cpu
        begun = time.monotonic()
        source = await installation.smtp_source(to.port, count, keep=keep)
        ended = time.monotonic()
        cpu = {"sink": to.child.cpu - before, "client": source}
    return Sample(count / (ended - begun), count, cpu)


async def _accept(
    bench: Bench,
    url: str,
    count: int,
    keep: bool,
) -> Sample:
    async with (
        installation.running(bench, url, installation.FRONT) as ours,
        harness.connected(url) as watch,
    ):
        await installation.smtp_source(
            ours.ports["smtp"], installation.SESSIONS, keep=keep
        )  # plans and caches of a running server
        before = ours.spent()
        begun = time.monotonic()
        source = await installation.smtp_source(ours.ports["smtp"], count, keep=keep)
        ended = time.monotonic()
        cpu = {kind: spent - before[kind] for kind, spent in ours.spent().items()} | {
            "client": source
        }
        stored = (
            await watch.fetchval("SELECT count(*) FROM pillarbox.deliveries")
            - installation.SESSIONS
        )
    if stored != count:
        raise Skipped(f"it stored {stored} of {count} mails")
    return Sample(count / (ended - begun), count, cpu)


async def _relay(
    bench: Bench,
    url: str,
    count: int,
    keep: bool,
    commands: Mapping[str, str],
) -> Sample:
    record = bench.directory / "relayed"
    record.unlink(missing_ok=True)
    async with (
        harness.sink(record) as to,
        installation.running(bench, url, commands, to) as ours,
    ):
        warming = installation.SESSIONS
        await installation.smtp_source(ours.ports["smtp"], warming, keep=keep)
        await installation.received(record, warming)
        before = ours.spent(sink=to.child)
        begun = time.monotonic()
        source = await installation.smtp_source(ours.ports["smtp"], count, keep=keep)
        ended = await installation.received(record, warming + count)
        cpu = {kind: spent - before[kind] for kind, spent in ours.spent(sink=to.child).items()} | {
            "client": source
        }
    return Sample(count / (ended - begun), count, cpu)
