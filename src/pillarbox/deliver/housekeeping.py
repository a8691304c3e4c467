"""Housekeeping, safe in any number of processes at once: reap, promote, retain, measure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pillarbox.model.delivery import State
from pillarbox.queue.ledger import Ledger
from pillarbox.settings import Settings
from pillarbox.store import lifecycle_schema
from pillarbox.store.database import Database
from pillarbox.store.lifecycle import TokenStore
from pillarbox.store.provider_waits import MaxWaitEnforcer
from pillarbox.store.retention import purge, purge_webhook_calls
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.chores")
# Deliveries per statement: large enough to empty a crashed worker's window at once.
BATCH = 1000
# Scheduled mails leave within a second of their time, with room for a busy moment.
PROMOTE_INTERVAL = 0.5
# How often a process notes that the database is available: often enough to notice a gap of a third
# of any lease, also of a shorter lease of another process. It is one cheap statement, and only one
# process writes.
TOUCH_INTERVAL, TOUCHES_PER_LEASE = 1.0, 12
# How often to look for mails that have waited too long for a provider, and rounds of BATCH at a
# time: a million waiting mails are examined within the hour, and waits of days need no more
# precision.
GIVE_UP_INTERVAL = 10.0
GIVE_UP_ROUNDS = 5
# Tenants whose depth is read: as many as the metrics have series for.
LONGEST_SHOWN = 50


class Housekeeping:
    """Each method does one round and returns how many rows it changed."""

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        metrics: Metrics,
        settings: Settings,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._metrics = metrics
        self._settings = settings
        self._touch_interval = min(TOUCH_INTERVAL, settings.worker_lease / TOUCHES_PER_LEASE)
        self._supervisor = supervisor or Supervisor(metrics)
        self._patience = MaxWaitEnforcer(database)

    async def run(self, stop: asyncio.Event) -> None:
        """Run all of them until `stop`, each at its own interval."""
        settings = self._settings
        run_every = self._supervisor.run_every
        await asyncio.gather(
            run_every(
                "availability",
                self._touch_interval,
                self.touch,
                stop,
                longest=settings.worker_lease / TOUCHES_PER_LEASE,
            ),
            run_every("reap", settings.reap_interval, self.reap, stop),
            run_every("promote", PROMOTE_INTERVAL, self.promote, stop),
            run_every("give_up", GIVE_UP_INTERVAL, self.give_up, stop),
            run_every("retention", settings.retention_interval, self.retain, stop),
            run_every("measure", settings.worker_poll_interval, self.measure, stop),
        )

    async def touch(self) -> None:
        """Note that the database is available; the reaper needs that for the length of a lease."""
        await self._ledger.touch(self._settings.worker_lease)

    async def reap_patiently(self, on_wait: Callable[[float], None]) -> int:
        """Reap as soon as it is safe, in a process without workers.

        `on_wait` is called with the seconds until then, if that is not now.
        """
        lease = self._settings.worker_lease
        wait = await self._ledger.reap_wait(lease)
        if wait is not None and wait > 0:
            on_wait(wait)
        while wait is not None and wait > 0:
            await asyncio.sleep(min(wait, self._touch_interval))
            wait = await self._ledger.reap_wait(lease)
        return await self.reap()

    async def reap(self) -> int:
        """Take back the claims of workers whose lease ran out."""
        reaped = 0
        while count := await self._ledger.reap(BATCH, self._settings.worker_lease):
            reaped += count
        if reaped:
            log.warning(
                "claims of a lost worker were returned; their attempts are unknown",
                deliveries=reaped,
            )
            self._metrics.reaped.inc(reaped)
            self._metrics.unknown.inc(reaped)
            await self._ledger.wake_workers()
        await self._ledger.forget_workers()
        return reaped

    async def promote(self) -> int:
        """Queue scheduled mails whose time has come."""
        promoted = 0
        while count := await self._ledger.promote(BATCH):
            promoted += count
            await self._ledger.wake_workers()
        return promoted

    async def give_up(self) -> int:
        """End mails that have found no provider for as long as their class allows."""
        total = 0
        for _ in range(GIVE_UP_ROUNDS):
            ended = await self._patience.give_up(BATCH)
            for tenant, count in ended.items():
                for _ in range(count):
                    self._metrics.settled_for(tenant, State.FAILED)
            total += ended.total()
        if total:
            log.warning("mails waited for a provider for too long and failed", deliveries=total)
        return total

    async def retain(self) -> int:
        """Delete what is older than its retention."""
        settings = self._settings
        dropped = await purge(
            self._database,
            settings.retention_content,
            settings.retention_finished,
            settings.retention_batch,
        )
        dropped["webhook_calls"] += await purge_webhook_calls(
            self._database, settings.retention_webhooks, settings.retention_batch
        )
        dropped["account_tokens"] += await self._drop_tokens()
        for what, count in dropped.items():
            self._metrics.retention_deleted.labels(what).inc(count)
        return dropped.total()

    async def _drop_tokens(self) -> int:
        """Delete old tokens of accounts, if accounts are installed."""
        settings = self._settings
        age = settings.retention_tokens
        schema = settings.lifecycle_schema
        if age is None or not await lifecycle_schema.is_installed(self._database, schema):
            return 0
        return await TokenStore(schema).purge(self._database, age, settings.retention_batch)

    async def measure(self) -> int:
        """Measure the queue's depth for the metrics."""
        depth = await self._ledger.depth()
        self._metrics.depth(depth, self._settings.depth_alert)
        self._metrics.waiting_by_tenant(*await self._ledger.longest_backlogs(LONGEST_SHOWN))
        self._metrics.workers.set(await self._ledger.workers_alive())
        return len(depth)
