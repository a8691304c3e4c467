"""When to collect tokens, and how many: as the original collector does, or as their rate suggests. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# The original's limit and timeout.
LIMIT = 10
TIMEOUT = 5.0
# Most that a batch has which follows the rate: beyond it a commit's share of the cost is lost in
# the noise.
MOST = 1000
# The longest that a token waits for others: people who just pressed a button do not notice a
# quarter of a second.
LONGEST = 0.25
# Tokens per second at which that much is worth waiting. At fewer, waiting saves less, and shrinks
# with the rate: at ten per second it is 2.5 ms.
BUSY = 1000.0
# Seconds over which the rate is averaged: bursts are seen while they last, and forgotten soon
# after.
MEMORY = 1.0


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How batches are gathered. None: as the rate suggests."""

    limit: int | None = None
    timeout: float | None = None
    urgent_waits: bool = False  # as in the original, which knows no hurry

    @property
    def most(self) -> int:
        """Most tokens in a batch; counting those that wait can stop there."""
        return MOST if self.limit is None else self.limit


ORIGINAL_LIMITS = BatchLimits(LIMIT, TIMEOUT, urgent_waits=True)


class CollectBatch(NamedTuple):
    """Collect now, at most so many. `why`: max reached, timeout, urgent, or the start."""

    limit: int
    why: str
    urgent_only: bool = False


class WaitForTokens(NamedTuple):
    """Look again when hinted, or after so many seconds; None: nothing waits."""

    seconds: float | None


Decision = CollectBatch | WaitForTokens


class BatchPolicy:
    """Watches tokens arrive, and says when a batch is complete. Times are any clock's seconds."""

    def __init__(self, rule: BatchLimits) -> None:
        self.rule = rule
        self._first: float | None = None  # when the oldest of those that wait was seen
        self._opening = True  # what waited before we came does not wait any longer
        self._rate = 0.0
        self._looked: float | None = None
        self._known = 0  # how many of those that wait were counted before

    @property
    def opening(self) -> bool:
        """Whether something may be left of what waited before we came."""
        return self._opening

    @property
    def rate(self) -> float:
        """Tokens per second, averaged."""
        return self._rate

    def look(self, ready: int, urgent: int, now: float) -> Decision:
        """What to do, now that so many wait, counted up to `rule.most` or further; some of them are urgent."""
        self._observe(ready, now)
        if not ready:
            self._first, self._opening = None, False
            return WaitForTokens(None)
        if self._first is None:
            self._first = now
        return self._decide(ready, urgent, self._first + self._patience() - now)

    def _decide(self, ready: int, urgent: int, left: float) -> Decision:
        if self._opening:
            return CollectBatch(self.rule.most, "start")
        if ready >= self._enough():
            return CollectBatch(self.rule.most, "max reached")
        if left <= 0:
            return CollectBatch(self.rule.most, "timeout")
        if urgent and not self.rule.urgent_waits:
            return CollectBatch(self.rule.most, "urgent", urgent_only=True)
        return WaitForTokens(left)

    def collected(self, count: int, was_urgent_only: bool = False) -> None:
        """So many were taken; those that are left, or come now, are a new batch."""
        self._known = max(0, self._known - count)
        if not was_urgent_only:
            self._first = None
        if count < self.rule.most:
            self._opening = False

    def reopened(self) -> None:
        """The connection was lost: what came meanwhile waited long enough."""
        self._opening = True

    def _enough(self) -> int:
        """How many make a batch."""
        if self.rule.limit is not None:
            return self.rule.limit
        return max(1, min(MOST, math.ceil(self._rate * self._patience())))

    def _patience(self) -> float:
        """How long the first of a batch waits for others."""
        if self.rule.timeout is not None:
            return self.rule.timeout
        return LONGEST * min(1.0, self._rate / BUSY)

    def _observe(self, ready: int, now: float) -> None:
        """Let what arrived since the last look count for the rate."""
        arrived, before = max(0, ready - self._known), self._looked
        self._known, self._looked = ready, now
        if before is None:
            return
        passed = max(now - before, 1e-3)  # several looks within a moment are one
        kept = math.exp(-passed / MEMORY)
        self._rate = self._rate * kept + arrived / passed * (1 - kept)
