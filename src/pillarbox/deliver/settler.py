"""Writes what attempts came to, in batches; insists until it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pillarbox.deliver.attempt import Result
from pillarbox.errors import StoreError
from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason, Verdict
from pillarbox.queue.base import Account, Claimed, Key, Queue, Settlement
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.attempt")
# Messages per statement: beyond some hundreds a larger one saves nothing and holds its locks longer.
LARGEST_BATCH = 500
# Pause between tries while the store is away; short, because no place gets free until this succeeds.
RETRY_PAUSE = 0.5

# Stands for the provider where a mail was refused before it had one.
NOBODY = "none"
T = TypeVar("T")


class Settler:
    """Collects results, untouched claims and postponed ones, and writes them in the background while more gather."""

    def __init__(
        self,
        queue: Queue,
        metrics: Metrics,
        freed: Callable[[list[Claimed]], None],
        deferred: Callable[[float], None],
    ) -> None:
        self._queue = queue
        self._metrics = metrics
        self._freed = freed
        self._deferred = deferred
        self._results: list[Result] = []
        self._untouched: list[Claimed] = []
        self._postponed: list[tuple[Claimed, float, Reason]] = []
        self._work = asyncio.Event()

    def settle(self, result: Result) -> None:
        self._results.append(result)
        self._work.set()

    def release(self, claimed: Claimed) -> None:
        self._untouched.append(claimed)
        self._work.set()

    def postpone(self, claimed: Claimed, seconds: float, reason: Reason) -> None:
        self._postponed.append((claimed, seconds, reason))
        self._work.set()

    async def run(self) -> None:
        """Write for ever. A shutdown cancels this only when everything is written, or nothing more can be."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._results or self._untouched or self._postponed:
                await self._write_some()

    async def _write_some(self) -> None:
        if results := self._results[:LARGEST_BATCH]:
            del self._results[:LARGEST_BATCH]
            await self._insist(self._account, results)
            self._freed([result.claimed for result in results])
            delays = [one.delay for result in results for one in result.settlements if one.delay is not None]
            if delays:
                self._deferred(min(delays))
        if claims := self._untouched[:LARGEST_BATCH]:
            del self._untouched[:LARGEST_BATCH]
            await self._insist(self._queue.release, claims)
            self._freed(claims)
        if aside := self._postponed[:LARGEST_BATCH]:
            del self._postponed[:LARGEST_BATCH]
            await self._insist(self._queue.postpone, aside)
            self._freed([claimed for claimed, *_ in aside])

    async def _insist(self, call: Callable[[list[T]], Awaitable[None]], batch: list[T]) -> None:
        """Repeat while the store is away. Repeating is harmless: what was settled is no longer held."""
        while True:
            try:
                return await call(batch)
            except StoreError as error:
                log.warning("cannot settle while the store is away", waiting=len(batch), error=str(error))
                await asyncio.sleep(RETRY_PAUSE)

    async def _account(self, results: list[Result]) -> None:
        account = Account(
            [settlement for result in results for settlement in result.settlements],
            [(r.claimed.message.id, r.claimed.claim, r.conversation) for r in results if r.conversation],
            [(r.claimed.message.id, r.claimed.claim, kind, data) for r in results for kind, data in r.events],
            [r.claimed.message.id for r in results if r.secret],
        )
        settled = await self._queue.settle(account)
        for result in results:
            for settlement in result.settlements:
                self._tell(result, settlement, settled)

    def _tell(self, result: Result, settlement: Settlement, settled: set[Key]) -> None:
        """One log line and the metrics of one settled delivery."""
        outcome = settlement.outcome
        held = Key(settlement.message_id, settlement.n, settlement.claim) in settled
        write = log.info if held and outcome.verdict is not Verdict.UNKNOWN else log.warning
        write(
            "attempt settled" if held else "claim was lost; outcome not settled",
            message=settlement.message_id,
            delivery=settlement.n,
            attempt=settlement.claim,
            provider=settlement.provider,
            outcome=outcome.verdict,
            reason=settlement.reason,
            state=settlement.state,
            seconds=round(settlement.took, 6),
        )
        if not held:
            self._metrics.stale_settlements.inc()
            return
        self._metrics.settled_for(result.claimed.tenant_id, settlement.state)
        self._metrics.outcome(settlement.provider or NOBODY, outcome.verdict, settlement.reason, settlement.took)
        if outcome.verdict is Verdict.UNKNOWN:
            self._metrics.unknown.inc()
        if settlement.state is State.SENT:
            self._metrics.sent_after(result.claimed.age + settlement.ended - result.claimed.claimed_at)
