"""The worker: claims what it can start now, starts it, and stops by draining."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pillarbox.deliver.attempt_result import attempt
from pillarbox.deliver.lease import Lease
from pillarbox.deliver.provider_pool import ProviderPool
from pillarbox.deliver.settler import Settler
from pillarbox.errors import StoreError
from pillarbox.loops import backoff, wait
from pillarbox.model.fairness import LaneId
from pillarbox.model.outcome import Reason
from pillarbox.queue.dispatcher import Dispatcher
from pillarbox.queue.records import LARGEST_MESSAGE, ClaimedMessage
from pillarbox.route.decide import LONGEST_POSTPONE, Postpone, Release, Wait, hold_or_postpone
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.worker")
# While mails are in flight, wait until this share of the window is free: few large claims cost less
# than many small.
WORTH_CLAIMING = 0.25
# A survey, a claim and a settlement cost PostgreSQL far more than a mail in a large batch: while
# mails come in one by one, the worker lets a few gather first. As long as the pause between hints,
# so that it at most doubles the wait.
CLAIM_GAP = 0.01
# A worker without room for so long lets other workers dispatch its lanes: its provider is slow,
# theirs may not be.
FULL_FOR = 0.1
# How often it does so again while no mail ends: more claimed mails may have begun, and more workers
# may have started.
ASIDE_AGAIN = 1.0
# Pauses after claims that failed double from the first to the longest.
STORE_PAUSE, LONGEST_PAUSE = 1.0, 10.0
# How long settling may go on after everything in flight has ended or been cancelled.
LAST_SETTLE = 10.0


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """How much a worker takes on, and how long it waits."""

    window: int = 100  # messages claimed and not yet settled: what a kill can leave unknown
    claim_limit: int = 100
    bytes_in_flight: int = 64 * 2**20
    poll: float = 5.0
    lease: float = 60.0
    drain: float = 30.0


class Worker:
    """One worker; `run` returns after `stop`, with every claim settled or released."""

    def __init__(
        self,
        name: str,
        dispatcher: Dispatcher,
        pool: ProviderPool,
        metrics: Metrics,
        limits: WorkerLimits | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.name = name
        self.limits = limits or WorkerLimits()
        self.lease = Lease(self.limits.lease)
        self._dispatcher = dispatcher
        self._ledger = dispatcher.ledger
        self._ready = dispatcher.ready
        self._pool = pool
        self._metrics = metrics
        pool.capacity.free = lambda: self.window - self.in_flight
        self._supervisor = supervisor or Supervisor(metrics)
        self._settler = Settler(
            self._ledger,
            self._ready,
            metrics,
            self._supervisor,
            self._freed,
            self._deferred,
            self._abandoned,
            self._broke,
        )
        self._stop = asyncio.Event()
        self._space = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: Counter[int] = Counter()  # unsettled messages by claim
        self._held_bytes = 0
        self._left: set[int] = set()  # claims with a message that is left to the reaper
        self._pauses = backoff(STORE_PAUSE, LONGEST_PAUSE)  # after claims that failed
        self._error: Exception | None = None  # what ends this worker
        self._full_since: float | None = None
        # Lanes left out of the last claim: their provider holds its share of the window.
        self._barred: set[LaneId] = set()
        self._claimed_at = float("-inf")  # when a claim last returned something
        self._due_soon: asyncio.TimerHandle | None = None
        self._strays_from = 0.0  # when to look for claims whose answer was lost

    @property
    def in_flight(self) -> int:
        """Messages claimed and not yet settled."""
        return self._held.total()

    @property
    def window(self) -> int:
        """How many messages it may hold, for all providers: what a kill can leave unknown."""
        return self.limits.window

    @property
    def utilisation(self) -> float:
        """The used share of the window; with several providers, that of the busiest one."""
        held = self.in_flight
        if not held:
            return 0.0
        return held / (held + self._pool.capacity.least_room(self.window - held))

    def stop(self) -> None:
        """Claim nothing more; `run` returns when the mails in flight are finished."""
        self._stop.set()
        self._space.set()
        self._ready.wake()

    async def run(self) -> None:
        """Work until `stop`, or an error that proves a bug, which is raised after draining."""
        never = asyncio.Event()
        beat = self.limits.lease / 4
        heartbeat = asyncio.create_task(
            self._supervisor.run_every("heartbeat", beat, self._heartbeat, never, longest=beat),
            name="heartbeat",
        )
        settling = asyncio.create_task(
            self._supervisor.keep("settle", self._settler.run, never), name="settler"
        )
        try:
            try:
                await self._claim_until_stopped()
            except Exception as error:
                self._broke(error)
            await self._drain()
        finally:
            if self._due_soon:
                self._due_soon.cancel()
            await _end(settling, heartbeat)
            await self._retire()
        if self._error is not None:
            raise self._error

    def _broke(self, error: Exception) -> None:
        """Stop because of an error that a retry cannot repair."""
        if self._error is None:
            self._error = error
            log.error("the worker cannot continue; draining", error=repr(error))
            self.stop()

    # -- the lease

    async def _heartbeat(self) -> None:
        try:
            await self._extend_lease()
        except StoreError as error:
            if not error.retryable:
                self._broke(error)
            raise

    async def _extend_lease(self) -> None:
        asked_at = self.lease.now()
        if self._ledger.worker and await self._ledger.heartbeat(self.limits.lease):
            self.lease.renewed(asked_at)
            return
        if self._ledger.worker:
            log.warning(
                "the lease was lost; registering again",
                worker=self._ledger.worker,
                in_flight=self.in_flight,
            )
        # Each registration has a lease object of its own: the next one must not make claims of
        # this one valid again.
        self.lease.lost()
        self.lease = Lease(self.limits.lease)
        asked_at = self.lease.now()
        worker = await self._dispatcher.register(self.name, self.limits.lease)
        self.lease.renewed(asked_at)
        self._ready.wake()
        log.info("worker registered", worker=worker, name=self.name, window=self.limits.window)

    async def _retire(self) -> None:
        try:
            async with asyncio.timeout(LAST_SETTLE):
                await self._ledger.release_strays(self._known_claims())
                await self._dispatcher.retire()
        except (TimeoutError, StoreError) as error:
            log.warning("the lease could not be ended; it will run out", error=repr(error))

    # -- claiming

    async def _claim_until_stopped(self) -> None:
        look = True
        while not self._stop.is_set():
            room = self._room()
            if room == 0:
                await self._wait_for_room()
            elif await self._claim(room, look):
                look = False
            else:  # as far as is known, no mail is due: wait for a reason to look again
                source = await self._ready.wait(self.limits.poll, self._next_due())
                self._metrics.wakeups.labels(source).inc()
                look = source != "settled"
                if look:
                    await self._let_gather()

    def _next_due(self) -> float | None:
        """Seconds until a mail falls due or a provider may be usable again; None if unknown."""
        waits = (self._dispatcher.next_due(), self._pool.usable_in())
        return min((wait for wait in waits if wait is not None), default=None)

    async def _let_gather(self) -> None:
        """Pause between claims while mails come one by one; not before the first of them."""
        left = self._claimed_at + CLAIM_GAP - asyncio.get_running_loop().time()
        if left > 0:
            await wait(self._stop, left)

    async def _wait_for_room(self) -> None:
        """Wait until a mail ends; a worker that stays full lets others dispatch its lanes."""
        now = asyncio.get_running_loop().time()
        if self._full_since is None:
            self._full_since = now
        self._space.clear()
        if not await wait(self._space, FULL_FOR) or now - self._full_since > FULL_FOR:
            self._full_since = now
            await self._step_aside()
            while not await wait(self._space, ASIDE_AGAIN):
                await self._step_aside()

    async def _step_aside(self) -> None:
        with suppress(StoreError):
            await self._dispatcher.step_aside()

    def _room(self) -> int:
        """How many messages to claim now; 0 while that is not worth a claim, or settling fails."""
        if self._settler.failing:
            return 0
        held = self.in_flight
        free = self.window - held
        worth = (self.window - self._pool.capacity.stuck()) * WORTH_CLAIMING
        if held and (free < worth or self._held_bytes >= self.limits.bytes_in_flight):
            return 0
        room = self._pool.capacity.claimable(min(free, self.limits.claim_limit))
        if room:
            self._full_since = None
        return room

    async def _claim(self, room: int, look: bool) -> bool:
        """Claim and start what fits; True if it is worth claiming again before waiting."""
        lease = self.lease  # the claim's, even if it is lost and replaced before the answer comes
        if not (lease.valid() and self._pool.usable):
            return False
        spare = self.limits.bytes_in_flight - self._held_bytes
        self._barred = self._pool.capacity.barred_lanes()
        try:
            await self._return_strays()
            claims = await self._dispatcher.claim(
                room, spare, not self._held, look=look, barred=self._barred
            )
        except StoreError as error:
            if not error.retryable:
                raise
            self._supervisor.failed("claim", error)
            self._strays_from = 0.0
            await wait(self._stop, next(self._pauses))
            return False
        self._supervisor.succeeded("claim")
        self._pauses = backoff(STORE_PAUSE, LONGEST_PAUSE)
        if claims:
            self._claimed_at = asyncio.get_running_loop().time()
        for claimed in claims:
            self._start(claimed, lease)
        # Let them reach their providers: how much these hold decides on the next claim.
        await asyncio.sleep(0)
        self._metrics.claimed(sum(len(claimed.recipient_numbers) for claimed in claims))
        return bool(claims) or await self._cut_short(spare)

    async def _cut_short(self, spare: int) -> bool:
        """Whether a claim may have been empty for lack of bytes; then wait until some are free."""
        if not self._held or spare >= LARGEST_MESSAGE:
            return False
        self._space.clear()
        await wait(self._space, self.limits.poll)
        return True

    async def _return_strays(self) -> None:
        """Release claims whose answer was lost: they would wait for as long as this worker runs."""
        if self.lease.now() < self._strays_from:
            return
        strays = await self._ledger.release_strays(self._known_claims())
        if strays:
            log.warning("claims whose answer was lost were released", deliveries=strays)
        # Not only after errors: a statement that timed out may have been executed later.
        self._strays_from = self.lease.now() + self.limits.lease / 2

    def _known_claims(self) -> list[int]:
        """The claims that are not strays, those left to the reaper included: they may have left."""
        return [*self._held, *self._left]

    def _start(self, claimed: ClaimedMessage, lease: Lease) -> None:
        self._held[claimed.claim] += 1
        self._held_bytes += claimed.size
        task = asyncio.create_task(self._attempt(claimed, lease))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, claimed))

    async def _attempt(self, claimed: ClaimedMessage, lease: Lease) -> None:
        may_begin = partial(self._may_begin, claimed, lease)
        end = await attempt(claimed, self._pool, may_begin)
        if isinstance(end, Wait):
            self._wait_for_provider(claimed, end)
        elif isinstance(end, Release):
            self._release(claimed)
        else:
            self._settler.settle(end)

    def _wait_for_provider(self, claimed: ClaimedMessage, wait: Wait) -> None:
        """Let a mail wait, or its lane with it."""
        decision = hold_or_postpone(
            wait,
            pool_usable=self._pool.usable,
            may_postpone=self._dispatcher.may_postpone(claimed),
        )
        if isinstance(decision, Postpone):
            self._settler.postpone(claimed, decision.seconds, wait.reason)
            return
        self._dispatcher.hold(claimed, decision.seconds)
        if decision.marked:
            self._dispatcher.give_back(claimed)
            self._settler.postpone(claimed, 0.0, wait.reason)
        else:
            self._release(claimed)

    def _may_begin(self, claimed: ClaimedMessage, lease: Lease) -> bool:
        if lease.valid() and self._dispatcher.begin(claimed):
            return True
        self._dispatcher.give_back(claimed)
        return False

    def _release(self, claimed: ClaimedMessage) -> None:
        self._dispatcher.give_back(claimed)
        self._settler.release(claimed)

    def _ended(self, task: asyncio.Task[None], claimed: ClaimedMessage) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # before its first step: nothing was sent
            self._release(claimed)
            return
        error = task.exception()
        if not isinstance(error, Exception):
            return
        log.error("an attempt failed unexpectedly", message=claimed.message.id, begun=claimed.begun)
        self._supervisor.report("attempt", error)
        if claimed.begun:
            self._abandoned(claimed)
        else:
            self._wait_for_provider(claimed, Wait(LONGEST_POSTPONE, Reason.NO_PROVIDER))

    def _abandoned(self, claimed: ClaimedMessage) -> None:
        """Leave a mail to the reaper: it may have been sent, and becomes unknown."""
        self._left.add(claimed.claim)
        self._freed([claimed])

    def _freed(self, claims: list[ClaimedMessage]) -> None:
        waiting_lanes = sum(self._dispatcher.end(claimed) for claimed in claims)
        if waiting_lanes or self._barred:
            self._ready.resume()
        self._held.subtract(claimed.claim for claimed in claims)
        self._held = +self._held  # drops claims without unsettled messages
        self._held_bytes -= sum(claimed.size for claimed in claims)
        self._space.set()

    def _deferred(self, seconds: float) -> None:
        """A mail will be due again after so long: look then, unless a look comes earlier anyway."""
        loop = asyncio.get_running_loop()
        if seconds >= self.limits.poll:
            return
        if self._due_soon:
            if self._due_soon.when() <= loop.time() + seconds:
                return
            self._due_soon.cancel()
        self._due_soon = loop.call_later(seconds, self._look_for_due)

    def _look_for_due(self) -> None:
        self._due_soon = None
        self._ready.wake()

    # -- stopping

    async def _drain(self) -> None:
        """Finish mails in flight; cancel them after the deadline. Then wait for the settler."""
        if self._tasks:
            log.info("draining", in_flight=len(self._tasks), seconds=self.limits.drain)
            await self._finish_tasks(asyncio.get_running_loop().time() + self.limits.drain)
        for task in self._tasks:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SETTLE):
                while self._held:
                    self._space.clear()
                    await self._space.wait()
        if self._held:
            log.warning(
                "stopping with unsettled claims; the reaper will return them",
                unsettled=self.in_flight,
            )

    async def _finish_tasks(self, deadline: float) -> None:
        """Wait for mails in flight; other workers take over lanes with nothing unbegun."""
        left = deadline - asyncio.get_running_loop().time()
        while self._tasks and left > 0:
            await asyncio.wait(self._tasks, timeout=min(left, FULL_FOR))
            if self._tasks:
                await self._step_aside()
            left = deadline - asyncio.get_running_loop().time()


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
