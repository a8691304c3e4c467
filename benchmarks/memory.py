"""How much memory a worker needs for large mails: its peak, as the kernel saw it."""

from __future__ import annotations

import base64
import json
import random
from functools import partial
from typing import Any

from benchmarks import harness, mails
from benchmarks.harness import Bench, Sample
from benchmarks.report import Finding, Report, Table, number, within

ABOUT = """The peak of a worker's resident memory (VmHWM) while it drains a queue with 50
connections and the default limit of bytes in flight (64 MiB). Large mails come once as raw messages
and once as an attachment, which the worker has to decode and to encode."""
LIMIT = 300  # MB, for mails of 100 KB
LARGE = 25 * 2**20 - 16_384  # the largest mail that is accepted, but for its headers


async def run(bench: Bench) -> Report:
    some, few = bench.scale(50_000, 1_000), bench.scale(100, 6)
    small = mails.samples(50, 100_000)
    one = mails.samples(1)
    attachment = {
        "filename": "report.pdf",
        "content": base64.b64encode(random.randbytes(LARGE * 3 // 4)).decode(),
    }
    variants = {
        "idle (one mail of 4 KB)": partial(_drain, bench, 1, one),
        f"{some:,} × 100 KB": partial(_drain, bench, some, small),
        f"{few} × 25 MiB, raw": partial(
            _drain,
            bench,
            few,
            one,
            raw=_raw(one[0]),
        ),
        f"{few} × 25 MiB, an attachment": partial(
            _drain,
            bench,
            few,
            one,
            attachments=json.dumps([attachment]),
        ),
    }
    rounds, bench.rounds = bench.rounds, 1  # these take long
    try:
        results = await bench.rounds_of("memory", variants)
    finally:
        bench.rounds = rounds
    return _report({name: runs[0] for name, runs in results.items()})


def _report(runs: dict[str, Sample]) -> Report:
    table = Table("Peak memory of a worker", ("mails", "peak MB", "mails/s", "MB/s"))
    findings = []
    for name, sample in runs.items():
        peak, size = sample.extra["peak"], sample.extra["size"]
        table.rows.append(
            [name, number(peak), number(sample.rate), number(sample.rate * size / 1e6)]
        )
        if "100 KB" in name:
            findings.append(within(f"memory, {name}", peak, "MB", LIMIT))
        elif "25 MiB" in name:
            findings.append(
                Finding(
                    f"memory, {name}",
                    peak,
                    "MB",
                    64 * 1.048576,
                    "bytes in flight",
                )
            )
    return Report(
        "memory",
        ABOUT,
        [table],
        findings,
        ["One run each."],
    )


def _raw(mail: mails.Sample) -> bytes:
    line = mails.finished([mail])[0]
    return line + (mail.text.encode() * (LARGE // len(mail.text)))[: LARGE - len(line)]


async def _drain(bench: Bench, count: int, samples: list[mails.Sample], **extra: Any) -> Sample:
    async with bench.schema("memory") as url:
        async with harness.connected(url) as connection:
            await mails.stock(connection, samples, **extra)
            size = await connection.fetchval("SELECT avg(size)::float8 FROM stock")
            await mails.fill(connection, count)
        sample = await harness.drain(bench, url, count, worker_concurrency=50)
        sample.extra = {**sample.extra, "size": size}
        return sample
