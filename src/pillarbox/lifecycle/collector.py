"""The collector: takes waiting tokens in batches and mails or prints each batch in one transaction.

A notification is a hint; polling is the truth, so a lost notification, connection or process loses
no token. Several collectors share the work: each skips the tokens that another one has locked.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pillarbox.errors import NotPossible, StoreBug, StoreError
from pillarbox.lifecycle.batch_policy import (
    ORIGINAL_LIMITS,
    BatchLimits,
    BatchPolicy,
    CollectBatch,
)
from pillarbox.loops import wait, wait_for_any
from pillarbox.store import lifecycle_schema
from pillarbox.store.notifications import listen
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
# Shortest time between two looks after hints: 1,000 inserts per second are not 1,000 looks.
MIN_LOOK_INTERVAL = 0.005
# The pause when other collectors have locked all waiting tokens.
LOCKED_PAUSE = 0.05
# The pause after a failure doubles from the first to the last of these.
FIRST_PAUSE, MAX_PAUSE = 0.1, 30.0
# Beyond this number of failures in a row the pause is the longest one anyway.
MAX_DOUBLINGS = 10
# Two batches, and a count of the waiting tokens.
CONNECTIONS = 3
# Full batches that are collected without counting the waiting tokens in between.
BATCHES_AHEAD = 10
# The metric of waiting tokens is counted up to this number.
MAX_COUNTED = 100_000


class TokenSink(Protocol):
    """Where tokens go: into mails, or to standard output."""

    at_once: int  # batches in progress at the same time, if enough tokens wait

    async def send(self, connection: asyncpg.Connection, batch: Sequence[DueToken]) -> SinkResult:
        """Send tokens in the transaction that took them; return the result of each."""
        ...

    def give_up(self) -> None:
        """Stop waiting for a slow reader."""
        ...


class _Settlement(NamedTuple):
    """How many tokens had which outcome, and the first problem."""

    outcomes: Counter[str]
    problem: str | None


def batch_limits(settings: Settings, *, stdout: bool = False) -> BatchLimits:
    """The limits in the settings; without one, standard output uses the original collector's."""
    limit = settings.lifecycle_batch_limit
    timeout = settings.lifecycle_batch_timeout
    if not stdout:
        return BatchLimits(limit, timeout)
    if timeout is None:
        timeout = ORIGINAL_LIMITS.timeout
    return BatchLimits(limit or ORIGINAL_LIMITS.limit, timeout, urgent_waits=True)


