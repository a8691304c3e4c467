"""Dispatches webhook calls: claims due calls, makes a few per endpoint, and stores the results.

Any number of processes may do this at once. Calls are made at least once: if a dispatcher dies, or
loses the database for longer than its lease, its calls are made again with the same id.
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
from pillarbox.store.notifications import listen
from pillarbox.store.webhooks import CallResult, ClaimedCall, Keys
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics
from pillarbox.track.webhook_client import WebhookClient, lease_of, tls_context

log = logs.get("pillarbox.webhooks")
# Seconds between looks without a notification: a call may be a second or two late.
POLL = 2.0
# Seconds before claiming again while calls are overdue: they wait for earlier ones or for room.
SOONEST = 0.1
# Pauses after a failure to claim calls or to store a result double from the first to the longest.
STORE_PAUSE, LONGEST_PAUSE = 0.5, 10.0
# Replaces an error text that PostgreSQL cannot store.
UNSTORABLE = "the reason cannot be stored"
# Seconds before a lost listening connection is opened again.
LISTEN_PAUSE = 1.0
# Seconds between counts of the waiting calls.
MEASURE = 5.0


def open_client(settings: Settings, redact: Callable[[str], str], version: str) -> WebhookClient:
    """A client for calls to webhooks. The caller must close it."""
    return WebhookClient(
        settings.webhook_timeout,
        settings.webhook_concurrency,
        redact,
        version,
        settings.webhook_allow_private,
        tls_context(settings.webhook_ca_file),
    )


# The states of a call as results in metrics and logs.
RESULTS = {
    CallState.DELIVERED: "delivered",
    CallState.WAITING: "retry",
    CallState.FAILED: "failed",
}


class WebhookDispatcher:
    """Makes the webhook calls of this process."""

    def __init__(
        self,
        database: Database,
        keys: Keys,
        settings: Settings,
        metrics: Metrics,
        client: WebhookClient,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._database = database
        self._keys = keys
        self._settings = settings
        self._metrics = metrics
        self._client = client
        self._supervisor = supervisor or Supervisor(metrics)
        self._max_calls = settings.webhook_concurrency
        # One slow endpoint cannot use all of them.
        self._per_endpoint = max(1, self._max_calls // 5)
        self._calls_of: Counter[UUID] = Counter()
        self._tasks: dict[asyncio.Task[None], ClaimedCall] = {}
        self._wake = asyncio.Event()
        self._pauses = backoff(STORE_PAUSE, LONGEST_PAUSE)

    async def run(self, stop: asyncio.Event) -> None:
        """Make calls until `stop`; then wait for the current ones and release the rest."""
        run_every = self._supervisor.run_every
        loops = [run_every("count webhook calls", MEASURE, self._measure, stop)]
        if self._settings.notify:
            listeners = {webhooks.CHANNEL: self._wake.set}
            listen_once = partial(listen, self._database, listeners, stop)
            loops.append(run_every("webhook hints", LISTEN_PAUSE, listen_once, stop))
        background = [asyncio.create_task(loop) for loop in loops]
        try:
            while not stop.is_set():
                pause = await self._round()
                await wait_for_any(stop, self._wake, seconds=pause)
                self._wake.clear()
        finally:
            await self._drain()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._client.close()

    async def run_once(self) -> int:
        """Start due calls as far as there is room; returns how many."""
        room = self._max_calls - len(self._tasks)
        if room <= 0:
            return 0
        lease = lease_of(self._settings.webhook_timeout)
        claimed = await webhooks.claim(
            self._database, self._keys, lease, room, self._per_endpoint, dict(self._calls_of)
        )
        for call in claimed:
            self._calls_of[call.endpoint_id] += 1
            task = asyncio.create_task(self._make(call))
            self._tasks[task] = call
            task.add_done_callback(self._done(call))
            self._supervisor.watch("webhook call", task)
        return len(claimed)

    async def _round(self) -> float:
        """Start due calls; returns the seconds until the next look."""
        try:
            if await self.run_once():
                return SOONEST
            due = await webhooks.due_in(self._database)
        except Exception as error:
            self._supervisor.failed("webhooks", error)
            return next(self._pauses)
        self._supervisor.succeeded("webhooks")
        self._pauses = backoff(STORE_PAUSE, LONGEST_PAUSE)
        if due is None:
            return POLL
        return min(POLL, max(due, SOONEST))

    def _done(self, call: ClaimedCall) -> Callable[[asyncio.Task[None]], None]:
        def done(task: asyncio.Task[None]) -> None:
            self._tasks.pop(task, None)
            self._calls_of[call.endpoint_id] -= 1
            if not self._calls_of[call.endpoint_id]:
                del self._calls_of[call.endpoint_id]
            self._wake.set()

        return done

    async def _make(self, call: ClaimedCall) -> None:
        result = await self._client.call(call)
        settled = await self._settle(call, result)
        word = RESULTS[result.state]
        self._metrics.webhook_calls.labels(word).inc()
        message = "webhook call made"
        if not settled.held:
            message = "webhook call made, but its claim was lost"
        write = log.debug if result.state is CallState.DELIVERED else log.mail
        write(
            message,
            call=call.id,
            endpoint=call.endpoint_id,
            kind=call.kind,
            result=word,
            status=result.status,
            error=result.error,
            seconds=round(result.took, 3),
            attempt=call.attempts + 1,
        )
        if settled.disabled:
            self._metrics.webhook_disabled.labels(settled.disabled).inc()
            log.warning(
                "a webhook was disabled; its calls wait until it is enabled again",
                endpoint=call.endpoint_id,
                tenant=settled.tenant_id,
                reason=settled.disabled,
            )

    async def _settle(self, call: ClaimedCall, result: CallResult) -> webhooks.SettledCall:
        """Store a result, with retries; once the lease has ended this changes nothing."""
        pauses = backoff(STORE_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                return await webhooks.settle(
                    self._database, call, result, self._settings.webhook_disable_after
                )
            except StoreDataError as error:
                if result.error in (None, UNSTORABLE):
                    raise  # another value is wrong: the call is made again when its lease ends
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
            with contextlib.suppress(StoreError):  # then their leases expire
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
