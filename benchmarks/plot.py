"""Throughput over the size of the window, by number of connections; `--write` draws throughput.svg."""

from __future__ import annotations

import json
import os
from functools import partial

from benchmarks import chart, harness, mails, peers
from benchmarks.harness import Bench, Sample
from benchmarks.report import FOLDER, Report, Table, number

ABOUT = """Mails of 4 KB drained by one worker. The window is what a worker has in flight at most,
and what it claims at once at most (settings: `worker_concurrency` × `worker_pipeline`).

![Throughput over the window](throughput.svg)"""
CONNECTIONS = (1, 5, 10, 20, 50)
WINDOWS = (10, 20, 50, 100, 200, 500, 1000)
PLAIN = "aiosmtplib"


async def run(bench: Bench) -> Report:
    count = bench.scale(10_000, 1_000)
    windows = WINDOWS[::3] if bench.quick else WINDOWS
    finished = bench.directory / "finished.json"
    finished.write_text(
        json.dumps([mail.decode("ascii") for mail in mails.finished(mails.samples())])
    )
    async with bench.schema("plot") as url:
        async with harness.connected(url) as connection:
            await mails.stock(connection, mails.samples())
        variants = {
            PLAIN: partial(
                peers.aiosmtplib,
                bench,
                finished,
                count,
                50,
            )
        }
        variants |= {
            f"{connections}, {window}": partial(
                _point,
                bench,
                url,
                count,
                connections,
                window,
            )
            for connections in CONNECTIONS
            for window in windows
            if window % connections == 0
        }
        results = await bench.rounds_of("plot", variants)
    rates = {name: harness.median(runs).rate for name, runs in results.items()}
    return _report(bench, rates, windows)


def _report(bench: Bench, rates: dict[str, float], windows: tuple[int, ...]) -> Report:
    plain = rates.pop(PLAIN)
    lines: dict[str, dict[float, float]] = {str(connections): {} for connections in CONNECTIONS}
    for name, rate in rates.items():
        connections, window = name.split(", ")
        lines[connections][float(window)] = rate
    table = Table(
        "Mails/s by connections (down) and window (across)", ("connections", *map(str, windows))
    )
    for connections, line in lines.items():
        table.rows.append([connections, *(number(line[x]) if x in line else "–" for x in windows)])
    labels = chart.Labels(
        "Throughput of one worker",
        f"waiting mails of 4 KB → SMTP sink; one machine, {os.cpu_count()} cores, PostgreSQL durable",
        "window: mails in flight, and per claim",
        "mails per second",
        "SMTP connections",
    )
    if bench.write:
        drawing = chart.line_chart(labels, lines, {"plain aiosmtplib": plain})
        (FOLDER / "throughput.svg").write_text(drawing)
    notes = [
        f"Plain aiosmtplib, the same bytes from memory over 50 connections: {number(plain)} mails/s."
    ]
    return Report(
        "plot",
        ABOUT,
        [table],
        [],
        notes,
    )


async def _point(
    bench: Bench,
    url: str,
    count: int,
    connections: int,
    window: int,
) -> Sample:
    await harness.empty(url)
    async with harness.connected(url) as connection:
        await mails.fill(connection, count)
    pipeline = window // connections
    return await harness.drain(
        bench,
        url,
        count,
        worker_concurrency=connections,
        worker_pipeline=pipeline,
    )
