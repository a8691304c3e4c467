"""What many tenants cost: the drain with a thousand tenants in three lanes each, beside the drain
with one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

import pillarbox
from benchmarks import harness, mails
from benchmarks.harness import Bench, Sample
from benchmarks.report import Report, Table, compare, number

ABOUT = """The drain (mails of 4 KB, waiting → SMTP sink), once with all mails of one tenant in one
lane, once spread over tenants with three lanes each; order `fifo` in both. Ratio: to one tenant
with as many workers."""
LANES = ("urgent", "normal", "bulk")
ONE, MANY = "one tenant", "many tenants"


async def run(bench: Bench) -> Report:
    count = bench.scale(50_000, 5_000)
    tenants = bench.scale(1000, 100)
    samples = mails.samples()
    async with bench.schema("tenants") as url:
        async with harness.connected(url) as connection:
            await connection.execute(
                "INSERT INTO pillarbox.tenants (name) SELECT 'tenant' || n FROM generate_series(1, $1) AS n",
                tenants,
            )
        variants = {
            f"{name}, {workers} × {connections}": partial(
                _drain,
                bench,
                url,
                samples,
                count,
                tenants if name == MANY else 0,
                workers,
                connections,
            )
            for workers, connections in ((1, 50), (2, 25))
            for name in (ONE, MANY)
        }
        results = await bench.rounds_of("tenants", variants)
    return _report({name: harness.median(runs) for name, runs in results.items()}, tenants)


async def _drain(
    bench: Bench,
    url: str,
    samples: Sequence[mails.Sample],
    count: int,
    tenants: int,
    workers: int,
    connections: int,
) -> Sample:
    await harness.empty(url)
    await _enqueue(url, samples, count, tenants)
    return await harness.drain(
        bench,
        url,
        count,
        workers,
        worker_concurrency=connections,
    )


async def _enqueue(
    url: str,
    samples: Sequence[mails.Sample],
    count: int,
    tenants: int,
) -> None:
    """Mails of one tenant after another, as they would come in."""
    if not tenants:
        await mails.enqueue(url, samples, count)
        return
    numbers = iter(range(count))
    async with harness.connected(url) as connection:
        while some := list(islice(numbers, mails.BATCH)):
            async with connection.transaction():
                await pillarbox.enqueue_many(connection, [_mail(samples, n, tenants) for n in some])


def _mail(samples: Sequence[mails.Sample], n: int, tenants: int) -> pillarbox.Mail:
    [mail] = mails.given(
        [samples[n % len(samples)]],
        tenant=f"tenant{n % tenants + 1}",
        priority=LANES[n // tenants % 3],
    )
    return mail


def _report(middle: Mapping[str, Sample], tenants: int) -> Report:
    table = Table(
        f"Waiting mails → SMTP sink, one tenant and {tenants:,}",
        (
            "tenants, workers × connections",
            "mails/s",
            "ratio",
            "µs CPU: worker",
            "PostgreSQL",
            "sink",
        ),
    )
    findings = []
    for name, sample in middle.items():
        one = middle[name.replace(MANY, ONE)]
        cpu = [number(sample.per_mail(kind)) for kind in ("worker", "PostgreSQL", "sink")]
        table.rows.append([name, number(sample.rate), f"{sample.rate / one.rate:.2f} ×", *cpu])
        if one is not sample:
            what = f"drain, {tenants:,} tenants{name.removeprefix(MANY)}"
            findings.append(
                compare(
                    what,
                    sample.rate,
                    one.rate,
                    "one tenant",
                    0.8,
                )
            )
    return Report("tenants", ABOUT, [table], findings)
