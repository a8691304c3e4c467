"""The worker: claims what it can start now, starts it, and stops by draining."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from pillarbox.deliver.attempt import attempt
from pillarbox.deliver.lease import Lease
from pillarbox.deliver.loops import run_every, wait
from pillarbox.deliver.roster import Roster
from pillarbox.deliver.settler import Settler
from pillarbox.deliver.wakeup import Wakeup
from pillarbox.errors import NotStarted, StoreError
from pillarbox.queue.base import Claimed, Queue
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.worker")
# While mails are in flight, wait until this share of the window is free: few large claims cost less than many small.
WORTH_CLAIMING = 0.25
# Pause after a claim that the store could not answer.
STORE_PAUSE = 1.0
# How long settling may go on after everything in flight has ended or been cancelled.
LAST_SETTLE = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
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
        queue: Queue,
        roster: Roster,
        metrics: Metrics,
        wakeup: Wakeup,
        pace: Pace | None = None,
    ) -> None:
        self.name = name
        self.pace = pace or Pace()
        self.lease = Lease(self.pace.lease)
        self._queue = queue
        self._roster = roster
        self._metrics = metrics
        self._wakeup = wakeup
        self._settler = Settler(queue, metrics, self._freed)
        self._stop = asyncio.Event()
        self._space = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: Counter[int] = Counter()  # unsettled messages by claim
        self._held_bytes = 0
        self._strays_from = 0.0  # when to look for claims whose answer was lost

    @property
    def in_flight(self) -> int:
        """Messages claimed and not yet settled."""
        return self._held.total()

    def stop(self) -> None:
        """Claim nothing more; finish what is in flight, then let `run` return."""
        self._stop.set()
        self._space.set()
        self._wakeup.hint()

    async def run(self) -> None:
        heartbeat = asyncio.create_task(
            run_every("heartbeat", self.pace.lease / 4, self._heartbeat, asyncio.Event()), name="heartbeat"
        )
        settling = asyncio.create_task(self._settler.run(), name="settler")
        try:
            await self._claim_until_stopped()
            await self._drain()
        finally:
            await _end(settling, heartbeat)
            await self._retire()

    # -- the lease

    async def _heartbeat(self) -> None:
        asked = self.lease.now()
        if self._queue.worker and await self._queue.heartbeat(self.pace.lease):
            self.lease.renewed(asked)
            return
        if self._queue.worker:
            log.warning("the lease was lost; registering anew", worker=self._queue.worker, in_flight=self.in_flight)
        # A lease of its own for each registration: the next must not revive what was claimed under this one.
        self.lease.lost()
        self.lease = Lease(self.pace.lease)
        asked = self.lease.now()
        worker = await self._queue.register(self.name, self.pace.lease)
        self.lease.renewed(asked)
        self._wakeup.hint()
        log.info("worker registered", worker=worker, name=self.name, window=self.pace.window)

    async def _retire(self) -> None:
        try:
            async with asyncio.timeout(LAST_SETTLE):
                await self._queue.release_strays(list(self._held))
                await self._queue.retire()
        except (TimeoutError, StoreError) as error:
            log.warning("could not end the lease; it will run out", error=repr(error))

    # -- claiming

    async def _claim_until_stopped(self) -> None:
        source = "poll"
        while not self._stop.is_set():
            room = self._room()
            if room == 0:
                self._space.clear()
                await self._space.wait()
                continue
            claimed = await self._claim(room)
            if claimed < room:  # the queue is empty: wait for a reason to look again
                source = await self._wakeup.wait(self.pace.poll, await self._next_due())
                self._metrics.wakeups.labels(source).inc()

    def _room(self) -> int:
        """How many messages to claim now; 0 while too few places are free to be worth a claim."""
        held = self.in_flight
        free = self.pace.window - held
        if held and (free < self.pace.window * WORTH_CLAIMING or self._held_bytes >= self.pace.bytes_in_flight):
            return 0
        return min(free, self.pace.claim_limit)

    async def _claim(self, room: int) -> int:
        lease = self.lease  # the claim's, even if it is lost and replaced before the answer comes
        if not (lease.valid() and self._roster.lines):
            return 0
        try:
            await self._return_strays()
            claims = await self._queue.claim(room, self.pace.bytes_in_flight - self._held_bytes, not self._held)
        except StoreError as error:
            log.warning("cannot claim while the store is away", error=str(error))
            self._strays_from = 0.0
            await wait(self._stop, STORE_PAUSE)
            return 0
        for claimed in claims:
            self._start(claimed, lease)
        self._metrics.claimed(sum(len(claimed.ns) for claimed in claims))
        # A claim cut short by bytes in flight is not an empty queue.
        return room if claims and self._held_bytes >= self.pace.bytes_in_flight else len(claims)

    async def _return_strays(self) -> None:
        """Give back claims whose answer was lost: they would wait for as long as this worker lives."""
        if self.lease.now() < self._strays_from:
            return
        if strays := await self._queue.release_strays(list(self._held)):
            log.warning("claims whose answer was lost were given back", deliveries=strays)
        # Not only after errors: a statement given up on may still have been carried out later.
        self._strays_from = self.lease.now() + self.pace.lease / 2

    async def _next_due(self) -> float | None:
        if self._wakeup.looking:
            return None
        try:
            return await self._queue.next_due()
        except StoreError:
            return None

    def _start(self, claimed: Claimed, lease: Lease) -> None:
        self._held[claimed.claim] += 1
        self._held_bytes += claimed.size
        task = asyncio.create_task(self._attempt(claimed, lease))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, claimed))

    async def _attempt(self, claimed: Claimed, lease: Lease) -> None:
        try:
            self._settler.settle(await attempt(claimed, self._roster, lease))
        except NotStarted:
            self._settler.release(claimed)

    def _ended(self, task: asyncio.Task[None], claimed: Claimed) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # before its first step: nothing was sent
            self._settler.release(claimed)
        elif (error := task.exception()) is not None:
            log.error("an attempt broke; the reaper will return it", message=claimed.message.id, exc=error)

    def _freed(self, claims: list[Claimed]) -> None:
        self._held.subtract(claimed.claim for claimed in claims)
        self._held = +self._held  # without those that are settled whole
        self._held_bytes -= sum(claimed.size for claimed in claims)
        self._space.set()

    # -- stopping

    async def _drain(self) -> None:
        """Finish what is in flight; past the deadline, cancel. Then wait for the settler."""
        if self._tasks:
            log.info("draining", in_flight=len(self._tasks), seconds=self.pace.drain)
            await asyncio.wait(self._tasks, timeout=self.pace.drain)
        for task in self._tasks:
            task.cancel()
        deadline = asyncio.get_running_loop().time() + LAST_SETTLE
        while self._held and (left := deadline - asyncio.get_running_loop().time()) > 0:
            self._space.clear()
            await wait(self._space, left)
        if self._held:
            log.warning("stopping with unsettled claims; the reaper will return them", unsettled=self.in_flight)


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