class Collector:
    """Looks for tokens, decides, collects. One per process, in any number of processes."""

    def __init__(
        self,
        database: Database,
        tokens: TokenStore,
        sink: TokenSink,
        metrics: Metrics,
        settings: Settings,
        limits: BatchLimits,
        registry: TemplateRegistry | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._shared_database = database
        self._database = database
        self._tokens = tokens
        self._sink = sink
        self._metrics = metrics
        self._settings = settings
        self._supervisor = supervisor or Supervisor(metrics)
        self._policy = BatchPolicy(limits)
        self._registry = registry
        self._hinted = asyncio.Event()
        self._stopping: Callable[[], bool] = lambda: False
        self._ended = asyncio.Event()  # no batch is in progress any more

    async def run(self, stop: asyncio.Event) -> None:
        """Collect until `stop`, then finish the batch in progress.

        TokenStore from before the start are collected before listening begins: a client that sees
        this process listen can rely on batching.
        """
        self._database = await self._shared_database.for_queue(CONNECTIONS)
        self._stopping = stop.is_set
        run_every = self._supervisor.run_every
        poll_interval = self._settings.worker_poll_interval
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._limit_draining(stop))
                group.create_task(
                    run_every(
                        "sweep tokens",
                        poll_interval,
                        self.sweep,
                        stop,
                    )
                )
                await self._collect_earlier(stop)
                if self._settings.notify:
                    listen = self._listener(stop)
                    group.create_task(
                        run_every(
                            "listen for tokens",
                            LISTEN_INTERVAL,
                            listen,
                            stop,
                        )
                    )
                await self._work(stop)
                self._end(stop)
        finally:
            await self._database.close()

    async def run_once(self, stop: asyncio.Event) -> None:
        """Collect all waiting tokens, and return."""
        await self._tokens.release_due(self._database)
        limit = self._policy.limits.max_size
        decision = CollectBatch(limit, "once")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._limit_draining(stop))
            while not stop.is_set():
                if await self._collect_batches(decision, self._sink.at_once) < limit:
                    break
            self._end(stop)

    async def _collect_earlier(self, stop: asyncio.Event) -> None:
        """Collect the tokens from before the start, and log the limits in effect."""
        failures = 0
        while self._policy.opening and not stop.is_set():
            pause, failures = await self._try_step(failures)
            if not failures:
                pause = 0.0
            await wait(stop, pause or 0.0)
        self._log_limits()

    def _end(self, stop: asyncio.Event) -> None:
        self._ended.set()
        stop.set()

    def _listener(self, stop: asyncio.Event) -> Callable[[], Awaitable[None]]:
        handlers = {self._settings.lifecycle_channel: self._hinted.set}
        health_check = self._settings.lifecycle_healthcheck
        return partial(listen, self._shared_database, handlers, stop, health_check)

    async def sweep(self) -> int:
        """Release held tokens that are due, trigger a look, and measure; return how many wait."""
        if self._registry is not None:
            await self._registry.register()
        await self._tokens.release_due(self._database)
        self._hinted.set()
        waiting = await self._tokens.count(self._database, MAX_COUNTED)
        self._metrics.tokens_waiting.set(waiting.ready)
        return waiting.ready

    async def _work(self, stop: asyncio.Event) -> None:
        failures = 0
        while not stop.is_set():
            pause, failures = await self._try_step(failures)
            await self._rest(stop, pause, wake_on_hint=not failures)

    async def _try_step(self, failures: int) -> tuple[float | None, int]:
        """Do one step; return the pause after it and the number of failures in a row."""
        try:
            pause = await self.step()
        except (NotPossible, StoreBug):  # standard output is closed, or the schema was removed
            raise
        except Exception as error:
            return self._failed(error, failures), failures + 1
        self._supervisor.succeeded("collect")
        return pause, 0

    async def step(self) -> float | None:
        """Look, and collect if it is time; return the pause, None: until the next hint."""
        max_size = self._policy.limits.max_size
        waiting = await self._tokens.count(self._database, max_size * BATCHES_AHEAD)
        decision = self._policy.look(waiting.ready, waiting.urgent, time.monotonic())
        if not isinstance(decision, CollectBatch):
            return decision.seconds
        batches = 1
        if not decision.urgent_only:
            batches = max(1, waiting.ready // max_size)
        if await self._collect_batches(decision, batches):
            return 0.0
        return LOCKED_PAUSE

    async def _collect_batches(self, decision: CollectBatch, batches: int) -> int:
        """Collect several batches, `at_once` of them concurrently; return the number of tokens.

        While the database stores one batch, the next one is rendered.
        """
        remaining = iter(range(batches))
        lines = [self._collect_remaining(decision, remaining) for _ in range(self._sink.at_once)]
        counts = await asyncio.gather(*lines, return_exceptions=True)
        total = 0
        for count in counts:
            if isinstance(count, BaseException):
                raise count
            total += count
        return total

    async def _collect_remaining(self, decision: CollectBatch, remaining: Iterator[int]) -> int:
        """Collect one batch for each item that is left in the shared iterator."""
        total = 0
        for _ in remaining:
            if not self._stopping():
                total += await self.collect(decision)
        return total

    async def collect(self, decision: CollectBatch) -> int:
        """Take a batch, send it and settle it; return how many tokens it had."""
        started = time.perf_counter()
        urgent_only = decision.urgent_only
        async with self._database.transaction() as connection:
            taken = await self._tokens.take(connection, decision.limit, urgent_only=urgent_only)
            if taken:
                log.mail("processing rows", rows=len(taken), why=decision.why)
                settlement = await self._settle(connection, taken)
        self._policy.collected(len(taken), urgent_only)
        if taken:
            self._report(settlement, time.perf_counter() - started)
        return len(taken)

    async def _settle(
        self, connection: asyncpg.Connection, taken: Sequence[DueToken]
    ) -> _Settlement:
        """Send the tokens without a verdict, and store the outcome of all."""
        to_send = [due for due in taken if due.verdict is None]
        result = await self._sink.send(connection, to_send)
        settled = list(result.settled)
        held = list(result.held)
        outcomes = Counter[str]()
        for due in taken:
            if due.verdict == "account":
                held.append((due.token, "account", None, 0.0))
                outcomes["held"] += 1
            elif due.verdict is not None:
                settled.append((due.token, due.verdict, None))
        outcomes.update(outcome for _, outcome, _ in settled)
        if settled:
            await self._tokens.settle(connection, settled, self._settings.lifecycle_queue)
        if held:
            await self._tokens.hold(connection, held)
        if not result.held:
            return _Settlement(outcomes, None)
        outcomes["set_aside"] = len(result.held)
        _, _, problem, _ = result.held[0]
        return _Settlement(outcomes, problem)

    async def _rest(
        self,
        stop: asyncio.Event,
        seconds: float | None,
        *,
        wake_on_hint: bool,
    ) -> None:
        """Wait for a hint or for `seconds`; hints in quick succession count as one."""
        if seconds == 0.0:
            return
        if not wake_on_hint:
            await wait(stop, seconds or 0.0)
            return
        await wait_for_any(stop, self._hinted, seconds=seconds)
        if self._hinted.is_set():
            await wait(stop, MIN_LOOK_INTERVAL)
            self._hinted.clear()

    async def _limit_draining(self, stop: asyncio.Event) -> None:
        """After `stop`, wait at most `worker_drain_timeout` for the batch in progress."""
        await stop.wait()
        if not await wait(self._ended, self._settings.worker_drain_timeout):
            self._sink.give_up()

    def _failed(self, error: Exception, failures: int) -> float:
        """Report a failure; return the pause before the next try: backoff with jitter."""
        pause = min(FIRST_PAUSE * 2 ** min(failures, MAX_DOUBLINGS), MAX_PAUSE)
        self._supervisor.failed("collect", error)
        if isinstance(error, StoreError):
            self._policy.reopened()
        jitter = random.uniform(0.9, 1.1)  # noqa: S311 -- not a secret
        return float(pause * jitter)

    def _log_limits(self) -> None:
        limits = self._policy.limits
        timeout = "adaptive"
        if limits.timeout is not None:
            timeout = f"{limits.timeout * 1000:g}ms"
        log.info(
            "collecting tokens",
            channel=self._settings.lifecycle_channel,
            queue=self._settings.lifecycle_queue,
            limit=limits.limit or "adaptive",
            timeout=timeout,
        )

    def _report(self, settlement: _Settlement, seconds: float) -> None:
        self._metrics.collected_batch(settlement.outcomes, seconds)
        set_aside = settlement.outcomes["set_aside"]
        if set_aside:
            log.warning("tokens were set aside", tokens=set_aside, error=settlement.problem)


async def wait_until_installed(
    database: Database,
    settings: Settings,
    stop: asyncio.Event,
) -> bool:
    """Wait for the schema of accounts and tokens; False if `stop` came first."""
    is_installed = partial(lifecycle_schema.is_installed, database, settings.lifecycle_schema)
    logged = False
    while not stop.is_set():
        if await patiently(is_installed, stop):
            return True
        if not logged:
            log.info(
                "accounts are not installed: collecting begins after"
                " `pillarbox migrate --with lifecycle`"
            )
            logged = True
        await wait(stop, settings.worker_poll_interval)
    return False
