"""AIMD: how many mails a provider gets at the same time, and the pauses that it asks for."""

from __future__ import annotations

# Additive increase, multiplicative decrease, as in TCP: it finds what the provider takes.
DECREASE = 0.5
# Answers to mails that were sent before a decrease must not cause another one: for this long, and
# during a pause.
DECREASE_INTERVAL = 1.0
# A provider that asks for a pause without a time gets this much, doubled each time it asks again.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
# A provider that asks for a longer pause is asked again after this: it may mean less.
LONGEST_RETRY_AFTER = 3600.0


class AimdLimiter:
    """A limit between one and `max_limit`, and the end of a pause. The caller brings the clock."""

    def __init__(self, max_limit: int) -> None:
        self.max_limit = max(1, max_limit)
        self.limit = float(self.max_limit)
        self.paused_until = 0.0
        self._decreased_at = float("-inf")
        self._next_pause = FIRST_PAUSE

    def increase(self) -> None:
        """A mail was taken."""
        if self.limit < self.max_limit:
            self.limit = min(self.max_limit, self.limit + 1.0 / self.limit)
        else:
            self._next_pause = FIRST_PAUSE

    def decrease(self, now: float, retry_after: float | None) -> bool:
        """The provider answered "too many". Returns whether the limit or the pause changed."""
        is_late = now < max(self.paused_until, self._decreased_at + DECREASE_INTERVAL)
        if retry_after is not None:
            self._pause_until(now + min(retry_after, LONGEST_RETRY_AFTER))
        if is_late:
            return False
        self._decreased_at = now
        self.limit = max(1.0, self.limit * DECREASE)
        if retry_after is None:
            self._pause_until(now + self._next_pause)
            self._next_pause = min(self._next_pause * 2, LONGEST_PAUSE)
        return True

    def pause(self, now: float, seconds: float) -> None:
        """Another process was asked to pause."""
        self._pause_until(now + seconds)

    def _pause_until(self, time: float) -> None:
        self.paused_until = max(self.paused_until, time)

    def max_in_flight(self, now: float, pipeline: int = 1) -> int:
        """How many mails may be in flight; `pipeline` times the limit unless it was decreased."""
        if now < self.paused_until:
            return 0
        if self.limit < self.max_limit:
            return int(self.limit)
        return self.max_limit * pipeline
