"""Writes the outcomes of attempts in batches; retries while PostgreSQL is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from pillarbox.deliver.attempt_result import AttemptResult
from pillarbox.errors import StoreDataError, StoreError
from pillarbox.loops import backoff
from pillarbox.model.delivery import State
from pillarbox.model.outcome import Outcome, Reason, Verdict
from pillarbox.queue.ledger import Ledger
from pillarbox.queue.ready import ReadyQueue
from pillarbox.queue.records import ClaimedMessage, DeliveryKey, Settlement, SettlementBatch
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.attempt")
# Messages per statement: beyond some hundreds a larger one saves nothing and holds its locks
# longer.
LARGEST_BATCH = 500
# Pauses between tries double from the first to the longest; short, because nothing is claimed until
# one succeeds.
RETRY_PAUSE, LONGEST_PAUSE = 0.5, 5.0
# What a reply code can be; others are not written for an outcome that PostgreSQL refused.
CODES = range(100, 1000)

# Stands for the provider where a mail was refused before it had one.
NOBODY = "none"
Postponed = tuple[ClaimedMessage, float, Reason]
T = TypeVar("T")
Batch = TypeVar("Batch")


class Settler:
    """Collects results, untouched claims and postponed ones, and writes them in the background while more gather.

    `freed` is called with claims that need no more place, `abandoned` with one that cannot be written at all, and
    `broke` with an error that proves a bug.
    """

    def __init__(
        self,
        ledger: Ledger,
        ready: ReadyQueue,
        metrics: Metrics,
        supervisor: Supervisor,
        freed: Callable[[list[ClaimedMessage]], None],
        deferred: Callable[[float], None],
        abandoned: Callable[[ClaimedMessage], None],
        broke: Callable[[Exception], None],
    ) -> None:
        self._ledger = ledger
        self._ready = ready
        self._metrics = metrics
        self._supervisor = supervisor
        self._freed = freed
        self._deferred = deferred
        self._abandoned = abandoned
        self._broke = broke
        self._results: list[AttemptResult] = []
        self._untouched: list[ClaimedMessage] = []
        self._postponed: list[Postponed] = []
        self._work = asyncio.Event()
        self.failing = False  # since the last try to write something

    def settle(self, result: AttemptResult) -> None:
        self._results.append(result)
        self._work.set()

    def release(self, claimed: ClaimedMessage) -> None:
        self._untouched.append(claimed)
        self._work.set()

    def postpone(self, claimed: ClaimedMessage, seconds: float, reason: Reason) -> None:
        self._postponed.append((claimed, seconds, reason))
        self._work.set()

    async def run(self) -> None:
        """Write for ever. A shutdown cancels this only when everything is written, or nothing more can be."""
        while True:
            while self._results or self._untouched or self._postponed:
                await self._write_some()
            await self._work.wait()
            self._work.clear()

    async def _write_some(self) -> None:
        if results := self._results[:LARGEST_BATCH]:
            await self._write_results(results)
            del self._results[: len(results)]
        if claims := self._untouched[:LARGEST_BATCH]:
            await self._write_claims(self._ledger.release, claims, lambda claimed: claimed)
            del self._untouched[: len(claims)]
        if aside := self._postponed[:LARGEST_BATCH]:
            await self._write_claims(self._ledger.postpone, aside, lambda one: one[0])
            del self._postponed[: len(aside)]

    async def _write_results(self, results: list[AttemptResult]) -> None:
        """Write a batch; one with an outcome that PostgreSQL refuses is halved until that outcome is alone."""
        try:
            settled = await self._insist(self._ledger.settle, batch_of(results))
        except Exception as error:
            if len(results) > 1:
                middle = len(results) // 2
                await self._write_results(results[:middle])
                await self._write_results(results[middle:])
            else:
                await self._write_stripped(results[0], error)
            return
        await self._written(results, settled)

    async def _write_stripped(self, result: AttemptResult, refused: Exception) -> None:
        """Write an outcome without the texts that came from outside."""
        self._supervisor.report("settle", refused)
        bare = stripped(result)
        try:
            settled = await self._insist(self._ledger.settle, batch_of([bare]))
        except Exception as error:
            self._abandon(result.claimed, error)
            return
        self._metrics.settlement_refusals.labels("stripped").inc()
        log.warning("an outcome was settled without its texts", message=result.claimed.message.id)
        await self._written([bare], settled)

    async def _write_claims(
        self,
        write: Callable[[list[T]], Awaitable[None]],
        batch: list[T],
        claimed: Callable[[T], ClaimedMessage],
    ) -> None:
        """Release or postpone claims; one that PostgreSQL refuses is abandoned alone."""
        try:
            await self._insist(write, batch)
        except Exception as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._write_claims(write, batch[:middle], claimed)
                await self._write_claims(write, batch[middle:], claimed)
            else:
                self._abandon(claimed(batch[0]), error)
            return
        claims = [claimed(item) for item in batch]
        self._freed(claims)
        await self._ready.acknowledge(claims)

    def _abandon(self, claimed: ClaimedMessage, error: Exception) -> None:
        self._supervisor.report("settle", error)
        self._metrics.settlement_refusals.labels("abandoned").inc()
        log.error(
            "an outcome cannot be settled; it becomes unknown when this worker ends",
            message=claimed.message.id,
        )
        self._abandoned(claimed)

    async def _insist(self, call: Callable[[Batch], Awaitable[T]], batch: Batch) -> T:
        """Repeat while PostgreSQL is unavailable. Repeating is harmless: what was settled is no longer held.

        Raises StoreDataError, and errors that do not come from PostgreSQL. A statement that is
        wrong is repeated too, until the worker has drained: somebody may be changing the schema.
        """
        pauses = backoff(RETRY_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                done = await call(batch)
            except StoreDataError:
                raise
            except StoreError as error:
                self.failing = True
                self._supervisor.failed("settle", error)
                if not error.retryable:
                    self._broke(error)
                await asyncio.sleep(next(pauses))
            else:
                self.failing = False
                self._supervisor.succeeded("settle")
                return done

    async def _written(self, results: Sequence[AttemptResult], settled: set[DeliveryKey]) -> None:
        """Free the places of what was written, log and count it, and acknowledge it."""
        claims = [result.claimed for result in results]
        delays = [
            settlement.delay
            for result in results
            for settlement in result.settlements
            if settlement.delay is not None
        ]
        try:
            self._freed(claims)
            await self._ready.acknowledge(claims)
            if delays:
                self._deferred(min(delays))
            for result in results:
                for settlement in result.settlements:
                    self._tell(result, settlement, settled)
        except Exception as error:  # no error here may make it be written again
            self._supervisor.report("settle", error)

    def _tell(
        self, result: AttemptResult, settlement: Settlement, settled: set[DeliveryKey]
    ) -> None:
        """One log line and the metrics of one settled delivery."""
        outcome = settlement.outcome
        held = (
            DeliveryKey(settlement.message_id, settlement.recipient_number, settlement.claim)
            in settled
        )
        write = log.mail if held and outcome.verdict is not Verdict.UNKNOWN else log.warning
        write(
            "attempt settled" if held else "claim was lost; outcome not settled",
            message=settlement.message_id,
            delivery=settlement.recipient_number,
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
        self._metrics.outcome(
            settlement.provider or NOBODY, outcome.verdict, settlement.reason, settlement.took
        )
        if outcome.verdict is Verdict.UNKNOWN:
            self._metrics.unknown.inc()
        if settlement.state is State.SENT:
            self._metrics.sent_after(
                result.claimed.age + settlement.ended - result.claimed.claimed_at
            )


def batch_of(results: Sequence[AttemptResult]) -> SettlementBatch:
    """Results as the queue wants them."""
    return SettlementBatch(
        [settlement for result in results for settlement in result.settlements],
        [
            (r.claimed.message.id, r.claimed.claim, r.conversation)
            for r in results
            if r.conversation
        ],
        [
            (r.claimed.message.id, r.claimed.claim, kind, data)
            for r in results
            for kind, data in r.events
        ],
        [r.claimed.message.id for r in results if r.secret],
    )


def stripped(result: AttemptResult) -> AttemptResult:
    """A result without free text: replies, the transcript, the data of events, the provider's id of the message."""
    settlements = [_stripped_settlement(one) for one in result.settlements]
    events = [(kind, "{}") for kind, _ in result.events]
    return replace(result, settlements=settlements, conversation=None, events=events)


def _stripped_settlement(one: Settlement) -> Settlement:
    earlier = [
        replace(each, reply=None, outcome=stripped_outcome(each.outcome)) for each in one.earlier
    ]
    return replace(one, reply=None, outcome=stripped_outcome(one.outcome), earlier=earlier)


def stripped_outcome(outcome: Outcome) -> Outcome:
    code = outcome.code if outcome.code in CODES else None
    return replace(outcome, code=code, text=None, provider_message_id=None)
