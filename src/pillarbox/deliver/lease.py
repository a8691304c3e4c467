"""A worker's own view of its lease: never later than the database's."""

from __future__ import annotations

import time
from collections.abc import Callable

# Counts while the machine sleeps, which time.monotonic() does not.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# Share of the lease after which no send begins: one that has begun must reach the wire in the rest.
SAFE_SHARE = 0.8


def boot_clock() -> float:
    return time.clock_gettime(_BOOTTIME)


class Lease:
    """Whether a send may still begin, counted from before the request that renewed the lease."""

    def __init__(self, seconds: float, clock: Callable[[], float] = boot_clock) -> None:
        self.seconds = seconds
        self._clock = clock
        self._until = clock()

    def now(self) -> float:
        return self._clock()

    def renewed(self, asked_at: float) -> None:
        """The database renewed the lease in answer to a request made at `asked_at`."""
        self._until = max(self._until, asked_at + self.seconds * SAFE_SHARE)

    def lost(self) -> None:
        self._until = self._clock()

    def valid(self) -> bool:
        return self._clock() < self._until
