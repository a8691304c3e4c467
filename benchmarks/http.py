"""HTTP in: how fast POST /api/v1/messages is, beside a FastAPI route that takes the same mails and
stores nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from benchmarks import harness, installation, mails
from benchmarks.harness import Bench, Process, Sample, Skipped, middle, percentile
from benchmarks.installation import Timed
from benchmarks.peers import FOLDER
from benchmarks.report import Finding, Report, Table, compare, number, number_or_dash, within

ABOUT = f"""`POST /api/v1/messages` with mails of 4 KB (text and HTML) over {installation.SESSIONS}
kept connections, one request at a time on each, from a client of our own in a process of its own.
Pillarbox (`up` without its worker, one process) knows the caller by an API key that it looks up for
each request, and commits before it answers. The references run in the same kind of server (uvicorn,
httptools, uvloop) and parse the same body into the same model; they ask for no key and store
nothing: `FastAPI` returns a model as anyone would write it, `FastAPI, answer by hand` its JSON as a
finished response. A server that reads nothing shows the client's own limit. Latency: then requests
come at random moments around half of the rate just measured, on schedule whatever became of those
before; the time counts from that moment to the answer."""
BARE, ROUTE, BY_HAND, OURS = "reads nothing", "FastAPI", "FastAPI, answer by hand", "pillarbox"
REFERENCES = {BARE: "bare", ROUTE: "fastapi", BY_HAND: "by_hand"}
WARMING = 200  # requests before the first that counts
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
COLUMNS = ("server", "requests/s", "ratio to FastAPI", "µs CPU: server", "PostgreSQL", "client")
LATENCY = ("server", "requests/s", *(f"{name} ms" for name in SHARES), "longest")


async def run(bench: Bench) -> Report:
    async with bench.schema("http") as url:
        key = await installation.key(url)
        variants = {name: partial(_reference, bench, kind) for name, kind in REFERENCES.items()}
        variants[OURS] = partial(_ours, bench, url, key)
        results = await bench.rounds_of("http", variants)
    return _report(results)


def _report(results: Mapping[str, Sequence[Sample]]) -> Report:
    rates = {name: harness.median(runs) for name, runs in results.items()}
    route = rates[ROUTE].rate
    table = Table("POST /api/v1/messages", COLUMNS)
    latency = Table("At half of each server's rate", LATENCY)
    for name, sample in rates.items():
        cpu = [number_or_dash(sample.per_mail(kind)) for kind in ("server", "PostgreSQL", "client")]
        table.rows.append([name, number(sample.rate), f"{sample.rate / route:.2f} ×", *cpu])
        latency.rows.append(
            [name, *(number(_middle(results[name], one)) for one in ("half", *SHARES, "longest"))]
        )
    findings = [
        compare(
            "HTTP accept",
            rates[OURS].rate,
            rates[name].rate,
            f"{name}, stores nothing",
            0.4,
            "requests/s",
        )
        for name in (ROUTE, BY_HAND)
    ]
    findings.append(
        Finding(
            "the client alone",
            rates[BARE].rate,
            "requests/s",
            rates[OURS].rate,
            OURS,
        )
    )
    findings.append(
        within("HTTP accept at half that rate, p99", _middle(results[OURS], "p99"), "ms", 100)
    )
    return Report("http", ABOUT, [table, latency], findings)


def _middle(runs: Sequence[Sample], name: str) -> float:
    return middle([sample.extra[name] for sample in runs])


# --- measuring


async def _ours(bench: Bench, url: str, key: str) -> Sample:
    async with (
        installation.running(bench, url, installation.FRONT) as ours,
        harness.connected(url) as watch,
    ):
        sample = await _measure(bench, ours.crew["front door"], ours.ports["http"], key)
        stored = await watch.fetchval("SELECT count(*) FROM pillarbox.deliveries")
    if stored != sample.extra["asked"]:
        raise Skipped(f"it stored {stored} of {sample.extra['asked']} mails")
    return sample


async def _reference(bench: Bench, kind: str) -> Sample:
    async with _server(bench, kind) as (server, port):
        return await _measure(bench, server, port, "pbx_none")


@asynccontextmanager
async def _server(bench: Bench, kind: str) -> AsyncIterator[tuple[Process, int]]:
    command = (sys.executable, str(FOLDER / "http_routes.py"), kind)
    async with harness.process(*command, log=bench.directory / "http_routes.log") as server:
        yield server, int(await server.line(60))


async def _measure(
    bench: Bench,
    server: Process,
    port: int,
    key: str,
) -> Sample:
    """As fast as it goes; then at half of that, on schedule."""
    count, seconds = bench.scale(20_000, 1_000), bench.scale(10, 2)
    async with installation.load(bench, "http", port, requests(key)) as load:
        await load.closed(WARMING)
        before = _spent(bench, server, load.child)
        fast = await load.closed(count)
        cpu = {
            kind: spent - before[kind] for kind, spent in _spent(bench, server, load.child).items()
        }
        rate = _rate(fast)
        calm = await load.open(rate / 2, seconds)
    took = [one.took for one in calm]
    shares = {name: percentile(took, share) for name, share in SHARES.items()}
    asked = WARMING + count + len(calm)
    return Sample(
        rate, count, cpu, {**shares, "longest": max(took), "half": rate / 2, "asked": asked}
    )


def _rate(answers: Sequence[Timed]) -> float:
    return len(answers) / (max(one.answered for one in answers) - min(one.due for one in answers))


def _spent(bench: Bench, server: Process, client: Process) -> dict[str, float]:
    return {"server": server.cpu, "PostgreSQL": bench.postgres_cpu(), "client": client.cpu}


def requests(key: str) -> list[tuple[bytes, bytes]]:
    """Whole requests, each as what stands before and after its number, which is a header of the
    mail.
    """
    return [_request(key, sample) for sample in mails.samples()]


def _request(key: str, mail: mails.Sample) -> tuple[bytes, bytes]:
    number = "#" * 9
    content = {
        "from": mails.SENDER,
        "to": [mail.to],
        "subject": mail.subject,
        "text": mail.text,
        "html": mail.html,
        "headers": {"X-Number": number},
    }
    body = json.dumps(content)
    head = (
        "POST /api/v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    before, _, after = (head + body).partition(number)
    return before.encode(), after.encode()
