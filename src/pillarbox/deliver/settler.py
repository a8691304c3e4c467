"""Writes the outcomes of attempts in batches; retries while PostgreSQL is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

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
# Messages per statement: beyond some hundreds a larger one saves nothing and holds locks longer.
LARGEST_BATCH = 500
# Pauses between retries double from the first to the longest; short, because nothing is claimed
# until one succeeds.
RETRY_PAUSE, LONGEST_PAUSE = 0.5, 5.0
# Valid reply codes; others are dropped from an outcome that PostgreSQL refused.
CODES = range(100, 1000)
# The label of mails that were refused before they had a provider.
NO_PROVIDER = "none"
Postponed = tuple[ClaimedMessage, float, Reason]
T = TypeVar("T")
Batch = TypeVar("Batch")


class Settler:
    """Collects results, released and postponed claims, and writes them in the background.

    `freed` is called with claims that are done, `deferred` with the seconds until one is due again,
    `abandoned` with a claim that cannot be written at all, and `broke` with an error that proves a
    bug.
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
        self._released: list[ClaimedMessage] = []
        self._postponed: list[Postponed] = []
        self._work = asyncio.Event()
        self.failing = False  # whether the last write failed

    def settle(self, result: AttemptResult) -> None:
        self._results.append(result)
        self._work.set()

    def release(self, claimed: ClaimedMessage) -> None:
        self._released.append(claimed)
        self._work.set()

    def postpone(self, claimed: ClaimedMessage, seconds: float, reason: Reason) -> None:
        self._postponed.append((claimed, seconds, reason))
        self._work.set()

    async def run(self) -> None:
        """Write until cancelled: a shutdown does so when everything is written, or cannot be."""
        while True:
            while self._results or self._released or self._postponed:
                await self._write_some()
            await self._work.wait()
            self._work.clear()

    async def _write_some(self) -> None:
        results = self._results[:LARGEST_BATCH]
        if results:
            await self._write_results(results)
            del self._results[: len(results)]
        released = self._released[:LARGEST_BATCH]
        if released:
            await self._write_claims(self._ledger.release, released, lambda claimed: claimed)
            del self._released[: len(released)]
        postponed = self._postponed[:LARGEST_BATCH]
        if postponed:
            await self._write_claims(self._ledger.postpone, postponed, lambda entry: entry[0])
            del self._postponed[: len(postponed)]

    async def _write_results(self, results: list[AttemptResult]) -> None:
        """Write a batch; one that PostgreSQL refuses is halved until the bad outcome is alone."""
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
        """Write an outcome without the texts that came from a provider."""
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
        """Retry while PostgreSQL is unavailable; a retry is harmless, because settling is fenced.

        Raises StoreDataError, and errors that do not come from PostgreSQL. A statement that is
        wrong is retried, too, until the worker has drained: the schema may be changing.
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
                    self._report(result, settlement, settled)
        except Exception as error:  # it must not be written again
            self._supervisor.report("settle", error)

    def _report(
        self, result: AttemptResult, settlement: Settlement, settled: set[DeliveryKey]
    ) -> None:
        """Log and count one settled delivery."""
        outcome = settlement.outcome
        key = DeliveryKey(settlement.message_id, settlement.recipient_number, settlement.claim)
        is_settled = key in settled
        is_unknown = outcome.verdict is Verdict.UNKNOWN
        write = log.mail if is_settled and not is_unknown else log.warning
        write(
            "attempt settled" if is_settled else "claim was lost; outcome not settled",
            message=settlement.message_id,
            delivery=settlement.recipient_number,
            attempt=settlement.claim,
            provider=settlement.provider,
            outcome=outcome.verdict,
            reason=settlement.reason,
            state=settlement.state,
            seconds=round(settlement.took, 6),
        )
        if not is_settled:
            self._metrics.stale_settlements.inc()
            return
        self._metrics.settled_for(result.claimed.tenant_id, settlement.state)
        self._metrics.outcome(
            settlement.provider or NO_PROVIDER, outcome.verdict, settlement.reason, settlement.took
        )
        if is_unknown:
            self._metrics.unknown.inc()
        if settlement.state is State.SENT:
            self._metrics.sent_after(
                result.claimed.age + settlement.ended - result.claimed.claimed_at
            )


def batch_of(results: Sequence[AttemptResult]) -> SettlementBatch:
    """The results as one batch for the ledger."""
    settlements: list[Settlement] = []
    transcripts: list[tuple[UUID, int, str]] = []
    events: list[tuple[UUID, int, str, str]] = []
    secret_messages: list[UUID] = []
    for result in results:
        message_id, claim = result.claimed.message.id, result.claimed.claim
        settlements += result.settlements
        if result.transcript:
            transcripts.append((message_id, claim, result.transcript))
        for kind, data in result.events:
            events.append((message_id, claim, kind, data))
        if result.secret:
            secret_messages.append(message_id)
    return SettlementBatch(settlements, transcripts, events, secret_messages)


def stripped(result: AttemptResult) -> AttemptResult:
    """A result without free text: replies, transcript, event data, provider message ids."""
    settlements = [_stripped_settlement(settlement) for settlement in result.settlements]
    events = [(kind, "{}") for kind, _ in result.events]
    return replace(result, settlements=settlements, transcript=None, events=events)


def _stripped_settlement(settlement: Settlement) -> Settlement:
    earlier = [
        replace(attempt, reply=None, outcome=stripped_outcome(attempt.outcome))
        for attempt in settlement.earlier
    ]
    outcome = stripped_outcome(settlement.outcome)
    return replace(settlement, reply=None, outcome=outcome, earlier=earlier)


def stripped_outcome(outcome: Outcome) -> Outcome:
    code = outcome.code if outcome.code in CODES else None
    return replace(outcome, code=code, text=None, provider_message_id=None)
