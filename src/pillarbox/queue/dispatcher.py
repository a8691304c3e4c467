"""Dispatches the lanes of one worker: which lanes are its own, what to claim, what may begin."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence, Set

from pillarbox.errors import StoreError
from pillarbox.model.fairness import LaneId, Quota
from pillarbox.queue.lanes import SURVEY_LIMIT, LaneTracker
from pillarbox.queue.ledger import LARGEST_CLAIM, Ledger
from pillarbox.queue.ready import ReadyQueue
from pillarbox.queue.records import LARGEST_MESSAGE, ClaimedMessage


class Dispatcher:
    """Divides a worker's room between lanes, and keeps the order of each. One instance per worker.

    `claim`, `step_aside`, `register` and `retire` can raise StoreError; then the call had no effect
    or its full effect, and it can be repeated. The other methods do no I/O.
    """

    def __init__(self, ledger: Ledger, ready: ReadyQueue) -> None:
        self.ledger = ledger
        self.ready = ready
        self._lanes = LaneTracker(time.monotonic)
        self._order = self._lanes.order
        self._aside = False

    # -- the lease, which lane ownership depends on

    async def register(self, name: str, lease: float) -> int:
        """Begin a lease under a new worker id, which owns no lanes yet."""
        self._lanes.forget()
        self._aside = False
        return await self.ledger.register(name, lease)

    async def retire(self) -> None:
        """End the lease and give up all lanes; nothing is held any more."""
        self._lanes.forget()
        await self.ledger.retire()

    # -- claiming

    async def claim(
        self,
        limit: int,
        max_bytes: int,
        allow_oversized: bool,
        *,
        look: bool = True,
        barred: Set[LaneId] = frozenset(),
    ) -> list[ClaimedMessage]:
        """Claim up to `limit` due messages of `max_bytes` together, in the order to begin them.

        With `allow_oversized` the first may be larger than that. An empty list means that nothing
        is known to be due; with `look`, or when it is time for one, a survey comes first. Nothing
        is claimed from `barred` lanes.
        """
        limit = min(limit, LARGEST_CLAIM)
        hinted = self.ready.take_hint()
        if look or self._lanes.stale(hinted):
            await self._survey()
        quotas = self._lanes.quotas(limit, barred)
        if not quotas:
            return []
        try:
            claims = await self.ready.claim(quotas, limit, max_bytes, allow_oversized)
        except StoreError:
            # Something may have been claimed: no lane is given away before it is back.
            self._lanes.forget()
            raise
        taken = Counter(claimed.lane_id for claimed in claims)
        self._lanes.claimed(quotas, taken, cut=max_bytes < LARGEST_MESSAGE)
        return in_turns(claims, quotas)

    async def _survey(self) -> None:
        """Find lanes with work, take lanes without a dispatcher, and give up too many."""
        lanes = self._lanes
        if self._aside:
            await self.ledger.come_back()
            self._aside = False
        asked_at = time.monotonic()
        surveyed = await self.ready.survey(lanes.start, SURVEY_LIMIT)
        free_lanes = lanes.to_take(surveyed)
        taken = await self.ledger.take_lanes(free_lanes) if free_lanes else []
        lanes.surveyed(surveyed, taken, asked_at)
        if surplus := lanes.surplus():
            await self.ledger.give_lanes(surplus)
            lanes.gave(surplus)

    async def step_aside(self) -> None:
        """Let other workers, if there are any, dispatch the lanes: this one has no more room."""
        idle = self._lanes.idle()
        if not idle and self._aside:
            return
        if await self.ledger.step_aside(idle):
            self._aside = True
            self._lanes.gave(idle)

    def next_due(self) -> float | None:
        """Seconds until a survey may find more than the last; None if no time is known."""
        return self._lanes.next_due

    # -- the order of each lane

    def begin(self, claimed: ClaimedMessage) -> bool:
        """Note that sending begins: the lane's order no longer depends on it. Twice is once.

        False when it must not begin, because an earlier message of its lane was given back.
        """
        if not claimed.begun and self._order.may_begin(claimed.lane_id):
            claimed.begun = True
            self._order.begun(claimed.lane_id)
        return claimed.begun

    def give_back(self, claimed: ClaimedMessage) -> None:
        """Note that an unbegun message will be released: its lane begins nothing until then."""
        if not claimed.begun:
            self._order.returning(claimed.lane_id)

    def hold(self, claimed: ClaimedMessage, seconds: float) -> None:
        """Claim nothing from a message's lane for so long: its provider has no room."""
        self._lanes.hold(claimed.lane_id, seconds)

    def end(self, claimed: ClaimedMessage) -> bool:
        """Note, once, that a message was settled or released; True if its lane waited for that."""
        return self._lanes.ended(claimed.lane_id, claimed.begun)

    def may_postpone(self, claimed: ClaimedMessage) -> bool:
        """Whether other messages of its lane may overtake it."""
        return not self._order.is_strict(claimed.lane_id)


def in_turns(claims: list[ClaimedMessage], quotas: Sequence[Quota]) -> list[ClaimedMessage]:
    """Order claims: higher priorities first, lanes of a priority in turn, each in its own order."""
    if len(quotas) == 1:
        return claims
    turn_of = {quota.lane.id: turn for turn, quota in enumerate(quotas)}
    earlier: Counter[LaneId] = Counter()
    ranked = []
    for claimed in claims:
        lane = claimed.lane_id
        ranked.append((lane.priority, earlier[lane], turn_of[lane], claimed))
        earlier[lane] += 1
    ranked.sort(key=lambda entry: entry[:3])
    return [claimed for *_, claimed in ranked]
