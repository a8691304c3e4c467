"""`python -m benchmarks`: measure and print tables; `--write` keeps them in RESULTS.md. Asserts
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import harness, report

NAMES = (
    "drain", "tenants", "providers", "failover", "feedback", "enqueue", "submission", "http", "fairness", "steady",
    "history", "backlog", "collector", "latency", "memory", "plot",
)  # fmt: skip


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAMES", default=",".join(NAMES), help=f"some of {','.join(NAMES)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small numbers, one round: does it run?"
    )
    parser.add_argument("--rounds", type=int, help="interleaved rounds (3; quick: 1)")
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="write everything measured to this file"
    )
    parser.add_argument(
        "--write", action="store_true", help="update benchmarks/RESULTS.md and the plot"
    )
    given = parser.parse_args()
    given.only = given.only.split(",")
    if unknown := set(given.only) - set(NAMES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return given


async def main(given: argparse.Namespace, console: Console) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    rounds = given.rounds or 3
    if given.quick and not given.rounds:
        rounds = 1
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        async with harness.stage(
            console,
            progress,
            rounds,
            given.quick,
            given.write,
        ) as bench:
            reports, stored = [], []
            facts = {
                "machine": report.machine(bench.version),
                "rounds": rounds,
                "command": _command(given),
            }
            for name in (name for name in NAMES if name in given.only):
                one = await _run(bench, name)
                report.show_report(console, one)
                reports.append(one)
                stored.append(
                    report.as_json(one, date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", **facts)
                )
    report.show_summary(console, reports)
    _keep(given, stored)


async def _run(bench: harness.Bench, name: str) -> report.Report:
    bench.skipped.clear()
    bench.console.rule(name)
    one = await import_module(f"benchmarks.{name}").run(bench)
    one.notes += bench.skipped
    return one


def _keep(given: argparse.Namespace, stored: list[dict[str, Any]]) -> None:
    if given.json:
        given.json.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    if given.write:
        report.write_page(stored, NAMES)


def _command(given: argparse.Namespace) -> str:
    """The command that repeats the measurement, without the options for its results."""
    words = ["python -m benchmarks"]
    if len(given.only) != len(NAMES):
        words.append(f"--only {','.join(given.only)}")
    if given.quick:
        words.append("--quick")
    return " ".join(words)


if __name__ == "__main__":
    console = Console(width=150)
    if sys.stdout.isatty():
        console = Console()
    # Background jobs of a script start with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main(options(), console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped; everything was cleaned up")
        sys.exit(130)
