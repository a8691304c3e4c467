"""`queue stats`: statistics of the queue, once or live."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.store.statistics import STATES, QueueStatistics, WorkerRecord, statistics

if TYPE_CHECKING:
    from pillarbox.store.database import Database


def register(group: typer.Typer) -> None:
    command(group, "stats")(stats)


async def stats(
    context: CommandContext,
    tenant: options.TenantFilter = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Update continuously; q quits.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="TIME",
            parser=options.seconds,
            help="With --watch: the time between updates.",
        ),
    ] = 1.0,
) -> None:
    """Show the size of the queue, recent results, and workers.

    \b
    Examples:
      pillarbox queue stats
      pillarbox queue stats --watch --interval 500ms
      pillarbox queue stats --json
    """
    async with context.app() as app:
        if not watch:
            _show(await statistics(app.database, tenant), context.json)
        else:
            await _watch(
                app.database,
                tenant,
                max(interval, 0.1),
                context.json,
            )


def _show(numbers: QueueStatistics, json: bool) -> None:
    if json:
        output.print_json(as_json(numbers))
    elif output.is_terminal():
        output.console().print(drawn(numbers))
    else:
        for heads, rows in sections(numbers):
            output.table(heads, rows)
            print()
        for warning in _warnings(numbers):
            print(warning.plain)


def as_json(numbers: QueueStatistics) -> dict[str, Any]:
    return {
        "states": numbers.by_state,
        "oldest_due_seconds": numbers.oldest_due,
        "last_hour": {"sent": numbers.sent, "failed": numbers.failed},
        "last_minute": {"sent": numbers.sent_last_minute, "failed": numbers.failed_last_minute},
        "sent_per_second": round(numbers.rate, 3),
        "workers": output.plain(numbers.workers),
        "providers": output.plain(numbers.providers),
        "tenants": numbers.by_tenant,
    }


Cells = Sequence[Sequence[Text]]


def drawn(numbers: QueueStatistics) -> RenderableType:
    """All tables and warnings, one below the other."""
    tables = [output.drawn(heads, rows) for heads, rows in sections(numbers)]
    return Group(*tables, *_warnings(numbers))


def sections(numbers: QueueStatistics) -> Iterator[tuple[Sequence[str], Cells]]:
    """The heads and rows of each table."""
    states = [f"{state}#" for state in STATES]
    yield states, [_counts(numbers.by_state)]
    oldest = "-"
    if numbers.oldest_due:
        oldest = output.span(numbers.oldest_due)
    recent = [f"{numbers.sent:,}", f"{numbers.failed:,}", f"{numbers.rate:,.1f}/s", oldest]
    heads = ("sent, last hour#", "failed, last hour#", "rate, last minute#", "oldest due for#")
    yield heads, [[Text(value) for value in recent]]
    if len(numbers.by_tenant) > 1:
        rows = [[Text(name), *_counts(counts)] for name, counts in numbers.by_tenant.items()]
        yield ("tenant", *states), rows
    if numbers.workers:
        workers = [_worker_row(worker) for worker in numbers.workers]
        yield ("worker", "since", "in flight#", "lease"), workers
    if numbers.providers:
        states_of_providers = {True: "on", False: "off"}
        providers = [
            (Text(provider.name), Text(provider.kind), Text(states_of_providers[provider.enabled]))
            for provider in numbers.providers
        ]
        yield ("provider", "kind", "state"), providers


def _warnings(numbers: QueueStatistics) -> Iterator[Text]:
    if not numbers.workers:
        yield Text("no worker is running: mails wait", style="yellow")
    if not any(provider.enabled for provider in numbers.providers):
        yield Text("no provider is enabled: mails wait", style="yellow")


def _counts(counts: dict[str, int]) -> list[Text]:
    cells = []
    for state in STATES:
        style = "dim"
        if counts[state]:
            style = output.STYLES.get(state, "")
        cells.append(Text(f"{counts[state]:,}", style=style))
    return cells


def _worker_row(worker: WorkerRecord) -> list[Text]:
    lease = Text("expired", style="red")
    if worker.lease_left > 0:
        lease = Text(f"{output.span(worker.lease_left)} left")
    return [
        Text(output.clean(worker.name)),
        Text(output.when(worker.started_at)),
        Text(str(worker.holds)),
        lease,
    ]


async def _watch(
    database: Database,
    tenant: str | None,
    interval: float,
    json: bool,
) -> None:
    """Update until q or Ctrl-C; without a terminal, print one result after the other."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    live = None
    if not json and not output.plain_terminal():
        live = Live(console=output.console(), screen=True, auto_refresh=False)
    with _keys(stop), live or contextlib.nullcontext():
        while not stop.is_set():
            numbers = await statistics(database, tenant)
            if live:
                live.update(Group(drawn(numbers), Text("q quits", style="dim")), refresh=True)
            else:
                _show(numbers, json)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), interval)


@contextlib.contextmanager
def _keys(stop: asyncio.Event) -> Iterator[None]:
    """Inside, the key q sets `stop`."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        if sys.stdin.read(1) in ("q", "Q", ""):
            stop.set()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
