"""The collector: takes tokens that wait, and mails or writes them, batch by batch, each in one transaction.

A notification is a hint; looking is the truth, so nothing is lost with a notification, a connection
or a process. Several collectors share the work: each passes over the tokens that another has in
hand.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pillarbox.errors import NotPossible, StoreBug, StoreError
from pillarbox.lifecycle.batch_policy import ORIGINAL_LIMITS, BatchLimits, BatchPolicy, CollectBatch
from pillarbox.loops import wait, wait_for_any
from pillarbox.store import lifecycle_schema
from pillarbox.store.notifications import hear
from pillarbox.store.opening import patiently
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.lifecycle.mail_sink import SinkResult
    from pillarbox.lifecycle.template_registry import TemplateRegistry
    from pillarbox.settings import Settings
    from pillarbox.store.database import Database
    from pillarbox.store.lifecycle import DueToken, TokenStore
    from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.collector")
# How often a broken listening connection is opened again.
LISTEN_INTERVAL = 1.0
# Least time between two looks that hints ask for: a thousand inserts per second are not a thousand
# looks.
SOONEST = 0.005
# When others have in hand all that waits, there is no reason to ask without a pause.
OTHERS = 0.05
# Pauses after failures double from the first to the last of these.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
# Two batches, and a look at what waits.
CONNECTIONS = 3
# Whole batches that follow each other without a look in between.
AHEAD = 10
# Tokens that wait are counted so far for the metrics.
COUNTED = 100_000


class TokenSink(Protocol):
    """Where tokens go: into mails, or to standard output."""

    at_once: int  # batches that may be in hand at the same time, if enough tokens wait for them

    async def send(self, connection: asyncpg.Connection, batch: Sequence[DueToken]) -> SinkResult:
        """Send tokens, in the transaction that took them, and say what became of each."""
        ...

    def give_up(self) -> None:
        """Do not wait for anybody any longer."""
        ...


def batch_limits(settings: Settings, *, stdout: bool = False) -> BatchLimits:
    """How batches are gathered: as the settings say, else as the original does, or as the rate suggests."""
    limit, timeout = settings.lifecycle_batch_limit, settings.lifecycle_batch_timeout
    if not stdout:
        return BatchLimits(limit, timeout)
    usual = ORIGINAL_LIMITS
    return BatchLimits(
        limit or usual.limit, usual.timeout if timeout is None else timeout, urgent_waits=True
    )


class Collector:
    """Looks for tokens, decides, collects. One for a process, any number of processes."""

    def __init__(
        self,
        database: Database,
        tokens: TokenStore,
        post: TokenSink,
        metrics: Metrics,
        settings: Settings,
        rule: BatchLimits,
        registry: TemplateRegistry | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._shared = database
        self._database = database
        self._tokens = tokens
        self._post = post
        self._metrics = metrics
        self._settings = settings
        self._supervisor = supervisor or Supervisor(metrics)
        self._gather = BatchPolicy(rule)
        self._registry = registry
        self._hinted = asyncio.Event()
        self._stopping: Callable[[], bool] = lambda: False
        self._ended = asyncio.Event()  # no batch is in hand any more

    async def run(self, stop: asyncio.Event) -> None:
        """Collect until `stop`; then finish the batch in hand.

        What waited before leaves first: whoever sees us listen can be sure that what comes now is
        gathered.
        """
        self._database = await self._shared.for_queue(CONNECTIONS)
        self._stopping = stop.is_set
        run_every = self._supervisor.run_every
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._limit_draining(stop))
                group.create_task(
                    run_every("sweep tokens", self._settings.worker_poll_interval, self.sweep, stop)
                )
                await self._open(stop)
                if self._settings.notify:
                    group.create_task(
                        run_every("listen for tokens", LISTEN_INTERVAL, self._listening(stop), stop)
                    )
                await self._work(stop)
                self._end(stop)
        finally:
            await self._database.close()

    async def run_once(self, stop: asyncio.Event) -> None:
        """Collect everything that waits, and return."""
        await self._tokens.release_due(self._database)
        limit, at_once = self._gather.rule.most, self._post.at_once
        async with asyncio.TaskGroup() as group:
            group.create_task(self._limit_draining(stop))
            while (
                not stop.is_set()
                and await self._collect_some(CollectBatch(limit, "once"), at_once) >= limit
            ):
                pass
            self._end(stop)

    async def _open(self, stop: asyncio.Event) -> None:
        """Collect what waited before we came, and say how we go on."""
        failures = 0
        while self._gather.opening and not stop.is_set():
            pause, failures = await self._tried(failures)
            await wait(stop, pause if failures and pause else 0.0)
        self._tell_how()

    def _end(self, stop: asyncio.Event) -> None:
        self._ended.set()
        stop.set()

    def _listening(self, stop: asyncio.Event) -> Callable[[], Awaitable[None]]:
        settings = self._settings
        told = {settings.lifecycle_channel: self._hinted.set}
        return partial(hear, self._shared, told, stop, settings.lifecycle_healthcheck)

    async def sweep(self) -> int:
        """Let those be taken again whose time has come, look without being told, and measure; returns how many wait."""
        if self._registry is not None:
            await self._registry.register()
        await self._tokens.release_due(self._database)
        self._hinted.set()
        waiting = await self._tokens.count(self._database, COUNTED)
        self._metrics.tokens_waiting.set(waiting.ready)
        return waiting.ready

    async def _work(self, stop: asyncio.Event) -> None:
        failures = 0
        while not stop.is_set():
            pause, failures = await self._tried(failures)
            await self._rest(stop, pause, heeding_hints=not failures)

    async def _tried(self, failures: int) -> tuple[float | None, int]:
        """One step; returns for how long to rest, and how many failed in a row."""
        try:
            pause = await self.step()
        except (NotPossible, StoreBug):  # standard output is closed, or the schema has gone
            raise
        except Exception as error:
            return self._failed(error, failures), failures + 1
        self._supervisor.succeeded("collect")
        return pause, 0

    async def step(self) -> float | None:
        """Look, and collect if it is time; returns for how long to rest, None: until somebody hints."""
        most = self._gather.rule.most
        waiting = await self._tokens.count(self._database, most * AHEAD)
        decision = self._gather.look(waiting.ready, waiting.urgent, time.monotonic())
        if not isinstance(decision, CollectBatch):
            return decision.seconds
        whole = 1 if decision.urgent_only else max(1, waiting.ready // most)
        return 0.0 if await self._collect_some(decision, whole) else OTHERS

    async def _collect_some(self, wanted: CollectBatch, batches: int) -> int:
        """Collect so many batches, some at once: while the database stores one, the next is being written."""
        left = iter(range(batches))

        async def some() -> int:
            return sum([await self.collect(wanted) for _ in left if not self._stopping()])

        counts = await asyncio.gather(
            *(some() for _ in range(self._post.at_once)), return_exceptions=True
        )
        for one in counts:
            if isinstance(one, BaseException):
                raise one
        return sum(one for one in counts if isinstance(one, int))

    async def collect(self, wanted: CollectBatch) -> int:
        """Take a batch, send it and settle it; returns how many tokens it had."""
        begun = time.perf_counter()
        async with self._database.transaction() as connection:
            taken = await self._tokens.take(
                connection, wanted.limit, urgent_only=wanted.urgent_only
            )
            if taken:
                log.mail("processing rows", rows=len(taken), why=wanted.why)
                outcomes, problem = await self._settle(connection, taken)
        self._gather.collected(len(taken), wanted.urgent_only)
        if taken:
            self._tell(outcomes, problem, time.perf_counter() - begun)
        return len(taken)

    async def _settle(
        self, connection: asyncpg.Connection, taken: Sequence[DueToken]
    ) -> tuple[Counter[str], str | None]:
        """Send those that are to be sent, and note what became of all: how many of each, and what went wrong."""
        done = await self._post.send(connection, [due for due in taken if due.verdict is None])
        settled = [
            (due.token, due.verdict, None) for due in taken if due.verdict not in (None, "account")
        ]
        held = [(due.token, "account", None, 0.0) for due in taken if due.verdict == "account"]
        if settled or done.settled:
            await self._tokens.settle(
                connection, [*settled, *done.settled], self._settings.lifecycle_queue
            )
        if held or done.held:
            await self._tokens.hold(connection, [*held, *done.held])
        outcomes = Counter(outcome for _, outcome, _ in (*settled, *done.settled))
        outcomes += Counter({"held": len(held), "set_aside": len(done.held)})
        return outcomes, done.held[0][2] if done.held else None

    async def _rest(
        self, stop: asyncio.Event, seconds: float | None, *, heeding_hints: bool
    ) -> None:
        """Wait for a hint, or as long as was decided; hints that follow each other closely are one."""
        if seconds == 0.0:
            return
        if not heeding_hints:
            await wait(stop, seconds or 0.0)
            return
        await wait_for_any(stop, self._hinted, seconds=seconds)
        if self._hinted.is_set():
            await wait(stop, SOONEST)
            self._hinted.clear()

    async def _limit_draining(self, stop: asyncio.Event) -> None:
        """Once stopped, wait for the batch in hand, but not for ever."""
        await stop.wait()
        if not await wait(self._ended, self._settings.worker_drain_timeout):
            self._post.give_up()

    def _failed(self, error: Exception, failures: int) -> float:
        """Say so; returns how long to wait before the next try."""
        pause = min(FIRST_PAUSE * 2 ** min(failures, 10), LONGEST_PAUSE)
        self._supervisor.failed("collect", error)
        if isinstance(error, StoreError):
            self._gather.reopened()
        return float(pause * random.uniform(0.9, 1.1))  # noqa: S311 -- jitter, not a secret

    def _tell_how(self) -> None:
        settings, rule = self._settings, self._gather.rule
        log.info(
            "collecting tokens",
            channel=settings.lifecycle_channel,
            queue=settings.lifecycle_queue,
            limit=rule.limit or "adaptive",
            timeout="adaptive" if rule.timeout is None else f"{rule.timeout * 1000:g}ms",
        )

    def _tell(self, outcomes: Counter[str], problem: str | None, seconds: float) -> None:
        self._metrics.collected_batch(outcomes, seconds)
        if outcomes["set_aside"]:
            log.warning("tokens were set aside", tokens=outcomes["set_aside"], error=problem)


async def wait_until_installed(database: Database, settings: Settings, stop: asyncio.Event) -> bool:
    """Wait for the schema of accounts and tokens; false if it did not come before `stop`."""
    told = False
    while not stop.is_set():
        if await patiently(
            partial(lifecycle_schema.is_installed, database, settings.lifecycle_schema), stop
        ):
            return True
        if not told:
            log.info(
                "no accounts yet: collecting begins after `pillarbox migrate --with lifecycle`"
            )
        told = True
        await wait(stop, settings.worker_poll_interval)
    return False
