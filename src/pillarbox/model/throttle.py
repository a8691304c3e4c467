"""Throttling: clients that fail too often must wait. Pure: the caller passes the time."""

from __future__ import annotations

from collections.abc import Hashable

# Limits are per minute: long enough to stop guessing, short enough to forgive a wrong setting.
WINDOW = 60.0
# Some 2 MB. With more clients than this within a minute, the oldest counts are forgotten.
REMEMBERED = 10_000


class Failures:
    """Failures by client, each counted for a window after the first; in bounded memory."""

    def __init__(self, limit: int, window: float = WINDOW, remembered: int = REMEMBERED) -> None:
        self.limit = limit
        self._window = window
        self._remembered = remembered
        # By client: time of the first failure, and the count; in the order of the first failure.
        self._counts: dict[Hashable, tuple[float, int]] = {}

    def wait(self, client: Hashable, now: float) -> float:
        """Seconds until the client's next try is allowed; 0 if it is allowed now."""
        first, count = self._counts.get(client, (now, 0))
        if count < self.limit:
            return 0.0
        return max(0.0, self._window - (now - first))

    def add(self, client: Hashable, now: float) -> None:
        """Count a failure."""
        first, count = self._counts.get(client, (now, 0))
        if now - first >= self._window:
            del self._counts[client]
            first, count = now, 0
        self._counts[client] = (first, count + 1)
        self._forget(now)

    def learn(self, client: Hashable, now: float, count: int, age: float) -> None:
        """Use the count of all processes, since `age` seconds, if it is the higher one."""
        first, known = self._counts.get(client, (now, 0))
        if now - first >= self._window:
            known = 0
        if count > known and age < self._window:
            # Last in the order although it began earlier: it is forgotten a little later.
            self._counts.pop(client, None)
            self._counts[client] = (now - age, count)
            self._forget(now)

    def _forget(self, now: float) -> None:
        while self._counts:
            oldest = next(iter(self._counts))
            is_current = now - self._counts[oldest][0] < self._window
            if is_current and len(self._counts) <= self._remembered:
                return
            del self._counts[oldest]

    def __len__(self) -> int:
        return len(self._counts)
