"""Keeps the health of providers: watches, checks and probes them, and shares what it learns with all processes."""

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

log = logs.get("pillarbox.vitals")
CHANNEL = "pillarbox_health"
# How often channels are watched for slowness: a hanging provider loses its mails this much after they
# count as slow.
WATCH_INTERVAL = 0.25
# Who comes to watch so late was held up itself: answers may be here that nobody has read yet.
LATE = 1.0
# How often the shared state is read besides notifications: new mails go elsewhere within a second.
READ_INTERVAL = 0.5
CHECK_INTERVAL = 30.0
CHECK_TIMEOUT = 10.0
# A pause shorter than this is over before others would hear of it.
WORTH_TELLING = 1.0
# Part of the month's budget after which it is told: there is time to raise it.
NEAR_BUDGET = 0.8
BUDGET_INTERVAL = 60.0


class HealthMonitor:
    """One for each worker process."""

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
        self._turned: dict[
            int, ProviderChannel
        ] = {}  # channels with news that the others do not know yet
        self._news = asyncio.Event()  # of our own, or of others'
        self._shared: dict[int, CircuitState] = {}  # as all processes know them; closed if not here
        self._shared_health: dict[
            int, SharedHealth
        ] = {}  # as last read, of providers that are switched off, too
        self._exchanged = False  # whether the shared state was read at all
        self._near: set[int] = set()  # providers whose budget is nearly used up, as was told
        self.recovered: Callable[[], None] = lambda: (
            None
        )  # told when a provider can be used, perhaps again
        pool.opened = self._opened
        pool.failed_over = self._failed_over

    async def run(self, stop: asyncio.Event) -> None:
        """All of it until `stop`."""
        run_every = self._supervisor.run_every
        await asyncio.gather(
            self._supervisor.keep("watch providers", partial(self._watch, stop), stop),
            run_every("vitals", READ_INTERVAL, self.exchange, stop),
            run_every("probes", READ_INTERVAL, self.probe_all, stop),
            run_every("checks", CHECK_INTERVAL / 6, self.check_all, stop),
            run_every("budgets", BUDGET_INTERVAL, self.read_budgets, stop),
            run_every("waits", provider_waits.REPORT_INTERVAL, self.report, stop),
        )

    async def _watch(self, stop: asyncio.Event) -> None:
        """Watch for slowness, and share news at once."""
        loop = asyncio.get_running_loop()
        watched = loop.time()
        while not stop.is_set():
            before, watched = watched, loop.time()
            if watched - before < LATE:
                for channel in self._pool.channels:
                    channel.count_slow_mails()
            try:
                async with asyncio.timeout(WATCH_INTERVAL):
                    await self._news.wait()
                self._news.clear()
                await self.share()
                await self.exchange()
            except TimeoutError:
                pass
            except StoreError as error:
                self._supervisor.report("watch providers", error)
                await wait(stop, READ_INTERVAL)

    def hint(self) -> None:
        """Another process says that a provider's health changed."""
        self._news.set()

    # -- what channels tell

    def _opened(self, channel: ProviderChannel) -> None:
        channel.changed = self._note
        if (
            shared := self._shared_health.get(channel.provider.id)
        ) is not None:  # else mails would leave before the next reading
            self._take_on(channel, shared)
        self.recovered()

    def _note(self, channel: ProviderChannel) -> None:
        breaker = channel.breaker
        self._metrics.circuit(channel.provider.name, breaker.circuit)
        if breaker.circuit is CircuitState.OPEN:
            log.warning(
                "a provider is not used for now",
                provider=channel.provider.name,
                reason=breaker.reason,
            )
        self._turned[channel.provider.id] = channel
        self._news.set()

    def _failed_over(self, before: ProviderChannel, after: ProviderChannel, reason: str) -> None:
        self._metrics.failovers.labels(before.provider.name, after.provider.name, reason).inc()

    # -- sharing

    async def share(self) -> None:
        """Write what happened to channels here for all."""
        while self._turned:
            number, channel = next(iter(self._turned.items()))
            told = channel.breaker.circuit
            await self._share(channel)
            if (
                self._turned.get(number) is channel and channel.breaker.circuit is told
            ):  # else it turned again meanwhile
                del self._turned[number]

    async def _share(self, channel: ProviderChannel) -> None:
        now = asyncio.get_running_loop().time()
        breaker, number = channel.breaker, channel.provider.id
        if breaker.circuit is not self._shared.get(number, CircuitState.CLOSED):
            wait = max(breaker.retry_at - now, 0.0)
            since = await store.turn(
                self._database,
                number,
                breaker.circuit,
                breaker.reason,
                breaker.opened,
                wait,
                self._worker,
            )
            if since is not None:
                channel.shared_version = since
                self._shared[number] = breaker.circuit
                log.info(
                    "provider turned",
                    provider=channel.provider.name,
                    circuit=breaker.circuit,
                    reason=breaker.reason,
                )
        if channel.paused_for() > WORTH_TELLING:
            await store.hold(self._database, number, channel.paused_for(), self._worker)

    async def exchange(self) -> None:
        """Read what others know."""
        self._shared_health = {
            shared.provider_id: shared for shared in await store.read(self._database)
        }
        for shared in self._shared_health.values():
            channel = self._pool.channel(shared.provider_id)
            if channel is not None and shared.provider_id not in self._turned:
                self._take_on(channel, shared)
        for channel in self._pool.channels:
            self._metrics.circuit(channel.provider.name, channel.breaker.circuit)
            self._metrics.pace.labels(channel.provider.name).set(channel.limiter.limit)
        self._exchanged = True

    async def report(self) -> None:
        """Say that this worker runs, and whether it finds a provider for any mail."""
        known = self._exchanged and self._pool.loaded
        await provider_waits.report(self._database, self._pool.usable if known else None)

    def _take_on(self, channel: ProviderChannel, shared: SharedHealth) -> None:
        if shared.held_for is not None and shared.held_for > 0:
            channel.pause(shared.held_for)
        if channel.shared_version == shared.since:
            return
        channel.shared_version = shared.since
        now = asyncio.get_running_loop().time()
        circuit = self._shared[shared.provider_id] = CircuitState(shared.state)
        if circuit is channel.breaker.circuit is CircuitState.CLOSED:
            return
        was_open = channel.breaker.circuit is CircuitState.OPEN
        retry_at = now + min(
            shared.retry_in or 0.0, LONGEST_WAIT
        )  # processes of an older version wait longer
        breaker = CircuitBreaker(
            circuit, now, 0, 0, shared.opened, retry_at, shared.reason, channel.breaker.usual
        )
        channel.adopt(breaker, share=False)
        if was_open and circuit is not CircuitState.OPEN:
            self.recovered()

    # -- probes and checks

    async def probe_all(self) -> None:
        """Probe what is due. Apart from the exchange of news: a probe may hang for as long as it is let."""
        await asyncio.gather(*map(self._probe, filter(self._due, self._pool.channels)))

    def _due(self, channel: ProviderChannel) -> bool:
        breaker = channel.breaker
        return (
            breaker.circuit is CircuitState.OPEN
            and asyncio.get_running_loop().time() >= breaker.retry_at
        )

    async def _probe(self, channel: ProviderChannel) -> None:
        """Ask a provider whose breaker is open whether it is back; one process does."""
        if not await store.take_probe(
            self._database, channel.provider.id, CHECK_TIMEOUT + READ_INTERVAL, LONGEST_WAIT
        ):
            return
        asked = asyncio.get_running_loop().time()
        ok, said = await self._ask(channel)
        now = asyncio.get_running_loop().time()
        # A server that takes long to greet would look hung for ever, did nobody learn how long it
        # takes.
        half_open = channel.breaker.learned(now - asked).probed(now)
        if ok:
            channel.adopt(half_open)
            self.recovered()
            return
        channel.adopt(
            half_open.failed(now, channel.breaker.reason or Reason.UNAVAILABLE), share=False
        )
        breaker = channel.breaker
        channel.shared_version = await store.reopen(
            self._database,
            channel.provider.id,
            breaker.reason,
            breaker.opened,
            breaker.retry_at - now,
        )
        log.warning(
            "a provider is still not to be used",
            provider=channel.provider.name,
            said=channel.redact(said),
        )

    async def check_all(self) -> None:
        """Check every provider whose turn it is, whether it is busy or not."""
        await asyncio.gather(*map(self._check, self._pool.channels))

    async def _check(self, channel: ProviderChannel) -> None:
        if (
            not kind_of(channel.provider.kind).sends_out
            or channel.breaker.circuit is CircuitState.OPEN
        ):
            return
        if not await store.take_check(self._database, channel.provider.id, CHECK_INTERVAL):
            return
        ok, said = await self._ask(channel)
        await store.checked(self._database, channel.provider.id, ok, channel.redact(said))
        if not ok:
            channel.failed(Reason.UNAVAILABLE)
        elif channel.breaker.circuit is CircuitState.HALF_OPEN:
            channel.succeeded(0.0)

    async def _ask(self, channel: ProviderChannel) -> tuple[bool, str]:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                return True, await channel.transport.check()
        except TimeoutError:
            return False, f"no answer within {CHECK_TIMEOUT:.0f} s"
        except PillarboxError as error:
            return False, str(error)

    # -- money

    async def read_budgets(self) -> None:
        """Show how much of each budget is used up, and say so before it bites."""
        for number, name, used in await store.budgets(self._database):
            self._metrics.budget_used.labels(name).set(used)
            if used < NEAR_BUDGET:
                self._near.discard(number)
            elif number not in self._near:
                self._near.add(number)
                log.warning(
                    "a provider's budget of this month is nearly used up",
                    provider=name,
                    used=round(used, 3),
                )
