"""When a worker looks for work: at once after a hint, again a little later, and by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pillarbox.loops import wait

# A claim that did not return overdue deliveries found them locked, or not sendable now: asking
# again without a pause would not help.
SOONEST = 0.1


class WorkSignal:
    """Waits for the next reason to look for work: notify, trailing, due, settled or poll.

    `trailing` are the seconds after a hint at which to look again, for senders of hints that leave
    some out.
    """

    def __init__(self, trailing: Sequence[float] = ()) -> None:
        self._trailing = trailing
        self._signalled = asyncio.Event()
        self._only_resume = False
        self._looks: list[float] = []

    def wake(self) -> None:
        """Work may be ready: look now, and again a little later."""
        self._only_resume = False
        self._signalled.set()

    def resume(self) -> None:
        """A known lane may go on: no need to look for others."""
        self._only_resume = not self._signalled.is_set() or self._only_resume
        self._signalled.set()

    async def wait(self, poll: float, due_in: float | None) -> str:
        """Wait for a hint; at most until the next trailing look, due delivery or poll."""
        if self._looks:
            seconds, source = self._looks.pop(0), "trailing"
        elif due_in is not None and due_in < poll:
            seconds, source = max(due_in, SOONEST), "due"
        else:
            seconds, source = poll, "poll"
        if not await wait(self._signalled, seconds):
            return source
        self._signalled.clear()
        if self._only_resume:
            if source == "trailing":  # the look after a hint is still to come
                self._looks.insert(0, seconds)
            return "settled"
        self._looks = list(self._trailing)
        return "notify"

    def take_hint(self) -> bool:
        """Whether a hint came while nothing waited; the looks that follow it are due from now."""
        if self._only_resume or not self._signalled.is_set():
            return False
        self._signalled.clear()
        self._looks = list(self._trailing)
        return True
