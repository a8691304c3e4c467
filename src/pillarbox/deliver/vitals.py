"""Keeps the health of providers: watches, checks and probes them, and shares what it learns with all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from pillarbox.deliver.line import Line
from pillarbox.deliver.roster import Roster
from pillarbox.errors import PillarboxError, StoreError
from pillarbox.loops import wait
from pillarbox.model.outcome import Reason
from pillarbox.route.health import LONGEST_WAIT, Circuit, Health
from pillarbox.store import vitals as store
from pillarbox.store import waits
from pillarbox.store.database import Database
from pillarbox.store.vitals import Vital
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.vitals")
CHANNEL = "pillarbox_health"
# How often lines are watched for slowness: a hanging provider loses its mails this much after they
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


class Vitals:
    """One for each worker process."""

    def __init__(
        self,
        worker: str,
        database: Database,
        roster: Roster,
        metrics: Metrics,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._worker = worker
        self._database = database
        self._roster = roster
        self._metrics = metrics
        self._supervisor = supervisor or Supervisor(metrics)
        self._turned: dict[int, Line] = {}  # lines with news that the others do not know yet
        self._news = asyncio.Event()  # of our own, or of others'
        self._shared: dict[int, Circuit] = {}  # as all processes know them; closed if not here
        self._vitals: dict[int, Vital] = {}  # as last read, of providers that are switched off, too
        self._exchanged = False  # whether the shared state was read at all
        self._near: set[int] = set()  # providers whose budget is nearly used up, as was told
        self.recovered: Callable[[], None] = lambda: (
            None
        )  # told when a provider can be used, perhaps again
        roster.opened = self._opened
        roster.failed_over = self._failed_over

    async def run(self, stop: asyncio.Event) -> None:
        """All of it until `stop`."""
        run_every = self._supervisor.run_every
        await asyncio.gather(
            self._supervisor.keep("watch providers", partial(self._watch, stop), stop),
            run_every("vitals", READ_INTERVAL, self.exchange, stop),
            run_every("probes", READ_INTERVAL, self.probe_all, stop),
            run_every("checks", CHECK_INTERVAL / 6, self.check_all, stop),
            run_every("budgets", BUDGET_INTERVAL, self.read_budgets, stop),
            run_every("waits", waits.REPORT_INTERVAL, self.report, stop),
        )

    async def _watch(self, stop: asyncio.Event) -> None:
        """Watch for slowness, and share news at once."""
        loop = asyncio.get_running_loop()
        watched = loop.time()
        while not stop.is_set():
            before, watched = watched, loop.time()
            if watched - before < LATE:
                for line in self._roster.lines:
                    line.watch()
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

    # -- what lines tell

    def _opened(self, line: Line) -> None:
        line.turned = self._note
        if (
            vital := self._vitals.get(line.provider.id)
        ) is not None:  # else mails would leave before the next reading
            self._take_on(line, vital)
        self.recovered()

    def _note(self, line: Line) -> None:
        health = line.health
        self._metrics.circuit(line.provider.name, health.circuit)
        if health.circuit is Circuit.OPEN:
            log.warning(
                "a provider is not used for now", provider=line.provider.name, reason=health.reason
            )
        self._turned[line.provider.id] = line
        self._news.set()

    def _failed_over(self, before: Line, after: Line, reason: str) -> None:
        self._metrics.failovers.labels(before.provider.name, after.provider.name, reason).inc()

    # -- sharing

    async def share(self) -> None:
        """Write what happened to lines here for all."""
        while self._turned:
            number, line = next(iter(self._turned.items()))
            told = line.health.circuit
            await self._share(line)
            if (
                self._turned.get(number) is line and line.health.circuit is told
            ):  # else it turned again meanwhile
                del self._turned[number]

    async def _share(self, line: Line) -> None:
        now = asyncio.get_running_loop().time()
        health, number = line.health, line.provider.id
        if health.circuit is not self._shared.get(number, Circuit.CLOSED):
            wait = max(health.retry_at - now, 0.0)
            since = await store.turn(
                self._database,
                number,
                health.circuit,
                health.reason,
                health.opened,
                wait,
                self._worker,
            )
            if since is not None:
                line.seen = since
                self._shared[number] = health.circuit
                log.info(
                    "provider turned",
                    provider=line.provider.name,
                    circuit=health.circuit,
                    reason=health.reason,
                )
        if line.paused_for() > WORTH_TELLING:
            await store.hold(self._database, number, line.paused_for(), self._worker)

    async def exchange(self) -> None:
        """Read what others know."""
        self._vitals = {vital.provider_id: vital for vital in await store.read(self._database)}
        for vital in self._vitals.values():
            line = self._roster.line(vital.provider_id)
            if line is not None and vital.provider_id not in self._turned:
                self._take_on(line, vital)
        for line in self._roster.lines:
            self._metrics.circuit(line.provider.name, line.health.circuit)
            self._metrics.pace.labels(line.provider.name).set(line.pace.limit)
        self._exchanged = True

    async def report(self) -> None:
        """Say that this worker runs, and whether it finds a provider for any mail."""
        known = self._exchanged and self._roster.read
        await waits.report(self._database, self._roster.usable if known else None)

    def _take_on(self, line: Line, vital: Vital) -> None:
        if vital.held_for is not None and vital.held_for > 0:
            line.pause(vital.held_for)
        if line.seen == vital.since:
            return
        line.seen = vital.since
        now = asyncio.get_running_loop().time()
        circuit = self._shared[vital.provider_id] = Circuit(vital.state)
        if circuit is line.health.circuit is Circuit.CLOSED:
            return
        was_open = line.health.circuit is Circuit.OPEN
        retry_at = now + min(
            vital.retry_in or 0.0, LONGEST_WAIT
        )  # processes of an older version wait longer
        shared = Health(circuit, now, 0, 0, vital.opened, retry_at, vital.reason, line.health.usual)
        line.adopt(shared, told=False)
        if was_open and circuit is not Circuit.OPEN:
            self.recovered()

    # -- probes and checks

    async def probe_all(self) -> None:
        """Probe what is due. Apart from the exchange of news: a probe may hang for as long as it is let."""
        await asyncio.gather(*map(self._probe, filter(self._due, self._roster.lines)))

    def _due(self, line: Line) -> bool:
        health = line.health
        return (
            health.circuit is Circuit.OPEN and asyncio.get_running_loop().time() >= health.retry_at
        )

    async def _probe(self, line: Line) -> None:
        """Ask a provider whose breaker is open whether it is back; one process does."""
        if not await store.take_probe(
            self._database, line.provider.id, CHECK_TIMEOUT + READ_INTERVAL, LONGEST_WAIT
        ):
            return
        asked = asyncio.get_running_loop().time()
        ok, said = await self._ask(line)
        now = asyncio.get_running_loop().time()
        # A server that takes long to greet would look hung for ever, did nobody learn how long it
        # takes.
        half_open = line.health.learned(now - asked).probed(now)
        if ok:
            line.adopt(half_open)
            self.recovered()
            return
        line.adopt(half_open.failed(now, line.health.reason or Reason.UNAVAILABLE), told=False)
        health = line.health
        line.seen = await store.reopen(
            self._database, line.provider.id, health.reason, health.opened, health.retry_at - now
        )
        log.warning(
            "a provider is still not to be used",
            provider=line.provider.name,
            said=line.redact(said),
        )

    async def check_all(self) -> None:
        """Check every provider whose turn it is, whether it is busy or not."""
        await asyncio.gather(*map(self._check, self._roster.lines))

    async def _check(self, line: Line) -> None:
        if line.provider.kind == "capture" or line.health.circuit is Circuit.OPEN:
            return
        if not await store.take_check(self._database, line.provider.id, CHECK_INTERVAL):
            return
        ok, said = await self._ask(line)
        await store.checked(self._database, line.provider.id, ok, line.redact(said))
        if not ok:
            line.failed(Reason.UNAVAILABLE)
        elif line.health.circuit is Circuit.HALF_OPEN:
            line.succeeded(0.0)

    async def _ask(self, line: Line) -> tuple[bool, str]:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                return True, await line.transport.check()
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
