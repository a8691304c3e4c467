"""A channel: one provider with its transport, circuit breaker, AIMD limiter and quota."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from pillarbox.deliver.transports.base import OutgoingMail, SendResult, Transport
from pillarbox.errors import NotStarted
from pillarbox.model.fairness import LaneId, RoundRobinQueue
from pillarbox.model.outcome import TROUBLE, Reason
from pillarbox.model.provider import Provider
from pillarbox.model.retry import RetryPolicy, policy_for
from pillarbox.route.aimd_limiter import AimdLimiter
from pillarbox.route.circuit_breaker import FAILURES_TO_OPEN, CircuitBreaker, CircuitState
from pillarbox.route.decide import unusable_for
from pillarbox.route.failover import is_provider_fault

# Mails that the transport has for each connection: one on its way and one to chain behind it. The
# others wait here, where lanes take turns.
PIPELINE = 2
# While the provider is healthy, every so many answers reach the breaker: it only keeps an average.
SAMPLE = 16
# One process probes an open breaker within this time after its wait.
PROBE_SOON = 0.5
SECONDS_PER_HOUR, SECONDS_PER_DAY = 3600, 86400
NOT_USABLE = "the provider is not used now"

# Uses up quota for a mail of a lane to so many recipients: seconds to wait (0: none), which limit.
AskQuota = Callable[[int, int], Awaitable[tuple[float, str | None]]]


class ProviderChannel:
    """One provider ready to send. Mails wait here for a slot, and are given back if it fails."""

    def __init__(
        self,
        provider: Provider,
        transport: Transport,
        redact: Callable[[str], str],
        ask_quota: AskQuota | None = None,
    ) -> None:
        self.provider = provider
        self.transport = transport
        self.redact = redact
        self.breaker = CircuitBreaker()
        self.limiter = AimdLimiter(transport.connections)
        # Names the shared state that was last read or written.
        self.shared_version: object = None
        # Called when the state of the breaker changes or a pause begins.
        self.changed: Callable[[ProviderChannel], None] = _ignore
        self._ask_quota = ask_quota
        self._loop = asyncio.get_running_loop()
        self._waiting: RoundRobinQueue[asyncio.Future[int]] = RoundRobinQueue()
        self._asking = 0  # mails that wait for an answer about the quota
        self._entering = 0  # mails that have a slot, and whose task has not run yet
        self._in_flight: dict[int, float] = {}  # by slot number, oldest first: since when
        self._slow: set[int] = set()  # slots that count as failures already
        self._numbers = itertools.count()
        self._answers = 0
        self._answered_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._denied_at: float | None = None  # when the quota last denied a mail
        self._closed = False

    @property
    def policy(self) -> RetryPolicy:
        return policy_for(self.provider.kind, self.provider.retry)

    @property
    def held(self) -> int:
        """Mails that are in flight, or wait for a slot or for an answer about the quota."""
        return self._asking + len(self._in_flight) + len(self._waiting)

    # -- state

    def unusable_for(self) -> float | None:
        """Seconds until it is worth asking again; None when it can be used now."""
        open_for = None
        if self.breaker.circuit is CircuitState.OPEN:
            open_for = max(self.breaker.retry_at - self._loop.time(), PROBE_SOON)
        return unusable_for(open_for, self.paused_for())

    def paused_for(self) -> float:
        """Seconds that are left of a pause."""
        return max(self.limiter.paused_until - self._loop.time(), 0.0)

    @property
    def limited(self) -> bool:
        """Whether it has a rate or a price: then every mail uses up quota."""
        provider = self.provider
        return bool(
            provider.rate_per_second
            or provider.rate_per_hour
            or provider.rate_per_day
            or provider.price_per_thousand
        )

    async def use_quota(self, lane: int, recipients: int) -> tuple[float, str | None]:
        """Use up quota for one mail; seconds to wait if it is denied, and the limit."""
        if self._ask_quota is None or not self.limited:
            return 0.0, None
        self._asking += 1
        try:
            seconds, limit = await self._ask_quota(lane, recipients)
        finally:
            self._asking -= 1
        self._denied_at = self._loop.time() if seconds else None
        return seconds, limit

    def claimable(self) -> int | None:
        """How many mails are worth claiming for it after the quota denied one; None: any number."""
        if self._denied_at is None or not self.limited:
            return None
        provider = self.provider
        per_second = [
            limit / seconds
            for limit, seconds in (
                (provider.rate_per_second, 1),
                (provider.rate_per_hour, SECONDS_PER_HOUR),
                (provider.rate_per_day, SECONDS_PER_DAY),
            )
            if limit
        ]
        return 1 + int(min(per_second, default=1.0) * (self._loop.time() - self._denied_at))

    # -- sending

    async def send(self, outgoing: OutgoingMail, lane: LaneId) -> SendResult:
        """Send when a slot is free; lanes take turns.

        Raises NotStarted when the breaker opens meanwhile, or the transport gave the mail back.
        """
        if self._waiting or self._entering or len(self._in_flight) >= self._max_in_flight():
            number = await self._wait_for_slot(lane)
        else:
            number = self._take_slot()
        try:
            result = await self.transport.send(outgoing)
            self._record(result)  # before the next mail gets the slot: it may be one too many
        finally:
            self._free_slot(number)
        return result

    def _take_slot(self) -> int:
        number = next(self._numbers)
        self._in_flight[number] = self._loop.time()
        return number

    def _free_slot(self, number: int) -> None:
        del self._in_flight[number]
        self._slow.discard(number)
        if self._waiting:
            self._fill_slots()

    def _max_in_flight(self) -> int:
        """How many mails the transport may have now."""
        circuit = self.breaker.circuit
        if circuit is CircuitState.CLOSED:
            return self.limiter.max_in_flight(self._loop.time(), PIPELINE)
        return 1 if circuit is CircuitState.HALF_OPEN else 0

    async def _wait_for_slot(self, lane: LaneId) -> int:
        """Wait for a slot; its number."""
        if self._closed or self.breaker.circuit is CircuitState.OPEN:
            raise NotStarted(NOT_USABLE)
        slot: asyncio.Future[int] = self._loop.create_future()
        is_first = not (self._waiting or self._entering)
        self._waiting.add(lane, slot)
        if is_first:  # else it would overtake: awaiting a future that is done does not yield
            self._fill_slots()
        try:
            number = await slot
        except asyncio.CancelledError:
            has_slot = slot.done() and not slot.cancelled() and slot.exception() is None
            if has_slot:
                self._entering -= 1
                self._free_slot(slot.result())
            raise
        self._entering -= 1
        if self._waiting and not self._entering:
            self._loop.call_soon(self._fill_slots)  # for mails that came in the meantime
        return number

    def _fill_slots(self) -> None:
        """Give free slots to waiting mails; during a pause, when it ends."""
        while self._waiting and len(self._in_flight) < self._max_in_flight():
            slot = self._waiting.take()
            if not slot.done():
                slot.set_result(self._take_slot())
                self._entering += 1
        paused_until = self.limiter.paused_until
        if self._waiting and self._timer is None and self._loop.time() < paused_until:
            self._timer = self._loop.call_at(paused_until, self._pause_ended)

    def _pause_ended(self) -> None:
        self._timer = None
        self._fill_slots()

    # -- health

    def _record(self, result: SendResult) -> None:
        now = self._answered_at = self._loop.time()
        outcomes, first = result.outcomes, result.outcomes[0]
        if first.verdict._value_ == "accepted" and self._healthy:
            self._answers += 1
            if self._answers % SAMPLE == 0:
                self.breaker = self.breaker.succeeded(now, result.ended - result.started)
            return
        limited = [outcome for outcome in outcomes if outcome.reason is Reason.RATE_LIMITED]
        if limited:
            if self.limiter.decrease(now, limited[0].retry_after):
                self.changed(self)
        elif all(map(is_provider_fault, outcomes)):
            self.failed(first.reason or Reason.UNAVAILABLE)
        else:
            self.limiter.increase()
            self.adopt(self.breaker.succeeded(now, result.ended - result.started))

    @property
    def _healthy(self) -> bool:
        """Whether nothing needs to be counted."""
        breaker, limiter = self.breaker, self.limiter
        return (
            breaker.circuit is CircuitState.CLOSED
            and not breaker.failures
            and limiter.limit >= limiter.max_limit
        )

    def failed(self, reason: str) -> None:
        """Count a failure of the provider."""
        now, is_trouble = self._loop.time(), reason in TROUBLE
        self.adopt(self.breaker.failed(now, reason, trouble=is_trouble))

    def succeeded(self, seconds: float) -> None:
        """Count a check that the provider answered."""
        self.adopt(self.breaker.succeeded(self._loop.time(), seconds))

    def count_slow_mails(self) -> None:
        """Count mails without an answer as failures, long before they time out."""
        now = self._loop.time()
        slow_after = self.breaker.slow_after
        if self.breaker.circuit is CircuitState.OPEN or now - self._answered_at < slow_after:
            return
        newly_slow = [
            number
            for number, since in itertools.islice(self._in_flight.items(), FAILURES_TO_OPEN)
            if number not in self._slow and now - since >= slow_after
        ]
        for number in newly_slow:
            self._slow.add(number)
            self.failed(Reason.TIMEOUT)
        # With few slots, the mails that wait behind slow ones count as well.
        all_slow = len(self._slow) == len(self._in_flight) > 0
        if self._waiting and not newly_slow and all_slow:
            self.failed(Reason.TIMEOUT)

    def adopt(self, breaker: CircuitBreaker, *, share: bool = True) -> None:
        """Replace the breaker; `share`: other processes learn of a change of its state."""
        before, self.breaker = self.breaker, breaker
        if before.circuit is breaker.circuit:
            return
        if breaker.circuit is CircuitState.OPEN:
            self._give_back_waiting()
            self.transport.recall()
        else:
            self._fill_slots()
        if share:
            self.changed(self)

    def pause(self, seconds: float) -> None:
        """Pause, because another process was asked to."""
        self.limiter.pause(self._loop.time(), seconds)

    def _give_back_waiting(self) -> None:
        """Mails without a slot may go to other providers."""
        while self._waiting:
            slot = self._waiting.take()
            if not slot.done():
                slot.set_exception(NotStarted(NOT_USABLE))

    def reset(self, provider: Provider) -> None:
        """Take over changed limits; everything else stays."""
        self.provider = provider
        self._denied_at = None

    async def close(self) -> None:
        """Give back the waiting mails, and close the transport once its mails have ended."""
        self._closed = True
        self.changed = _ignore  # later answers are about the old settings
        self._give_back_waiting()
        if self._timer is not None:
            self._timer.cancel()
        await self.transport.close()


def _ignore(channel: ProviderChannel) -> None:
    pass
