"""Decides when to collect tokens and how many: by fixed limits, or by the rate of arrival. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# The limit and timeout of the original collector.
LIMIT = 10
TIMEOUT = 5.0
# Largest adaptive batch: beyond it, the share of a commit in the cost is not measurable.
MAX_BATCH = 1000
# Longest wait of a token for others: a person who pressed a button does not notice 250 ms.
MAX_WAIT = 0.25
# Tokens per second at which the longest wait pays off. At a lower rate waiting saves less, and the
# wait shrinks with the rate: at ten per second it is 2.5 ms.
BUSY_RATE = 1000.0
# Seconds over which the rate is averaged: a burst is seen while it lasts and forgotten soon after.
RATE_WINDOW = 1.0
# Shortest time between two looks that the rate counts with; closer looks count as one.
MIN_INTERVAL = 1e-3


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The size and waiting time of a batch. None: adaptive, by the rate of arrival."""

    limit: int | None = None
    timeout: float | None = None
    urgent_waits: bool = False  # as in the original collector, which has no priorities

    @property
    def max_size(self) -> int:
        """Most tokens in a batch; counting the tokens that wait can stop there."""
        if self.limit is None:
            return MAX_BATCH
        return self.limit


ORIGINAL_LIMITS = BatchLimits(LIMIT, TIMEOUT, urgent_waits=True)


class CollectBatch(NamedTuple):
    """Collect at most `limit` tokens now. `why`: max reached, timeout, urgent, or start."""

    limit: int
    why: str
    urgent_only: bool = False


class WaitForTokens(NamedTuple):
    """Look again after a hint or after `seconds`; None: no token waits."""

    seconds: float | None


Decision = CollectBatch | WaitForTokens


class BatchPolicy:
    """Observes the arrival of tokens and decides when a batch is complete.

    Times are seconds of any monotonic clock.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self._first_seen: float | None = None  # when the oldest waiting token was seen
        self._opening = True  # tokens from before the start do not wait any longer
        self._rate = 0.0
        self._last_look: float | None = None
        self._counted = 0  # waiting tokens that the rate includes already

    @property
    def opening(self) -> bool:
        """Whether tokens from before the start may be left."""
        return self._opening

    @property
    def rate(self) -> float:
        """Tokens per second, averaged."""
        return self._rate

    def look(
        self,
        ready: int,
        urgent: int,
        now: float,
    ) -> Decision:
        """Decide, with `ready` tokens waiting, of which `urgent` are urgent.

        The counts may stop at `limits.max_size`.
        """
        self._observe(ready, now)
        if not ready:
            self._first_seen = None
            self._opening = False
            return WaitForTokens(None)
        if self._first_seen is None:
            self._first_seen = now
        time_left = self._first_seen + self._max_wait() - now
        return self._decide(ready, urgent, time_left)

    def _decide(
        self,
        ready: int,
        urgent: int,
        time_left: float,
    ) -> Decision:
        max_size = self.limits.max_size
        if self._opening:
            return CollectBatch(max_size, "start")
        if ready >= self._complete_size():
            return CollectBatch(max_size, "max reached")
        if time_left <= 0:
            return CollectBatch(max_size, "timeout")
        if urgent and not self.limits.urgent_waits:
            return CollectBatch(max_size, "urgent", urgent_only=True)
        return WaitForTokens(time_left)

    def collected(self, count: int, was_urgent_only: bool = False) -> None:
        """Note that `count` tokens were taken; the others belong to the next batch."""
        self._counted = max(0, self._counted - count)
        if not was_urgent_only:
            self._first_seen = None
        if count < self.limits.max_size:
            self._opening = False

    def reopened(self) -> None:
        """Note that the connection was lost: tokens that arrived meanwhile do not wait longer."""
        self._opening = True

    def _complete_size(self) -> int:
        """The number of tokens that completes a batch."""
        if self.limits.limit is not None:
            return self.limits.limit
        expected = math.ceil(self._rate * self._max_wait())
        return max(1, min(MAX_BATCH, expected))

    def _max_wait(self) -> float:
        """The longest time that the first token of a batch waits for others."""
        if self.limits.timeout is not None:
            return self.limits.timeout
        return MAX_WAIT * min(1.0, self._rate / BUSY_RATE)

    def _observe(self, ready: int, now: float) -> None:
        """Add the tokens that arrived since the last look to the rate."""
        arrived = max(0, ready - self._counted)
        last_look = self._last_look
        self._counted = ready
        self._last_look = now
        if last_look is None:
            return
        elapsed = max(now - last_look, MIN_INTERVAL)
        weight = math.exp(-elapsed / RATE_WINDOW)
        self._rate = self._rate * weight + arrived / elapsed * (1 - weight)
