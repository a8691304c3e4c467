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
# A survey, a claim and a settlement cost PostgreSQL far more than a mail in a large batch: where
# mails come in one by one, a few are let gather first. As long as the pause between hints, so that
# it at most doubles the wait.
CLAIM_GAP = 0.01
# A worker that had no room for so long lets others dispatch its lanes: its provider is slow, theirs
# may not be.
FULL_FOR = 0.1
# How often it does so again while nothing ends: more of what it claimed may have begun, and others
# may have come.
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
    """One worker of one process. `run` returns when `stop` was called and everything is settled or released."""

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
        self._barred: set[LaneId] = (
            set()
        )  # lanes left out of the last claim, since their provider had enough
        self._claimed_at = float("-inf")  # when a claim last returned something
        self._due_soon: asyncio.TimerHandle | None = None
        self._strays_from = 0.0  # when to look for claims whose answer was lost

    @property
    def in_flight(self) -> int:
        """Messages claimed and not yet settled."""
        return self._held.total()

    @property
    def window(self) -> int:
        """How many it may hold, whatever the number of its providers: what a kill can leave unknown."""
        return self.limits.window

    @property
    def utilisation(self) -> float:
        """How much of what it can hold is in use; where there are several providers, for the busiest of them."""
        held = self.in_flight
        return held / (held + self._pool.capacity.least_room(self.window - held)) if held else 0.0

    def stop(self) -> None:
        """Claim nothing more; finish what is in flight, then let `run` return."""
        self._stop.set()
        self._space.set()
        self._ready.wake()

    async def run(self) -> None:
        """Work until `stop`. An error that proves a bug stops the worker too, and is raised after draining."""
        never, beat = asyncio.Event(), self.limits.lease / 4
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
        """Stop for an error that repeating cannot mend."""
        if self._error is None:
            self._error = error
            log.error("the worker cannot go on; draining", error=repr(error))
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
        asked = self.lease.now()
        if self._ledger.worker and await self._ledger.heartbeat(self.limits.lease):
            self.lease.renewed(asked)
            return
        if self._ledger.worker:
            log.warning(
                "the lease was lost; registering anew",
                worker=self._ledger.worker,
                in_flight=self.in_flight,
            )
        # A lease of its own for each registration: the next must not revive what was claimed under
        # this one.
        self.lease.lost()
        self.lease = Lease(self.limits.lease)
        asked = self.lease.now()
        worker = await self._dispatcher.register(self.name, self.limits.lease)
        self.lease.renewed(asked)
        self._ready.wake()
        log.info("worker registered", worker=worker, name=self.name, window=self.limits.window)

    async def _retire(self) -> None:
        try:
            async with asyncio.timeout(LAST_SETTLE):
                await self._ledger.release_strays(self._known_claims())
                await self._dispatcher.retire()
        except (TimeoutError, StoreError) as error:
            log.warning("could not end the lease; it will run out", error=repr(error))

    # -- claiming

    async def _claim_until_stopped(self) -> None:
        look = True
        while not self._stop.is_set():
            room = self._room()
            if room == 0:
                await self._wait_for_room()
            elif await self._claim(room, look):
                look = False
            else:  # the queue is empty, as far as is known: wait for a reason to look again
                source = await self._ready.wait(self.limits.poll, self._next_due())
                self._metrics.wakeups.labels(source).inc()
                look = source != "settled"
                if look:
                    await self._let_gather()

    def _next_due(self) -> float | None:
        """Seconds until there may be something to do: a mail falls due, or a provider may be usable again."""
        waits = (self._dispatcher.next_due(), self._pool.usable_in())
        return min((wait for wait in waits if wait is not None), default=None)

    async def _let_gather(self) -> None:
        """Leave a moment between claims while mails trickle in; the first after a pause goes at once."""
        left = self._claimed_at + CLAIM_GAP - asyncio.get_running_loop().time()
        if left > 0:
            await wait(self._stop, left)

    async def _wait_for_room(self) -> None:
        """Wait until something ends; a worker that stays full does not keep lanes from the others."""
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
        """How many messages to claim now; 0 while too few places are free to be worth a claim, or settling fails."""
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
        """Claim and start what fits; says whether it is worth claiming again before waiting."""
        lease = self.lease  # the claim's, even if it is lost and replaced before the answer comes
        if not (lease.valid() and self._pool.usable):
            return False
        spare = self.limits.bytes_in_flight - self._held_bytes
        self._barred = self._pool.capacity.barred_lanes()
        try:
            await self._return_strays()
            claims = await self._dispatcher.claim(
                room,
                spare,
                not self._held,
                look=look,
                barred=self._barred,
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
        await asyncio.sleep(
            0
        )  # until they are with their providers: how much these hold decides on the next claim
        self._metrics.claimed(sum(len(claimed.recipient_numbers) for claimed in claims))
        return bool(claims) or await self._cut_short(spare)

    async def _cut_short(self, spare: int) -> bool:
        """Whether a claim of nothing may be for want of bytes, not of mails; then wait for some to be free."""
        if not self._held or spare >= LARGEST_MESSAGE:
            return False
        self._space.clear()
        await wait(self._space, self.limits.poll)
        return True

    async def _return_strays(self) -> None:
        """Give back claims whose answer was lost: they would wait for as long as this worker lives."""
        if self.lease.now() < self._strays_from:
            return
        if strays := await self._ledger.release_strays(self._known_claims()):
            log.warning("claims whose answer was lost were given back", deliveries=strays)
        # Not only after errors: a statement given up on may still have been carried out later.
        self._strays_from = self.lease.now() + self.limits.lease / 2

    def _known_claims(self) -> list[int]:
        """The claims that are not strays. One left to the reaper is not: its mail may have left."""
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
        place = hold_or_postpone(
            wait,
            pool_usable=self._pool.usable,
            may_postpone=self._dispatcher.may_postpone(claimed),
        )
        if isinstance(place, Postpone):
            self._settler.postpone(claimed, place.seconds, wait.reason)
            return
        self._dispatcher.hold(claimed, place.seconds)
        if place.marked:
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
        elif isinstance(error := task.exception(), Exception):
            log.error("an attempt broke", message=claimed.message.id, begun=claimed.begun)
            self._supervisor.report("attempt", error)
            if claimed.begun:
                self._abandoned(claimed)
            else:
                self._wait_for_provider(claimed, Wait(LONGEST_POSTPONE, Reason.NO_PROVIDER))

    def _abandoned(self, claimed: ClaimedMessage) -> None:
        """Leave a mail to the reaper: it may have been sent, and becomes unknown when this worker ends."""
        self._left.add(claimed.claim)
        self._freed([claimed])

    def _freed(self, claims: list[ClaimedMessage]) -> None:
        if sum(self._dispatcher.end(claimed) for claimed in claims) or self._barred:
            self._ready.resume()
        self._held.subtract(claimed.claim for claimed in claims)
        self._held = +self._held  # without those that are settled whole
        self._held_bytes -= sum(claimed.size for claimed in claims)
        self._space.set()

    def _deferred(self, seconds: float) -> None:
        """Something will be due again after so long: look then, unless a look comes earlier anyway."""
        loop = asyncio.get_running_loop()
        if seconds >= self.limits.poll or (
            self._due_soon and self._due_soon.when() <= loop.time() + seconds
        ):
            return
        if self._due_soon:
            self._due_soon.cancel()
        self._due_soon = loop.call_later(seconds, self._look_for_due)

    def _look_for_due(self) -> None:
        self._due_soon = None
        self._ready.wake()

    # -- stopping

    async def _drain(self) -> None:
        """Finish what is in flight; past the deadline, cancel. Then wait for the settler."""
        if self._tasks:
            log.info("draining", in_flight=len(self._tasks), seconds=self.limits.drain)
            await self._finish(asyncio.get_running_loop().time() + self.limits.drain)
        for task in self._tasks:
            task.cancel()
        deadline = asyncio.get_running_loop().time() + LAST_SETTLE
        while self._held and (left := deadline - asyncio.get_running_loop().time()) > 0:
            self._space.clear()
            await wait(self._space, left)
        if self._held:
            log.warning(
                "stopping with unsettled claims; the reaper will return them",
                unsettled=self.in_flight,
            )

    async def _finish(self, deadline: float) -> None:
        """Wait for what is in flight; others dispatch the lanes meanwhile, as soon as what was claimed has begun."""
        while self._tasks and (left := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._tasks, timeout=min(left, FULL_FOR))
            if self._tasks:
                await self._step_aside()


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
