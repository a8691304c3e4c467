"""A channel: one provider ready to send, with how it fares, how much it takes, and what it may send."""

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
from pillarbox.route.failover import is_providers_fault

# Mails that the transport has for each connection: one on its way and one to chain behind it. The
# others wait here, where lanes take turns.
AHEAD = 2
# While all goes well, every so many answers are told to the health: it only keeps an average then.
SAMPLE = 16
# An open breaker whose wait is over is probed by one process within this time.
PROBE_SOON = 0.5

# Asks for the right to send a mail of a lane to so many; seconds to wait, 0 for none, and why.
Allow = Callable[[int, int], Awaitable[tuple[float, str | None]]]


class ProviderChannel:
    """One provider with its transport. Mails for which it has no room wait here, and are given back if it fails."""

    def __init__(
        self,
        provider: Provider,
        transport: Transport,
        redact: Callable[[str], str],
        allow: Allow | None = None,
    ) -> None:
        self.provider = provider
        self.transport = transport
        self.redact = redact
        self.breaker = CircuitBreaker()
        self.limiter = AimdLimiter(transport.connections)
        self.seen: object = (
            None  # which state of the health that all processes share was the last seen or written
        )
        self.turned: Callable[[ProviderChannel], None] = lambda channel: (
            None
        )  # told when the breaker or a pause begins
        self._allow = allow
        self._loop = asyncio.get_running_loop()
        self._waiting: RoundRobinQueue[asyncio.Future[int]] = RoundRobinQueue()
        self._asking = 0  # mails that wait for the right to be sent
        self._entering = 0  # mails let in whose turn to run has not come yet
        self._out: dict[int, float] = {}  # mails with the transport, oldest first: since when
        self._slow: set[int] = set()  # those of them that count as failures already
        self._numbers = itertools.count()
        self._answers = 0
        self._answered_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._denied_at: float | None = None  # when a limit last said no
        self._closed = False

    @property
    def policy(self) -> RetryPolicy:
        return policy_for(self.provider.kind, self.provider.retry)

    @property
    def held(self) -> int:
        """Mails that wait for this provider, or for the right to send through it, or are on their way."""
        return self._asking + len(self._out) + len(self._waiting)

    # -- may it send?

    def unusable_for(self) -> float | None:
        """Seconds until it is worth asking again; None when it can be used now."""
        open_for = None
        if self.breaker.circuit is CircuitState.OPEN:
            open_for = max(self.breaker.retry_at - self._loop.time(), PROBE_SOON)
        return unusable_for(open_for, self.paused_for())

    def paused_for(self) -> float:
        """Seconds for which the provider asked for a pause."""
        return max(self.limiter.held_until - self._loop.time(), 0.0)

    @property
    def limited(self) -> bool:
        """Whether it has a rate or a price: then every mail is asked for and counted."""
        one = self.provider
        return bool(
            one.rate_per_second or one.rate_per_hour or one.rate_per_day or one.price_per_thousand
        )

    async def allowed(self, lane: int, recipients: int) -> tuple[float, str | None]:
        """Use up its rate and budget for one mail; if they do not allow it now, seconds to wait, and which does not."""
        if self._allow is None or not self.limited:
            return 0.0, None
        self._asking += 1
        try:
            wait, why = await self._allow(lane, recipients)
        finally:
            self._asking -= 1
        self._denied_at = self._loop.time() if wait else None
        return wait, why

    def room(self) -> int | None:
        """How many mails are worth claiming for it, as far as its limits are known here; None: any number."""
        if self._denied_at is None or not self.limited:
            return None
        rates = (
            self.provider.rate_per_second,
            self.provider.rate_per_hour,
            self.provider.rate_per_day,
        )
        rate = min(
            (most / seconds for most, seconds in zip(rates, (1, 3600, 86400), strict=True) if most),
            default=1.0,
        )
        return 1 + int(rate * (self._loop.time() - self._denied_at))

    # -- sending

    async def send(self, outgoing: OutgoingMail, lane: LaneId) -> SendResult:
        """Send, once there is room: lanes take turns. NotStarted when the provider failed meanwhile, or the transport
        gave it back.
        """
        if self._waiting or self._entering or len(self._out) >= self._most():
            number = await self._wait(lane)
        else:
            number = self._begin()
        try:
            report = await self.transport.send(outgoing)
            self._hear(report)  # before the next is let in: it may be one too many
        finally:
            self._end(number)
        return report

    def _begin(self) -> int:
        number = next(self._numbers)
        self._out[number] = self._loop.time()
        return number

    def _end(self, number: int) -> None:
        del self._out[number]
        self._slow.discard(number)
        if self._waiting:
            self._let_in()

    def _most(self) -> int:
        """How many mails the transport may have now."""
        if self.breaker.circuit is not CircuitState.CLOSED:
            return 1 if self.breaker.circuit is CircuitState.HALF_OPEN else 0
        return self.limiter.places(self._loop.time(), AHEAD)

    async def _wait(self, lane: LaneId) -> int:
        """Wait for room; the number under which the mail is out."""
        if self._closed or self.breaker.circuit is CircuitState.OPEN:
            raise NotStarted("the provider is not used now")
        future: asyncio.Future[int] = self._loop.create_future()
        alone = not (self._waiting or self._entering)
        self._waiting.add(lane, future)
        if (
            alone
        ):  # else whoever came before would be overtaken: a future that is done is not waited for
            self._let_in()
        try:
            number = await future
        except asyncio.CancelledError:
            if (
                future.done() and not future.cancelled() and future.exception() is None
            ):  # let in, and gone since
                self._entering -= 1
                self._end(future.result())
            raise
        self._entering -= 1
        if self._waiting and not self._entering:
            self._loop.call_soon(self._let_in)  # those that came while this one was on its way in
        return number

    def _let_in(self) -> None:
        """Let waiting mails begin while there is room; if there is a pause, again after it."""
        while self._waiting and len(self._out) < self._most():
            future = self._waiting.take()
            if not future.done():
                future.set_result(self._begin())
                self._entering += 1
        if self._waiting and self._timer is None and self._loop.time() < self.limiter.held_until:
            self._timer = self._loop.call_at(self.limiter.held_until, self._pause_ended)

    def _pause_ended(self) -> None:
        self._timer = None
        self._let_in()

    # -- how it fares

    def _hear(self, report: SendResult) -> None:
        now = self._answered_at = self._loop.time()
        outcome = report.outcomes[0]
        if outcome.verdict._value_ == "accepted" and self._calm:
            self._answers += 1
            if self._answers % SAMPLE == 0:
                self.breaker = self.breaker.succeeded(now, report.ended - report.started)
            return
        limited = next((one for one in report.outcomes if one.reason is Reason.RATE_LIMITED), None)
        if limited is not None:
            if self.limiter.slow_down(now, limited.retry_after):
                self.turned(self)
        elif is_providers_fault(outcome) and all(map(is_providers_fault, report.outcomes)):
            self.failed(outcome.reason or Reason.UNAVAILABLE)
        else:
            self.limiter.went_well()
            self.adopt(self.breaker.succeeded(now, report.ended - report.started))

    @property
    def _calm(self) -> bool:
        breaker, limiter = self.breaker, self.limiter
        return (
            breaker.circuit is CircuitState.CLOSED
            and not breaker.failures
            and limiter.limit >= limiter.most
        )

    def failed(self, reason: str) -> None:
        """The provider did not do its part."""
        self.adopt(self.breaker.failed(self._loop.time(), reason, trouble=reason in TROUBLE))

    def succeeded(self, took: float) -> None:
        """It answered a check as it should."""
        self.adopt(self.breaker.succeeded(self._loop.time(), took))

    def watch(self) -> None:
        """Count what takes too long as failures: a provider that hangs must not keep mails until they time out."""
        now = self._loop.time()
        patience = self.breaker.slow_after
        if self.breaker.circuit is CircuitState.OPEN or now - self._answered_at < patience:
            return
        late = [
            number for number, since in itertools.islice(self._out.items(), FAILURES_TO_OPEN)
            if number not in self._slow and now - since >= patience
        ]  # fmt: skip
        for number in late:
            self._slow.add(number)
            self.failed(Reason.TIMEOUT)
        # Where few may be out at a time, those that wait behind them count as well.
        if self._waiting and not late and len(self._slow) == len(self._out) > 0:
            self.failed(Reason.TIMEOUT)

    def adopt(self, breaker: CircuitBreaker, *, told: bool = True) -> None:
        """Replace the breaker; `told`: others are to know if the breaker turned."""
        before, self.breaker = self.breaker, breaker
        if before.circuit is breaker.circuit:
            return
        if breaker.circuit is CircuitState.OPEN:
            self._recall()
        else:
            self._let_in()
        if told:
            self.turned(self)

    def pause(self, seconds: float) -> None:
        """Another process was asked to pause for so long."""
        self.limiter.held_until = max(self.limiter.held_until, self._loop.time() + seconds)

    def _recall(self) -> None:
        """What has not begun leaves: other providers may take it."""
        self._give_back()
        self.transport.recall()

    def _give_back(self) -> None:
        while self._waiting:
            future = self._waiting.take()
            if not future.done():
                future.set_exception(NotStarted("the provider is not used now"))

    def reset(self, provider: Provider) -> None:
        """Limits changed; everything else is as it was."""
        self.provider = provider
        self._denied_at = None

    async def close(self) -> None:
        """What waits is given back, as nobody would let it in any more; what is on its way ends."""
        self._closed = True
        self.turned = lambda channel: None  # what is still out speaks of the old settings
        self._give_back()
        if self._timer is not None:
            self._timer.cancel()
        await self.transport.close()
