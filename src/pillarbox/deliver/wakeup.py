"""When a worker looks at the queue: hints wake it, looking again after a hint catches what the throttle left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pillarbox.loops import wait
from pillarbox.store.database import Database
from pillarbox.store.notifications import hear

CHANNEL = "pillarbox_wake"
# Seconds after a hint at which to look again. Enqueuers send at most one hint in 10 ms, so the last
# commit of a burst may have sent none: 12 ms later it is most likely committed, 50 ms later surely,
# and polling is the truth.
TRAILING = (0.012, 0.05)
# Overdue deliveries that a claim did not return are locked, or cannot be sent now: no reason to ask
# without a pause.
SOONEST = 0.1


class Wakeup:
    """Waits for the next reason to look at the queue, and names it: notify, trailing, due, settled or poll."""

    def __init__(self) -> None:
        self._hinted = asyncio.Event()
        self._only_go_on = False
        self._looks: list[float] = []

    def hint(self) -> None:
        """Something may be due: look now, and again a little later."""
        self._only_go_on = False
        self._hinted.set()

    def go_on(self) -> None:
        """A lane may go on of which the worker knows: no need to look what else there is."""
        self._only_go_on = not self._hinted.is_set() or self._only_go_on
        self._hinted.set()

    async def wait(self, poll: float, due: float | None) -> str:
        """Wait for a hint, at most until the next trailing look, the next due delivery or the next poll."""
        if self._looks:
            seconds, source = self._looks.pop(0), "trailing"
        elif due is not None and due < poll:
            seconds, source = max(due, SOONEST), "due"
        else:
            seconds, source = poll, "poll"
        if not await wait(self._hinted, seconds):
            return source
        self._hinted.clear()
        if self._only_go_on:
            if source == "trailing":  # the look after a hint is still to come
                self._looks.insert(0, seconds)
            return "settled"
        self._looks = list(TRAILING)
        return "notify"

    def hinted(self) -> bool:
        """Whether there was a hint while nobody waited; the looks that follow one are due from now."""
        if self._only_go_on or not self._hinted.is_set():
            return False
        self._hinted.clear()
        self._looks = list(TRAILING)
        return True


async def listen(
    database: Database,
    wakeup: Wakeup,
    stop: asyncio.Event,
    others: Mapping[str, Callable[[], None]] | None = None,
) -> None:
    """Hear hints as `hear` does; `others` are more channels to hear on the same connection, each with whom to tell."""
    await hear(database, {CHANNEL: wakeup.hint, **(others or {})}, stop)
