"""A circuit breaker for each provider. Pure: the caller reports what happens, and when.

closed ──(failures in a row, or trouble with the account)──► open ──(its wait is over)──► half open
   ▲                                                          ▲                              │
   └──────────(successes in a row)────────────────────────────┴───────(a failure)────────────┘

Every opening doubles the wait, and only a long healthy time forgets one, so that a provider that
fails again and again is left alone for longer each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

FAILURES_TO_OPEN = 3
SUCCESSES_TO_CLOSE = 3
FIRST_WAIT = 5.0  # before an open breaker is probed; doubled with every opening
# A probe may take 10 s to fail: with that, an open breaker is probed at least every 30 s.
LONGEST_WAIT = 18.0
# Openings that are counted: the wait is the longest then, and a long outage is forgotten within an
# hour.
MAX_OPENED = 6
FORGOTTEN_AFTER = 600.0  # healthy seconds after which one opening is forgotten
# An answer that takes this long counts as a failure, even if it still comes. A provider that
# usually takes long gets more time.
SLOW = 3.0
SLOWEST = 20.0
SLOW_FACTOR = 4.0
NEWEST_WEIGHT = 0.1  # of the newest answer in the average duration


class CircuitState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """The state of a circuit breaker. All times are of one clock, whichever the caller uses."""

    circuit: CircuitState = CircuitState.CLOSED
    since: float = 0.0  # of the state, or of the last opening that was forgotten
    failures: int = 0  # in a row
    successes: int = 0  # in a row, while half open
    opened: int = 0  # how often, without forgotten ones; up to MAX_OPENED
    retry_at: float = 0.0  # when an open breaker may be probed
    reason: str | None = None  # of the last failure
    usual: float = 0.0  # average duration of an answer

    def succeeded(self, now: float, seconds: float) -> CircuitBreaker:
        """The provider answered as it should; `seconds` is 0 if the duration is not known."""
        usual = self._average(seconds)
        if self.circuit is CircuitState.OPEN:  # a late answer: nothing was probed yet
            return replace(self, usual=usual)
        if self.circuit is CircuitState.CLOSED:
            healthy = max(0, int((now - self.since) // FORGOTTEN_AFTER))
            forgotten = min(self.opened, healthy)
            since, opened = self.since + forgotten * FORGOTTEN_AFTER, self.opened - forgotten
            return replace(self, failures=0, usual=usual, since=since, opened=opened)
        successes = self.successes + 1
        if successes < SUCCESSES_TO_CLOSE:
            return replace(self, successes=successes, usual=usual)
        return CircuitBreaker(CircuitState.CLOSED, now, opened=self.opened, usual=usual)

    def failed(self, now: float, reason: str, *, trouble: bool = False) -> CircuitBreaker:
        """The provider failed; `trouble`: with the account, so that every mail would fail."""
        failures = self.failures + 1
        if self.circuit is CircuitState.OPEN:
            return self
        if self.circuit is CircuitState.CLOSED and failures < FAILURES_TO_OPEN and not trouble:
            return replace(self, failures=failures, reason=reason)
        wait = min(FIRST_WAIT * 2.0 ** min(self.opened, MAX_OPENED), LONGEST_WAIT)
        return CircuitBreaker(
            CircuitState.OPEN,
            now,
            opened=min(self.opened + 1, MAX_OPENED),
            retry_at=now + wait,
            reason=reason,
            usual=self.usual,
        )

    def learned(self, seconds: float) -> CircuitBreaker:
        """A check took so long: mails may, too."""
        return replace(self, usual=max(self.usual, seconds))

    def probed(self, now: float) -> CircuitBreaker:
        """An open breaker whose wait is over becomes half open."""
        if self.circuit is not CircuitState.OPEN or now < self.retry_at:
            return self
        return replace(self, circuit=CircuitState.HALF_OPEN, since=now, failures=0, successes=0)

    def _average(self, seconds: float) -> float:
        if seconds <= 0:
            return self.usual
        if not self.usual:
            return seconds
        return self.usual + (seconds - self.usual) * NEWEST_WEIGHT

    @property
    def slow_after(self) -> float:
        """Seconds without an answer that count as a failure."""
        return min(max(SLOW, self.usual * SLOW_FACTOR), SLOWEST)
