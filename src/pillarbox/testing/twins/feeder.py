"""Automatic feedback: the events of each mail are drawn at random, as the dials say."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import TYPE_CHECKING, Any

import aiohttp

from pillarbox.testing.twins.dials import FeedbackDials
from pillarbox.testing.twins.mail import TwinMail

if TYPE_CHECKING:
    from pillarbox.testing.twins.base import Kind, Twin

# Requests at the same time: services post from many machines, so that order is nowhere certain.
POSTERS = 4
# Services try again for hours; a test or a demonstration need not.
TRIES = 5
PAUSE = 1.0
# Between two events of one recipient, in seconds: enough to give them an order.
STEP = 0.001


class Feeder:
    """Draws the lots, waits, posts."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._due: deque[tuple[dict[str, Any], bool]] = (
            deque()
        )  # events, and whether they are forged
        self._news = asyncio.Event()
        self._timers: set[asyncio.TimerHandle] = set()
        self._posters: list[asyncio.Task[None]] = []
        self._lots = random.Random()
        self._seed: int | None = None

    def accepted(self, mail: TwinMail, dials: FeedbackDials) -> None:
        """Decide what becomes of a mail."""
        if self._seed != dials.seed:
            self._seed = dials.seed
            self._lots = random.Random(dials.seed)
        if not self._posters:
            self._posters = [asyncio.create_task(self._post_on()) for _ in range(POSTERS)]
        for recipient in mail.recipients:
            self._plan(mail, recipient, dials)

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for poster in self._posters:
            poster.cancel()
        await asyncio.gather(*self._posters, return_exceptions=True)
        self._posters.clear()

    def _plan(self, mail: TwinMail, recipient: str, dials: FeedbackDials) -> None:
        kinds = self._fate(dials)
        if dials.shuffled:
            self._lots.shuffle(kinds)
        for place, kind in enumerate(kinds):
            late = dials.late if kind in ("bounced", "complained") else 0.0
            self._later(dials.delay + late + place * STEP, mail, kind, recipient, dials)

    def _fate(self, dials: FeedbackDials) -> list[Kind]:
        """What happens to one recipient, in order."""
        kinds: list[Kind] = ["deferred"] if self._drawn(dials.deferred) else []
        if self._drawn(dials.bounced):
            return [*kinds, "bounced"]
        if not dials.delivered:
            return kinds
        after: list[tuple[Kind, float]] = [
            ("opened", dials.opened),
            ("clicked", dials.clicked),
            ("complained", dials.complained),
            ("unsubscribed", dials.unsubscribed),
        ]
        return [*kinds, "delivered", *(kind for kind, share in after if self._drawn(share))]

    def _drawn(self, share: float) -> bool:
        return share > 0 and self._lots.random() < share

    def _later(
        self, delay: float, mail: TwinMail, kind: Kind, recipient: str, dials: FeedbackDials
    ) -> None:
        twice, forged = self._drawn(dials.duplicate), self._drawn(dials.forged)

        def tell() -> None:
            self._timers.discard(timer)
            [event] = self._twin.describe(mail, kind, recipient, {})
            self._due.extend([(event, False)] * (1 + twice))
            if forged:
                self._due.append((self._twin.describe(mail, "bounced", recipient, {})[0], True))
            self._news.set()

        timer = asyncio.get_running_loop().call_later(delay, tell)
        self._timers.add(timer)

    async def _post_on(self) -> None:
        while True:
            while not self._due:
                self._news.clear()
                await self._news.wait()
            events, forged = self._take()
            await self._post(events, forged)

    def _take(self) -> tuple[list[dict[str, Any]], bool]:
        """The next events that may go in one request: true and forged ones never together."""
        event, forged = self._due.popleft()
        events = [event]
        while self._due and len(events) < self._twin.batch and self._due[0][1] == forged:
            events.append(self._due.popleft()[0])
        return events, forged

    async def _post(self, events: list[dict[str, Any]], forged: bool) -> None:
        headers, body = self._twin.sign(events, forged=forged)
        for _ in range(TRIES):
            try:
                if await self._twin.post(headers, body) < 500:
                    return
            except (aiohttp.ClientError, TimeoutError):
                self._twin.posted[0] += 1
            await asyncio.sleep(PAUSE)
