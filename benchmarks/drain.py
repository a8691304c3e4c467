"""How fast waiting mails reach an SMTP server: ours, plain aiosmtplib, and what else people use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import harness, mails, peers
from benchmarks.peers import postfix
from benchmarks.report import Report, Table, compare, number, number_or_dash

if TYPE_CHECKING:
    from benchmarks.harness import Bench, Sample

ABOUT = """Mails (text and HTML, 4 KB) accepted by `enqueue_many` → worker → SMTP sink; attempts
written, one JSON log line per mail to a file, metrics on. The clock runs from the moment the
workers are ready until the last mail is settled. The reference sends the same finished bytes from
memory by plain aiosmtplib under uvloop, over 50 open connections."""
OURS = "pillarbox, 1 × 50 connections"
TEN = "pillarbox, 1 × 10 (default)"
TWO_TENS = "pillarbox, 2 × 10"
PLAIN = "aiosmtplib, 50, from memory"
COLUMNS = (
    "workers × connections",
    "mails",
    "mails/s",
    "ratio",
    "µs CPU: worker",
    "PostgreSQL",
    "sink",
    "all",
)


async def run(bench: Bench) -> Report:
    count = bench.scale(50_000, 5_000)
    fewer = count // 5  # for peers a whole order slower
    samples = mails.samples()
    finished = bench.directory / "finished.json"
    finished.write_text(json.dumps([mail.decode("ascii") for mail in mails.finished(samples)]))
    async with bench.schema("drain") as url:
        ours = partial(pillarbox, bench, url, samples)
        variants = {
            PLAIN: partial(
                peers.aiosmtplib,
                bench,
                finished,
                count,
                50,
            ),
            OURS: partial(ours, count, worker_concurrency=50),
            TEN: partial(ours, count),
            TWO_TENS: partial(ours, count, workers=2),
            "pillarbox, 2 × 25": partial(ours, count, workers=2, worker_concurrency=25),
            "pgqueuer + aiosmtplib, 50": partial(
                peers.python,
                bench,
                "pgqueuer",
                finished,
                count,
            ),
            "procrastinate + aiosmtplib, 50": partial(
                peers.python,
                bench,
                "procrastinate",
                finished,
                fewer,
            ),
            "Postfix, SMTP in and out": partial(postfix.relay, bench, fewer),
        }
        results = await bench.rounds_of("drain", variants)
    return _report({name: harness.median(runs) for name, runs in results.items()})


async def pillarbox(
    bench: Bench,
    url: str,
    samples: list[mails.Sample],
    count: int,
    **settings: int,
) -> Sample:
    await harness.empty(url)
    await mails.enqueue(url, samples, count)
    return await harness.drain(bench, url, count, **settings)


def _report(middle: Mapping[str, Sample]) -> Report:
    plain, ours = middle[PLAIN].rate, middle[OURS].rate
    table = Table("Waiting mails → SMTP sink; ratio to plain aiosmtplib; CPU per mail", COLUMNS)
    for name, sample in middle.items():
        each = [sample.per_mail(kind) for kind in ("worker", "PostgreSQL", "sink")]
        cpu = [number_or_dash(cost) for cost in (*each, sum(each))]
        ratio = f"{sample.rate / plain:.2f} ×"
        table.rows.append([name, f"{sample.count:,}", number(sample.rate), ratio, *cpu])
    findings = [
        compare(
            "drain, one worker, 50 connections",
            ours,
            plain,
            "plain aiosmtplib",
            1.0,
        )
    ]
    findings += [
        compare("the same, beside a peer", ours, sample.rate, name)
        for name, sample in middle.items()
        if "pillarbox" not in name and name != PLAIN
    ]
    findings.append(compare("drain, default settings", middle[TEN].rate, plain, "plain aiosmtplib"))
    findings.append(
        compare("drain, two workers", middle[TWO_TENS].rate, middle[TEN].rate, "one worker")
    )
    return Report(
        "drain",
        ABOUT,
        [table],
        findings,
        ["1.5 × plain aiosmtplib is what we are after."],
    )
