"""How fast waiting mails leave through HTTP providers, beside aiohttp alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import harness, mails, twins
from benchmarks.harness import PATIENCE, Bench, Process, Sample
from benchmarks.peers import FOLDER
from benchmarks.report import Finding, Report, Table, compare, number, number_or_dash

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ABOUT = f"""Mails of 4 KB (text and HTML) that wait → one worker → a twin of the provider that takes
{twins.LATENCY * 1e3:.0f} ms for each answer, in a process of its own; attempts written, one JSON
log line per mail to a file, metrics on. The clock runs from the moment the worker is ready until
the last mail is settled. The reference is aiohttp as it is, under uvloop, in one process: it posts
the very same requests, made and signed before, from memory, over as many connections. Two of them
together show what the twin can take."""
KINDS = {"sendgrid": "SendGrid", "ses": "SES", "mailgun": "Mailgun"}
FEW, MANY = 50, 200  # connections
ENOUGH = 2_000  # mails/s from one worker with many connections, if the twin can take them
OF_TWIN = 0.8  # else this part of what it can
COLUMNS = (
    "provider, from",
    "mails",
    "mails/s",
    "ratio to aiohttp",
    "µs CPU: sender",
    "PostgreSQL",
    "twin",
    "all",
)


async def run(bench: Bench) -> Report:
    count = bench.scale(30_000, 3_000)
    samples = mails.samples()
    variants: dict[str, Callable[[], Awaitable[Sample]]] = {}
    async with bench.schema("providers") as url:
        async with harness.connected(url) as connection:
            await mails.stock(connection, samples)
        for kind, name in KINDS.items():
            variants |= _variants(
                bench,
                url,
                kind,
                name,
                samples,
                count,
                FEW,
            )
        variants |= _variants(
            bench,
            url,
            "sendgrid",
            KINDS["sendgrid"],
            samples,
            count,
            MANY,
        )
        twice = partial(
            _reference,
            bench,
            "sendgrid",
            samples,
            count,
            MANY // 2,
            2,
        )
        variants[_name(KINDS["sendgrid"], "aiohttp, 2 processes", MANY)] = twice
        results = await bench.rounds_of("providers", variants)
    return _report({name: harness.median(runs) for name, runs in results.items()})


def _variants(
    bench: Bench,
    url: str,
    kind: str,
    name: str,
    samples: Sequence[mails.Sample],
    count: int,
    connections: int,
) -> dict[str, Callable[[], Awaitable[Sample]]]:
    return {
        _name(name, "aiohttp", connections): partial(
            _reference,
            bench,
            kind,
            samples,
            count,
            connections,
        ),
        _name(name, "pillarbox", connections): partial(
            _ours,
            bench,
            url,
            kind,
            count,
            connections,
        ),
    }


def _name(provider: str, sender: str, connections: int) -> str:
    return f"{provider}, {sender}, {connections} connections"


# --- reporting


def _report(middle: Mapping[str, Sample]) -> Report:
    table = Table("Waiting mails → a twin; CPU per mail", COLUMNS)
    for name, sample in middle.items():
        provider, _, _ = name.partition(",")
        connections = MANY if f"{MANY}" in name else FEW
        plain = middle[_name(provider, "aiohttp", connections)].rate
        each = [sample.per_mail(part) for part in ("worker", "PostgreSQL", "sink")]
        cpu = [number_or_dash(cost) for cost in (*each, sum(each))]
        table.rows.append(
            [name, f"{sample.count:,}", number(sample.rate), f"{sample.rate / plain:.2f} ×", *cpu]
        )
    return Report("providers", ABOUT, [table], _findings(middle))


def _findings(middle: Mapping[str, Sample]) -> list[Finding]:
    findings = []
    for name in KINDS.values():
        ours, plain = (middle[_name(name, sender, FEW)].rate for sender in ("pillarbox", "aiohttp"))
        findings.append(
            compare(
                f"through {name}, {FEW} connections",
                ours,
                plain,
                "aiohttp",
                0.5,
            )
        )
    first = KINDS["sendgrid"]
    ours, plain = (middle[_name(first, sender, MANY)].rate for sender in ("pillarbox", "aiohttp"))
    most = max(plain, middle[_name(first, "aiohttp, 2 processes", MANY)].rate)
    wanted = min(ENOUGH, OF_TWIN * most)
    what = f"through {first}, {MANY} connections"
    target = f"≥ {ENOUGH:,} or {OF_TWIN:g} ×"
    findings.append(
        Finding(
            what,
            ours,
            "mails/s",
            most,
            "what the twin can take",
            target,
            ours >= wanted,
        )
    )
    findings.append(
        Finding(
            "the same",
            ours,
            "mails/s",
            ENOUGH,
            "limit",
            f"≥ {ENOUGH:,} mails/s",
            ours >= ENOUGH,
        )
    )
    findings.append(compare("the same", ours, plain, "aiohttp, 1 process"))
    return findings


# --- measuring


async def _ours(
    bench: Bench,
    url: str,
    kind: str,
    count: int,
    connections: int,
) -> Sample:
    await twins.forget(url)
    async with harness.connected(url) as connection:
        await mails.fill(connection, count)
    async with twins.twin(kind) as to:
        await twins.use(url, to)
        settings = twins.SETTINGS | {"worker_concurrency": connections}
        sample = await harness.drain_into(
            bench,
            url,
            to.child,
            count,
            **settings,
        )
        if (arrived := await to.accepted()) != count:
            bench.console.print(f"[red]{count} mails were sent, {arrived} arrived")
    return sample


async def _reference(
    bench: Bench,
    kind: str,
    samples: Sequence[mails.Sample],
    count: int,
    connections: int,
    processes: int = 1,
) -> Sample:
    """Bare aiohttp; `connections` and a part of the mails for each of the processes."""
    given = bench.directory / "calls.json"
    async with AsyncExitStack() as stack:
        to = await stack.enter_async_context(twins.twin(kind))
        given.write_text(json.dumps(twins.calls(to, samples)))
        log, share = (
            bench.directory / "aiohttp_post.log",
            (str(count // processes), str(connections)),
        )
        program = (sys.executable, str(FOLDER / "aiohttp_post.py"), str(given), *share)
        crew = [
            await stack.enter_async_context(harness.process(*program, log=log))
            for _ in range(processes)
        ]
        for one in crew:
            await one.line()
        before = _spent(bench, crew, to.child)
        for one in crew:
            one.tell()
        seconds = max([float(await one.line(PATIENCE)) for one in crew])
        cpu = {part: spent - before[part] for part, spent in _spent(bench, crew, to.child).items()}
        arrived = await to.accepted()
    return Sample(arrived / seconds, arrived, cpu)


def _spent(bench: Bench, crew: Sequence[Process], to: Process) -> dict[str, float]:
    return {
        "worker": sum(one.cpu for one in crew),
        "PostgreSQL": bench.postgres_cpu(),
        "sink": to.cpu,
    }
