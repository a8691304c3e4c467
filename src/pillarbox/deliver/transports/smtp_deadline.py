"""A deadline that is cheap to move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls back when `at` has passed. Moving it is an assignment, cheaper than a timer per mail.

    An `at` nearer than `shortest` seconds may be noticed late, by up to that much; `sharpen` is
    exact.
    """

    __slots__ = ("_expired", "_loop", "_shortest", "_timer", "at")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, shortest: float, expired: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._shortest = shortest
        self._expired = expired
        self.at = loop.time() + shortest
        self._timer = loop.call_at(self.at, self._look)

    def sharpen(self, at: float) -> None:
        """Move it to any time, even a near one."""
        self._timer.cancel()
        self.at = at
        self._timer = self._loop.call_at(at, self._look)

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self.at:
            self._expired()
        else:
            self._timer = self._loop.call_at(min(self.at, now + self._shortest), self._look)
