"""Calls customers: takes what is due, a few at a time from each, and writes down how each call went.

Any number of processes may do this at once. Calls are made at least once: one whose caller died, or
lost the store for longer than its lease, is made again under the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from uuid import UUID

from pillarbox.errors import StoreDataError, StoreError
from pillarbox.loops import backoff, wait_for_any
from pillarbox.model.webhook import CallState
from pillarbox.settings import Settings
from pillarbox.store import webhooks
from pillarbox.store.database import Database
from pillarbox.store.notifications import hear
from pillarbox.store.webhooks import CallResult, ClaimedCall, Keys
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics
from pillarbox.track.webhook_client import WebhookClient, lease_of, trusted

log = logs.get("pillarbox.webhooks")
# How often to look without being told: a call is no mail, a second or two later is as good.
POLL = 2.0
# Overdue calls that a claim did not return are held back by earlier ones, or by how many may be
# made at once.
SOONEST = 0.1
# Pauses after a failure to look for calls, or to write a result, double from the first to the
# longest.
STORE_PAUSE, LONGEST_PAUSE = 0.5, 10.0
# Stands for a text about a failed call that PostgreSQL cannot hold.
UNSTORABLE = "the reason cannot be stored"
# How often a broken listening connection is opened again.
LISTEN_PAUSE = 1.0
# How often the number of waiting calls is read.
MEASURE = 5.0


def open_client(settings: Settings, redact: Callable[[str], str], version: str) -> WebhookClient:
    """A client for calls to webhooks. The caller must close it."""
    return WebhookClient(
        settings.webhook_timeout,
        settings.webhook_concurrency,
        redact,
        version,
        settings.webhook_allow_private,
        trusted(settings.webhook_ca_file),
    )


class WebhookDispatcher:
    """Makes the calls of this process."""

    def __init__(
        self,
        database: Database,
        keys: Keys,
        settings: Settings,
        metrics: Metrics,
        line: WebhookClient,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._database = database
        self._keys = keys
        self._settings = settings
        self._metrics = metrics
        self._line = line
        self._supervisor = supervisor or Supervisor(metrics)
        self._most = settings.webhook_concurrency
        # So that one customer's slow server cannot take every place.
        self._per_endpoint = max(1, self._most // 5)
        self._in_hand: Counter[UUID] = Counter()
        self._tasks: dict[asyncio.Task[None], ClaimedCall] = {}
        self._look = asyncio.Event()
        self._pauses = backoff(STORE_PAUSE, LONGEST_PAUSE)

    async def run(self, stop: asyncio.Event) -> None:
        """Make calls until `stop`; then wait for those in hand, and give back what does not end."""
        run_every = self._supervisor.run_every
        loops = [run_every("count webhook calls", MEASURE, self._measure, stop)]
        if self._settings.notify:
            told = {webhooks.CHANNEL: self._look.set}
            loops.append(
                run_every(
                    "webhook hints", LISTEN_PAUSE, partial(hear, self._database, told, stop), stop
                )
            )
        background = [asyncio.create_task(one) for one in loops]
        try:
            while not stop.is_set():
                pause = await self._round()
                await wait_for_any(stop, self._look, seconds=pause)
                self._look.clear()
        finally:
            await self._drain()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._line.close()

    async def run_once(self) -> int:
        """Begin what is due, as far as there is room; returns how many."""
        room = self._most - len(self._tasks)
        if room <= 0:
            return 0
        lease = lease_of(self._settings.webhook_timeout)
        found = await webhooks.claim(
            self._database, self._keys, lease, room, self._per_endpoint, dict(self._in_hand)
        )
        for call in found:
            self._in_hand[call.endpoint_id] += 1
            task = asyncio.create_task(self._make(call))
            self._tasks[task] = call
            task.add_done_callback(self._done(call))
            self._supervisor.watch("webhook call", task)
        return len(found)

    async def _round(self) -> float:
        """Begin what is due; returns how long to wait before looking again."""
        try:
            if await self.run_once():
                return SOONEST
            due = await webhooks.due_in(self._database)
        except Exception as error:
            self._supervisor.failed("webhooks", error)
            return next(self._pauses)
        self._supervisor.succeeded("webhooks")
        self._pauses = backoff(STORE_PAUSE, LONGEST_PAUSE)
        return POLL if due is None else min(POLL, max(due, SOONEST))

    def _done(self, call: ClaimedCall) -> Callable[[asyncio.Task[None]], None]:
        def done(task: asyncio.Task[None]) -> None:
            self._tasks.pop(task, None)
            self._in_hand[call.endpoint_id] -= 1
            if not self._in_hand[call.endpoint_id]:
                del self._in_hand[call.endpoint_id]
            self._look.set()

        return done

    async def _make(self, call: ClaimedCall) -> None:
        result = await self._line.call(call)
        settled = await self._settle(call, result)
        word = {
            CallState.DELIVERED: "delivered",
            CallState.WAITING: "retry",
            CallState.FAILED: "failed",
        }[result.state]
        self._metrics.webhook_calls.labels(word).inc()
        write = log.debug if result.state is CallState.DELIVERED else log.mail
        write(
            "webhook call made" if settled.held else "webhook call made, but its claim was lost",
            call=call.id, endpoint=call.endpoint_id, kind=call.kind, result=word, status=result.status,
            error=result.error, seconds=round(result.took, 3), attempt=call.attempts + 1,
        )  # fmt: skip
        if settled.disabled:
            self._metrics.webhook_disabled.labels(settled.disabled).inc()
            log.warning(
                "a webhook was disabled; what waits is kept until it is enabled again",
                endpoint=call.endpoint_id, tenant=settled.tenant_id, reason=settled.disabled,
            )  # fmt: skip

    async def _settle(self, call: ClaimedCall, result: CallResult) -> webhooks.SettledCall:
        """Insist until it is written; after the lease another makes the call again, and this changes nothing."""
        pauses = backoff(STORE_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                return await webhooks.settle(
                    self._database, call, result, self._settings.webhook_disable_after
                )
            except StoreDataError as error:
                if result.error in (None, UNSTORABLE):
                    raise  # not the text's fault: the call is made again when its lease has run out
                self._supervisor.report("webhook call", error)
                result = replace(result, error=UNSTORABLE)
            except StoreError as error:
                if not error.retryable:
                    raise
                self._supervisor.report("webhook call", error)
                await asyncio.sleep(next(pauses))

    async def _drain(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.worker_drain_timeout)
        left = dict(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for call in left.values():
            with contextlib.suppress(StoreError):  # then their leases end by themselves
                await webhooks.release(self._database, call)

    async def _measure(self) -> None:
        self._metrics.webhook_waiting.set(await webhooks.count_waiting(self._database))


async def send_test_call(
    database: Database, keys: Keys, client: WebhookClient, endpoint_id: UUID, tenant_id: int
) -> CallResult:
    """Make one test call immediately, without retries, and close the client."""
    try:
        call = await webhooks.add_test(database, keys, endpoint_id, tenant_id)
        result = await client.call(call)
        state = CallState.DELIVERED
        if result.error is not None:
            state = CallState.FAILED
        ended = CallResult(state, result.status, result.error, result.took)
        await webhooks.settle_test(database, call, ended)
        return ended
    finally:
        await client.close()
