"""A circuit breaker for each provider: a pure decider, told what happens and when.

closed ──(failures in a row, or trouble with the account)──► open ──(its wait is over)──► half open
   ▲                                                          ▲                              │
   └──────────(successes in a row)────────────────────────────┴───────(a failure)────────────┘

Every opening doubles the wait, and only a long healthy time forgives one, so that a provider that
comes and goes is left alone for longer each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

FAILURES_TO_OPEN = 3
SUCCESSES_TO_CLOSE = 3
FIRST_WAIT = 5.0  # before an open breaker is probed; doubled with every opening
LONGEST_WAIT = (
    18.0  # a probe may take 10 s to fail: with that, an open breaker is probed every 30 s at least
)
MOST_OPENED = 6  # openings that are counted: the wait is the longest then, and a long outage is forgiven within an hour
FORGIVEN_AFTER = 600.0  # healthy seconds after which one opening is forgotten
# An answer that takes this long counts as a failure, though it may still come. A provider that
# usually takes long gets more time.
SLOW = 3.0
SLOWEST = 20.0
SLOW_FACTOR = 4.0
NEWEST = 0.1  # weight of the newest answer in what a provider usually takes


class CircuitState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """What is known of a provider's health. Times are of one clock, whichever the caller uses."""

    circuit: CircuitState = CircuitState.CLOSED
    since: float = 0.0  # of the circuit, or of what was forgiven last
    failures: int = 0  # in a row
    successes: int = 0  # in a row, while half open
    opened: int = 0  # how often, less those forgiven; up to MOST_OPENED
    retry_at: float = 0.0  # when an open one may be probed
    reason: str | None = None  # of the last failure
    usual: float = 0.0  # how long an answer takes, on average

    def succeeded(self, now: float, took: float) -> CircuitBreaker:
        """The provider answered as it should; `took` is 0 where nobody measured."""
        usual = self._usual(took)
        if (
            self.circuit is CircuitState.OPEN
        ):  # a late answer to what was sent before: nothing was probed yet
            return replace(self, usual=usual)
        if self.circuit is CircuitState.CLOSED:
            forgiven = min(self.opened, max(0, int((now - self.since) // FORGIVEN_AFTER)))
            since, opened = self.since + forgiven * FORGIVEN_AFTER, self.opened - forgiven
            return replace(self, failures=0, usual=usual, since=since, opened=opened)
        successes = self.successes + 1
        if successes < SUCCESSES_TO_CLOSE:
            return replace(self, successes=successes, usual=usual)
        return CircuitBreaker(CircuitState.CLOSED, now, opened=self.opened, usual=usual)

    def failed(self, now: float, reason: str, *, trouble: bool = False) -> CircuitBreaker:
        """It refused, broke off or was too slow; `trouble`: with the account, which no other mail will escape."""
        failures = self.failures + 1
        if self.circuit is CircuitState.OPEN:
            return self
        if self.circuit is CircuitState.CLOSED and failures < FAILURES_TO_OPEN and not trouble:
            return replace(self, failures=failures, reason=reason)
        wait = min(FIRST_WAIT * 2.0 ** min(self.opened, MOST_OPENED), LONGEST_WAIT)
        opened = min(self.opened + 1, MOST_OPENED)
        return CircuitBreaker(CircuitState.OPEN, now, 0, 0, opened, now + wait, reason, self.usual)

    def learned(self, took: float) -> CircuitBreaker:
        """A check took so long: mails may, too."""
        return replace(self, usual=max(self.usual, took))

    def probed(self, now: float) -> CircuitBreaker:
        """An open one whose wait is over lets a little through, to see."""
        if self.circuit is not CircuitState.OPEN or now < self.retry_at:
            return self
        return replace(self, circuit=CircuitState.HALF_OPEN, since=now, failures=0, successes=0)

    def _usual(self, took: float) -> float:
        if took <= 0:
            return self.usual
        return self.usual + (took - self.usual) * NEWEST if self.usual else took

    @property
    def slow_after(self) -> float:
        """Seconds without an answer that count as a failure."""
        return min(max(SLOW, self.usual * SLOW_FACTOR), SLOWEST)
