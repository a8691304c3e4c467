"""A steady load, end to end: what it takes from a mail's acceptance to the next server, and how
much CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial

from benchmarks import harness, http, installation, mails
from benchmarks.harness import Bench, Sample, SinkProcess, percentile, tree_cpu
from benchmarks.installation import Load
from benchmarks.peers import postfix
from benchmarks.report import Finding, Report, Table, number, within
from pillarbox.testing.sink import read_records

ABOUT = f"""10,000 mails of 4 KB a minute, at random moments around that rate, over
{installation.SESSIONS} kept connections; accepted by HTTP (with an API key) or SMTP, delivered to
an SMTP sink by a worker with default settings; in one process (`up`) or in two (`up` without its
worker, and `serve --roles worker`). From acceptance: from the answer that says so until the sink
has the whole mail; from the request: from the moment it was due. CPU is that of Pillarbox's own
processes as a share of one core, while mails come. Postfix relays the same mails, from the same
client to the same sink."""
PER_SECOND = 10_000 / 60
LIMIT, CORE = 5.0, 0.5  # seconds for 95 of 100 mails, and cores
SHARES = (0.5, 0.95, 0.99)
PEER = "SMTP, Postfix"
COLUMNS = ("way in, processes", "mails", "from acceptance: p50 ms", "p95", "p99", "longest", "from the request: p95",
           "cores: front door", "worker", "both", "PostgreSQL")  # fmt: skip


async def run(bench: Bench) -> Report:
    async with bench.schema("steady") as url:
        key = await installation.key(url)
        by_http, by_smtp = ("http", http.requests(key)), ("smtp", _mails())
        variants = {
            "HTTP, two": partial(
                _ours,
                bench,
                url,
                *by_http,
                installation.APART,
            ),
            "HTTP, one": partial(
                _ours,
                bench,
                url,
                *by_http,
                installation.TOGETHER,
            ),
            "SMTP, two": partial(
                _ours,
                bench,
                url,
                *by_smtp,
                installation.APART,
            ),
            "SMTP, one": partial(
                _ours,
                bench,
                url,
                *by_smtp,
                installation.TOGETHER,
            ),
            PEER: partial(_peer, bench, *by_smtp),
        }
        rounds, bench.rounds = bench.rounds, 1  # these take long
        try:
            results = await bench.rounds_of("steady", variants)
        finally:
            bench.rounds = rounds
    return _report({name: runs[0] for name, runs in results.items()})


def _report(runs: Mapping[str, Sample]) -> Report:
    table = Table("10,000 mails a minute, accepted → next server", COLUMNS)
    findings: list[Finding] = []
    for name, sample in runs.items():
        extra = sample.extra
        times = [number(extra[one]) for one in ("p50", "p95", "p99", "longest", "asked")]
        own = [extra.get(kind, 0.0) for kind in ("front door", "worker")]
        cores = [
            f"{share:.2f}" if share else "–"
            for share in (*own, sum(own), extra.get("PostgreSQL", 0.0))
        ]
        table.rows.append([name, f"{sample.count:,}", *times, *cores])
        if name != PEER:
            findings.append(
                within(f"10,000 mails a minute, {name}, p95", extra["p95"] / 1e3, "s", LIMIT)
            )
            findings.append(within(f"10,000 mails a minute, {name}, CPU", sum(own), "cores", CORE))
            if PEER in runs:
                findings.append(
                    Finding(
                        f"the same, {name}, p95",
                        extra["p95"],
                        "ms",
                        runs[PEER].extra["p95"],
                        PEER,
                    )
                )
    return Report(
        "steady",
        ABOUT,
        [table],
        findings,
        ["One run each."],
    )


def _mails() -> list[tuple[bytes, bytes]]:
    """Finished mails, each as what stands before and after its number."""
    return [(b"X-Number: ", b"\r\n" + content) for content in mails.finished(mails.samples())]


# --- measuring


async def _ours(
    bench: Bench,
    url: str,
    protocol: str,
    requests: list[tuple[bytes, bytes]],
    commands: Mapping[str, str],
) -> Sample:
    async with AsyncExitStack() as stack:
        to = await stack.enter_async_context(_sink(bench))
        ours = await stack.enter_async_context(installation.running(bench, url, commands, to))
        load = await stack.enter_async_context(
            installation.load(bench, protocol, ours.ports[protocol], requests)
        )
        return await _measure(bench, load, to, ours.spent)


async def _peer(bench: Bench, protocol: str, requests: list[tuple[bytes, bytes]]) -> Sample:
    async with AsyncExitStack() as stack:
        to = await stack.enter_async_context(_sink(bench))
        master, port = await stack.enter_async_context(postfix.running(bench, to.port))
        load = await stack.enter_async_context(installation.load(bench, protocol, port, requests))
        return await _measure(bench, load, to, lambda: {"worker": tree_cpu(master)})


def _sink(bench: Bench) -> AbstractAsyncContextManager[SinkProcess]:
    record = bench.directory / "steady-arrivals"
    record.unlink(missing_ok=True)
    return harness.sink(record)


async def _measure(
    bench: Bench,
    load: Load,
    to: SinkProcess,
    spent: Callable[[], dict[str, float]],
) -> Sample:
    """The steady load until its last mail has arrived; CPU as shares of a core."""
    assert to.record
    await load.closed(installation.SESSIONS)  # connections open, plans made
    await installation.received(to.record, installation.SESSIONS)
    before, begun = spent(), time.monotonic()
    answers = await load.open(PER_SECOND, bench.scale(180, 10))
    last = await installation.received(to.record, installation.SESSIONS + len(answers))
    shares = {kind: (after - before[kind]) / (last - begun) for kind, after in spent().items()}
    came = {int(one.headers[0]): one.at for one in read_records(to.record)}
    accepted = [(came[one.number] - one.answered) * 1e3 for one in answers]
    asked = [(came[one.number] - one.due) * 1e3 for one in answers]
    extra = {f"p{share * 100:.0f}": percentile(accepted, share) for share in SHARES}
    extra |= {"longest": max(accepted), "asked": percentile(asked, 0.95)}
    return Sample(len(answers) / (last - begun), len(answers), extra=extra | shares)
