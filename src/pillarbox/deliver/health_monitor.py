"""Watches, checks and probes providers, and shares their health with all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from pillarbox.deliver.provider_channel import ProviderChannel
from pillarbox.deliver.provider_pool import ProviderPool
from pillarbox.errors import PillarboxError, StoreError
from pillarbox.loops import wait
from pillarbox.model.outcome import Reason
from pillarbox.model.provider_kinds import kind_of
from pillarbox.route.circuit_breaker import LONGEST_WAIT, CircuitBreaker, CircuitState
from pillarbox.store import provider_waits
from pillarbox.store import shared_health as store
from pillarbox.store.database import Database
from pillarbox.store.shared_health import SharedHealth
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.provider_health")
NOTIFY_CHANNEL = "pillarbox_health"
# How often channels are looked at for slow mails: a provider that hangs loses its mails this much
# later than they count as slow.
WATCH_INTERVAL = 0.25
# When the event loop was blocked for so long, answers may have arrived that are not read yet.
BLOCKED_FOR = 1.0
# How often the shared state is read besides notifications: new mails fail over within a second.
READ_INTERVAL = 0.5
CHECK_INTERVAL = 30.0
CHECK_TIMEOUT = 10.0
# A shorter pause would be over before other processes read of it.
SHORTEST_SHARED_PAUSE = 1.0
# Part of the month's budget after which a warning is logged: there is time to raise it.
NEAR_BUDGET = 0.8
BUDGET_INTERVAL = 60.0


def _ignore() -> None:
    pass


class HealthMonitor:
    """Keeps the health of the providers of one worker process."""

    def __init__(
        self,
        worker: str,
        database: Database,
        pool: ProviderPool,
        metrics: Metrics,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._worker = worker
        self._database = database
        self._pool = pool
        self._metrics = metrics
        self._supervisor = supervisor or Supervisor(metrics)
        # Channels whose state other processes do not know yet.
        self._unshared: dict[int, ProviderChannel] = {}
        self._news = asyncio.Event()  # set by channels of this process and by notifications
        # The shared state of breakers; closed if missing.
        self._shared_circuits: dict[int, CircuitState] = {}
        # As last read, of disabled providers, too.
        self._shared_health: dict[int, SharedHealth] = {}
        self._has_read = False  # whether the shared state was read at all
        self._near_budget: set[int] = set()  # providers for which a warning was logged
        self.recovered: Callable[[], None] = _ignore  # called when a provider may be usable again
        pool.opened = self._opened
        pool.failed_over = self._failed_over

    async def run(self, stop: asyncio.Event) -> None:
        """Run all loops until `stop`."""
        run_every = self._supervisor.run_every
        await asyncio.gather(
            self._supervisor.keep("watch providers", partial(self._watch, stop), stop),
            run_every("vitals", READ_INTERVAL, self.read_shared, stop),
            run_every("probes", READ_INTERVAL, self.probe_all, stop),
            run_every("checks", CHECK_INTERVAL / 6, self.check_all, stop),
            run_every("budgets", BUDGET_INTERVAL, self.read_budgets, stop),
            run_every("waits", provider_waits.REPORT_INTERVAL, self.report, stop),
        )

    async def _watch(self, stop: asyncio.Event) -> None:
        """Count slow mails, and share changes at once."""
        loop = asyncio.get_running_loop()
        watched = loop.time()
        while not stop.is_set():
            before, watched = watched, loop.time()
            if watched - before < BLOCKED_FOR:
                for channel in self._pool.channels:
                    channel.count_slow_mails()
            try:
                async with asyncio.timeout(WATCH_INTERVAL):
                    await self._news.wait()
                self._news.clear()
                await self.share()
                await self.read_shared()
            except TimeoutError:
                pass
            except StoreError as error:
                self._supervisor.report("watch providers", error)
                await wait(stop, READ_INTERVAL)

    def hint(self) -> None:
        """Another process has notified that a provider's health changed."""
        self._news.set()

    # -- callbacks of pool and channels

    def _opened(self, channel: ProviderChannel) -> None:
        channel.changed = self._changed
        shared = self._shared_health.get(channel.provider.id)
        if shared is not None:  # else mails would leave before the next reading
            self._apply(channel, shared)
        self.recovered()

    def _changed(self, channel: ProviderChannel) -> None:
        breaker, name = channel.breaker, channel.provider.name
        self._metrics.circuit(name, breaker.circuit)
        if breaker.circuit is CircuitState.OPEN:
            log.warning("circuit breaker opened", provider=name, reason=breaker.reason)
        self._unshared[channel.provider.id] = channel
        self._news.set()

    def _failed_over(self, before: ProviderChannel, after: ProviderChannel, reason: str) -> None:
        self._metrics.failovers.labels(before.provider.name, after.provider.name, reason).inc()

    # -- the shared state

    async def share(self) -> None:
        """Write changes of channels in this process for all processes."""
        while self._unshared:
            provider_id, channel = next(iter(self._unshared.items()))
            circuit = channel.breaker.circuit
            await self._share(channel)
            is_current = self._unshared.get(provider_id) is channel
            if is_current and channel.breaker.circuit is circuit:  # else it changed again meanwhile
                del self._unshared[provider_id]

    async def _share(self, channel: ProviderChannel) -> None:
        breaker, provider_id = channel.breaker, channel.provider.id
        shared = self._shared_circuits.get(provider_id, CircuitState.CLOSED)
        if breaker.circuit is not shared:
            seconds = max(breaker.retry_at - asyncio.get_running_loop().time(), 0.0)
            version = await store.change_state(
                self._database,
                provider_id,
                breaker.circuit,
                breaker.reason,
                breaker.opened,
                seconds,
                self._worker,
            )
            if version is not None:
                channel.shared_version = version
                self._shared_circuits[provider_id] = breaker.circuit
                log.info(
                    "circuit breaker changed",
                    provider=channel.provider.name,
                    circuit=breaker.circuit,
                    reason=breaker.reason,
                )
        if channel.paused_for() > SHORTEST_SHARED_PAUSE:
            await store.share_pause(self._database, provider_id, channel.paused_for(), self._worker)

    async def read_shared(self) -> None:
        """Read the shared state, and apply it to the channels of this process."""
        read = await store.list_shared_health(self._database)
        self._shared_health = {shared.provider_id: shared for shared in read}
        for shared in read:
            channel = self._pool.channel(shared.provider_id)
            if channel is not None and shared.provider_id not in self._unshared:
                self._apply(channel, shared)
        for channel in self._pool.channels:
            self._metrics.circuit(channel.provider.name, channel.breaker.circuit)
            self._metrics.pace.labels(channel.provider.name).set(channel.limiter.limit)
        self._has_read = True

    async def report(self) -> None:
        """Report that this worker runs, and whether a provider is usable for any mail."""
        usable: bool | None = None
        if self._has_read and self._pool.loaded:
            usable = self._pool.usable
        await provider_waits.report(self._database, usable)

    def _apply(self, channel: ProviderChannel, shared: SharedHealth) -> None:
        if shared.held_for is not None and shared.held_for > 0:
            channel.pause(shared.held_for)
        if channel.shared_version == shared.since:
            return
        channel.shared_version = shared.since
        now = asyncio.get_running_loop().time()
        circuit = self._shared_circuits[shared.provider_id] = CircuitState(shared.state)
        if circuit is channel.breaker.circuit is CircuitState.CLOSED:
            return
        was_open = channel.breaker.circuit is CircuitState.OPEN
        breaker = CircuitBreaker(
            circuit,
            since=now,
            opened=shared.opened,
            retry_at=now + min(shared.retry_in or 0.0, LONGEST_WAIT),  # older versions wait longer
            reason=shared.reason,
            usual=channel.breaker.usual,
        )
        channel.adopt(breaker, share=False)
        if was_open and circuit is not CircuitState.OPEN:
            self.recovered()

    # -- probes and checks

    async def probe_all(self) -> None:
        """Probe open breakers that are due; a loop of its own, because a probe may hang."""
        now = asyncio.get_running_loop().time()
        due = [
            channel
            for channel in self._pool.channels
            if channel.breaker.circuit is CircuitState.OPEN and now >= channel.breaker.retry_at
        ]
        await asyncio.gather(*map(self._probe, due))

    async def _probe(self, channel: ProviderChannel) -> None:
        """Check whether a provider with an open breaker is back; one process does."""
        provider_id = channel.provider.id
        lease = CHECK_TIMEOUT + READ_INTERVAL
        if not await store.take_probe(self._database, provider_id, lease, LONGEST_WAIT):
            return
        started = asyncio.get_running_loop().time()
        ok, text = await self._check_transport(channel)
        now = asyncio.get_running_loop().time()
        # Otherwise a server that is slow to greet would count as slow for ever.
        half_open = channel.breaker.learned(now - started).probed(now)
        if ok:
            channel.adopt(half_open)
            self.recovered()
            return
        reason = channel.breaker.reason or Reason.UNAVAILABLE
        channel.adopt(half_open.failed(now, reason), share=False)
        breaker = channel.breaker
        channel.shared_version = await store.reopen(
            self._database, provider_id, breaker.reason, breaker.opened, breaker.retry_at - now
        )
        log.warning(
            "probe of a provider failed", provider=channel.provider.name, said=channel.redact(text)
        )

    async def check_all(self) -> None:
        """Check every provider that is due, whether it is busy or not."""
        await asyncio.gather(*map(self._check, self._pool.channels))

    async def _check(self, channel: ProviderChannel) -> None:
        if channel.breaker.circuit is CircuitState.OPEN:
            return
        if not kind_of(channel.provider.kind).sends_out:
            return
        if not await store.take_check(self._database, channel.provider.id, CHECK_INTERVAL):
            return
        ok, text = await self._check_transport(channel)
        await store.record_check(self._database, channel.provider.id, ok, channel.redact(text))
        if not ok:
            channel.failed(Reason.UNAVAILABLE)
        elif channel.breaker.circuit is CircuitState.HALF_OPEN:
            channel.succeeded(0.0)

    async def _check_transport(self, channel: ProviderChannel) -> tuple[bool, str]:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                return True, await channel.transport.check()
        except TimeoutError:
            return False, f"no answer within {CHECK_TIMEOUT:.0f} s"
        except PillarboxError as error:
            return False, str(error)

    # -- budgets

    async def read_budgets(self) -> None:
        """Set the budget metrics, and warn before a budget is used up."""
        for provider_id, name, used in await store.list_budgets(self._database):
            self._metrics.budget_used.labels(name).set(used)
            if used < NEAR_BUDGET:
                self._near_budget.discard(provider_id)
            elif provider_id not in self._near_budget:
                self._near_budget.add(provider_id)
                log.warning(
                    "a provider's budget for this month is nearly used up",
                    provider=name,
                    used=round(used, 3),
                )
