"""What benchmarks report, on the terminal, as JSON and in RESULTS.md."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from rich import box
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from rich.console import Console

FOLDER = Path(__file__).parent
STORE = FOLDER / "results.json"  # the last figures of each benchmark, from which RESULTS.md is made
PAGE = FOLDER / "RESULTS.md"


@dataclass(slots=True)
class Finding:
    """One line of the summary. `reference` was measured in the same run, or is a limit that was
    set.
    """

    what: str
    ours: float
    unit: str
    reference: float | None = None
    reference_name: str = ""
    target: str = ""
    met: bool | None = None

    @property
    def ratio(self) -> float | None:
        if not self.reference:
            return None
        return self.ours / self.reference

    def cells(self) -> list[str]:
        reference = ratio = "–"
        if self.reference:
            reference = f"{number(self.reference)} ({self.reference_name})"
        if self.ratio is not None:
            ratio = f"{self.ratio:.2f} ×"
        met = {True: "yes", False: "NO", None: "–"}[self.met]
        return [
            self.what,
            f"{number(self.ours)} {self.unit}",
            reference,
            ratio,
            self.target or "–",
            met,
        ]


SUMMARY = ["what", "ours", "reference", "ratio", "target", "met?"]


def compare(
    what: str,
    ours: float,
    reference: float,
    name: str,
    at_least: float | None = None,
    unit: str = "mails/s",
) -> Finding:
    """Ours beside a peer or raw limit of the same run, as a ratio."""
    if at_least is None:
        return Finding(what, ours, unit, reference, name)
    met = ours >= at_least * reference
    return Finding(what, ours, unit, reference, name, f"≥ {at_least:g} ×", met)


def within(
    what: str,
    ours: float,
    unit: str,
    most: float,
) -> Finding:
    """Ours below a limit that was set."""
    return Finding(
        what,
        ours,
        unit,
        most,
        "limit",
        f"< {most:g} {unit}",
        ours < most,
    )


def at_most(
    what: str,
    ours: float,
    unit: str,
    most: float,
) -> Finding:
    """Ours not above a bound that is promised."""
    return Finding(
        what,
        ours,
        unit,
        most,
        "bound",
        f"≤ {most:g} {unit}",
        ours <= most,
    )


@dataclass(slots=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What one benchmark found out."""

    name: str
    about: str
    tables: list[Table] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def number(value: float) -> str:
    """With as many digits as a noisy measurement deserves."""
    size = abs(value)
    if size >= 10_000:
        return f"{round(value, -2):,.0f}"
    if size >= 1000:
        return f"{round(value, -1):,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def number_or_dash(value: float | None) -> str:
    """The number; a dash without one, and for nought."""
    if not value:
        return "–"
    return number(value)


# --- on the terminal


def show(console: Console, table: Table) -> None:
    rich = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    for place, column in enumerate(table.columns):
        rich.add_column(column, justify="left" if place == 0 else "right")
    for row in table.rows:
        rich.add_row(*row)
    console.print(rich)


def show_report(console: Console, report: Report) -> None:
    for table in report.tables:
        show(console, table)
    for note in report.notes:
        console.print(f"  {note}", highlight=False)


def show_summary(console: Console, reports: Sequence[Report]) -> None:
    rich = RichTable(title="Summary", title_justify="left", box=box.SIMPLE_HEAD)
    for place, column in enumerate(SUMMARY):
        rich.add_column(column, justify="left" if place in (0, 2) else "right")
    for one in (finding for report in reports for finding in report.findings):
        rich.add_row(*one.cells(), style={True: "green", False: "red", None: ""}[one.met])
    console.print(rich)


# --- in files


def machine(postgres: str) -> dict[str, str]:
    """What the figures depend on."""
    processor = platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        if model:
            processor = model[1]
    load = os.getloadavg()[0]
    return {
        "cores": f"{os.cpu_count()} ({processor})",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "PostgreSQL": postgres,
        "Python": platform.python_version(),
        "load before": f"{load:.1f}",
    }


def as_json(report: Report, **facts: Any) -> dict[str, Any]:
    return {**facts, **asdict(report)}


def from_json(stored: dict[str, Any]) -> Report:
    return Report(
        stored["name"],
        stored["about"],
        [Table(**table) for table in stored["tables"]],
        [Finding(**finding) for finding in stored["findings"]],
        stored["notes"],
    )


def write_page(fresh: Sequence[dict[str, Any]], order: Sequence[str]) -> None:
    """Put fresh results in the place of older ones of the same benchmarks, and write the page anew."""
    stored = json.loads(STORE.read_text()) if STORE.exists() else {}
    stored |= {one["name"]: one for one in fresh}
    stored = {name: stored[name] for name in order if name in stored}
    STORE.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text("\n".join(_page(stored)) + "\n")


INTRODUCTION = """# Results

Written by `make bench ARGS=--write`; each part says when and how it was measured last. Everything ran on
one machine, over loopback, with PostgreSQL durable (`fsync` and `synchronous_commit` on). Absolute
figures belong to that machine: only the ratios carry over, because both sides were measured in the same
run, in turns. Figures are medians of the rounds.
"""
NOT_MEASURED = """## Not measured

- Networks, remote PostgreSQL, TLS and real relays: loopback has no latency and no loss.
- PostgreSQL and SMTP servers on machines of their own: here worker, PostgreSQL, sink and load share cores.
- Several days of operation: bloat and vacuum beyond what the history benchmark holds.
- Haraka, Exim, Celery, Dramatiq and arq as peers.
"""


def _page(stored: dict[str, Any]) -> list[str]:
    reports = [from_json(one) for one in stored.values()]
    lines = [INTRODUCTION, "## Summary", ""]
    lines += _markdown(
        SUMMARY, [finding.cells() for report in reports for finding in report.findings]
    )
    for report, one in zip(reports, stored.values(), strict=True):
        lines += _section(report, one)
    return [*lines, "", NOT_MEASURED.rstrip()]


def _section(report: Report, stored: dict[str, Any]) -> list[str]:
    facts = " · ".join(f"{name}: {value}" for name, value in stored["machine"].items())
    lines = [
        "",
        f"## {report.name}",
        "",
        report.about,
        "",
        f"{stored['date']}, `{stored['command']}`, rounds: {stored['rounds']} · {facts}",
    ]
    for table in report.tables:
        lines += ["", f"**{table.title}**", "", *_markdown(table.columns, table.rows)]
    if report.notes:
        lines.append("")
        lines += [f"- {note}" for note in report.notes]
    return lines


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---"] + ["---:"] * (len(columns) - 1)
    return [f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows)]
