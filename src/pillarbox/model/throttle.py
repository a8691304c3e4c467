"""Counting failures, to make those wait who fail too often. Pure: the caller brings the clock."""

from __future__ import annotations

from collections.abc import Hashable

WINDOW = 60.0  # limits are per minute: long enough to stop guessing, short enough to forgive a wrong configuration
# Some 2 MB. Whoever fails from more places than that within a minute gets a few more tries, and no
# more than that.
REMEMBERED = 10_000


class Failures:
    """Failures by where they came from, each counted for a minute after the first; in bounded memory."""

    def __init__(self, most: int, window: float = WINDOW, remembered: int = REMEMBERED) -> None:
        self.most = most
        self._window = window
        self._remembered = remembered
        self._counts: dict[
            Hashable, tuple[float, int]
        ] = {}  # when the first came, how many; in the order of the first

    def wait(self, where: Hashable, now: float) -> float:
        """How many seconds it has to wait before the next try; 0 for none."""
        first, count = self._counts.get(where, (now, 0))
        return max(0.0, self._window - (now - first)) if count >= self.most else 0.0

    def add(self, where: Hashable, now: float) -> None:
        first, count = self._counts.get(where, (now, 0))
        if now - first >= self._window:
            del self._counts[where]
            first, count = now, 0
        self._counts[where] = (first, count + 1)
        self._forget(now)

    def learn(self, where: Hashable, now: float, count: int, age: float) -> None:
        """Take over what others have counted, since `age` seconds, if it is more than what is known here."""
        first, known = self._counts.get(where, (now, 0))
        if now - first >= self._window:
            known = 0
        if count > known and age < self._window:
            self._counts.pop(where, None)
            self._counts[where] = (
                now - age,
                count,
            )  # last, though it began earlier: it is forgotten a little later
            self._forget(now)

    def _forget(self, now: float) -> None:
        while self._counts:
            oldest = next(iter(self._counts))
            if (
                now - self._counts[oldest][0] < self._window
                and len(self._counts) <= self._remembered
            ):
                return
            del self._counts[oldest]

    def __len__(self) -> int:
        return len(self._counts)
