"""What one worker knows of the lanes: where something waits, which it dispatches, and what it has not yet begun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from pillarbox.model.access import Order
from pillarbox.model.fairness import FairShare, LaneId, Quota, ReadyLane

# Lanes in one survey; a worker that dispatches so many has plenty to do, and sees the others next
# time.
SURVEY_LIMIT = 5000
# Up to so many lanes, a survey costs a small part of a claim (a quarter of a millisecond), and
# comes before each one. Then the first claim after a commit takes the new mail; what goes before it
# was claimed by then: a batch at most.
FEW_LANES = 32
# With more lanes, while busy, look for newly filled ones this often; and this often when something
# is known to have come in, which is as often as enqueuers say so. One tenant's mails are a small
# part of what is claimed meanwhile.
SURVEY_INTERVAL = 0.05
HINTED_INTERVAL = 0.01
# Enqueuers say so at most once in ten milliseconds: after a hint, look once more for what came just
# behind it.
TRAILING = 0.012
# A survey of very many lanes takes its time: it gets this share of it at most. A short one may have
# waited for others.
SURVEY_SHARE = 0.1
LANE_COST = 30e-6  # seconds for each lane seen, at most
# A worker keeps this many lanes more than its share, lest lanes move to and fro with every mail.
SLACK = 1
FIRST = LaneId(0, -1)  # before all lanes


class SurveyedLane(NamedTuple):
    """A row of a survey."""

    tenant: int
    priority: int
    order: Order
    fresh: bool
    due_in: float | None  # seconds until the first deferred mail is due
    mine: bool
    theirs_for: float | None  # seconds until the lease of the worker that dispatches it runs out
    limited_for: float | None  # seconds until the limits of the tenant allow one more
    limited: bool  # whether there is such a limit at all
    workers: int  # that are alive and have room, this one included

    @property
    def key(self) -> LaneId:
        return LaneId(self.tenant, self.priority)

    @property
    def waits(self) -> bool:
        """Whether something could leave now, but for limits."""
        return self.fresh or (self.due_in is not None and self.due_in <= 0)

    @property
    def free(self) -> bool:
        """Whether it needs a dispatcher and has none."""
        return not self.mine and self.theirs_for is None and self.order is not Order.PARALLEL


class LaneTracker:
    """The lanes as last surveyed, corrected by what was claimed since."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._fair_share = FairShare()
        self._known: dict[LaneId, ReadyLane] = {}
        self._unbegun: Counter[LaneId] = (
            Counter()
        )  # claimed mails that the order of their lane depends on
        self._returning: set[LaneId] = (
            set()
        )  # lanes of which some of these are on their way back to the queue
        self._strict: set[LaneId] = set()  # strict lanes with a mail in flight
        self._limited: set[LaneId] = set()
        self._held: dict[LaneId, float] = {}  # lanes that are not claimed from until then
        self._mine: set[LaneId] = set()
        self._working = 0
        self._share = 0
        self._next = self._next_hinted = float("-inf")
        self._few = True  # whether the last survey saw few lanes
        self._hinted = False  # that something came in since the last survey
        self._trailing = float("inf")  # when to look once more for what came just behind a hint
        self._sooner: float | None = None  # when something will be due that is not now
        self.start = FIRST  # where the next survey begins

    def stale(self, hinted: bool = False) -> bool:
        """Whether it is time for a survey: where there are few lanes, before every claim; after a hint, earlier."""
        now = self._clock()
        if hinted:
            self._hinted = True
            self._trailing = now + TRAILING
        if self._few and any(lane.fresh or lane.due for lane in self._known.values()):
            return True
        soon = self._hinted or now >= self._trailing
        return now >= (self._next_hinted if soon else self._next)

    def forget(self) -> None:
        """Dispatch nothing any more, and know nothing."""
        self._mine.clear()
        self._known.clear()
        self._next = self._next_hinted = float("-inf")
        self.start = FIRST

    def wanted(self, rows: Sequence[SurveyedLane]) -> list[LaneId]:
        """The lanes without a dispatcher that this worker should take: up to its share of those with work."""
        working = [row for row in rows if row.waits and row.order is not Order.PARALLEL]
        before, mine = (
            (0, 0) if self.start == FIRST else (self._working, len(self._mine & self._known.keys()))
        )
        self._working = before + len(working)
        self._share = -(-self._working // max(rows[0].workers, 1)) if rows else 0
        room = self._share - mine - sum(row.mine for row in working)
        free = sorted((row for row in working if row.free), key=lambda row: row.priority)
        return [row.key for row in free[: max(room, 0)]]

    def surveyed(self, rows: Sequence[SurveyedLane], taken: Iterable[LaneId], asked: float) -> None:
        """Take note of a survey that was asked for at that time, and of the lanes taken since."""
        now = self._clock()
        before, known = self._known, {} if self.start == FIRST else self._known
        self.start = rows[-1].key if len(rows) >= SURVEY_LIMIT else FIRST
        self._mine.difference_update(row.key for row in rows if not row.mine)
        self._mine.update(row.key for row in rows if row.mine)
        self._mine.update(taken)
        for row in rows:
            self._see(row, known)
        self._known = known
        self._fair_share.leave(lane for key, lane in before.items() if key not in known)
        waits = [now + wait for row in rows if (wait := self._wait(row)) is not None]
        self._sooner = min(
            [*waits, *(until for until in self._held.values() if until > now)], default=None
        )
        pause = min(now - asked, (1 + len(rows)) * LANE_COST) / SURVEY_SHARE
        self._few = len(rows) <= FEW_LANES
        self._hinted = False
        if asked >= self._trailing:
            self._trailing = float("inf")
        self._next = now + max(SURVEY_INTERVAL, pause)
        self._next_hinted = now + max(HINTED_INTERVAL, pause)

    def _see(self, row: SurveyedLane, known: dict[LaneId, ReadyLane]) -> None:
        key = row.key
        if row.limited:
            self._limited.add(key)
        else:
            self._limited.discard(key)
        if row.waits and self._may_claim(row) and row.limited_for is None:
            before = self._known.get(key)
            due = row.due_in is not None and row.due_in <= 0
            served = (
                self._fair_share.enter(key, before.served)
                if before
                else self._fair_share.enter(key)
            )
            known[key] = ReadyLane(key, row.order, row.fresh, due, served)

    def _may_claim(self, row: SurveyedLane) -> bool:
        return row.order is Order.PARALLEL or row.key in self._mine

    def _wait(self, row: SurveyedLane) -> float | None:
        """Seconds until this lane may have something for us that it does not have now."""
        if row.theirs_for is not None and row.order is not Order.PARALLEL:
            return row.theirs_for
        return min(
            (wait for wait in (row.due_in, row.limited_for) if wait is not None and wait > 0),
            default=None,
        )

    @property
    def next_due(self) -> float | None:
        """Seconds until a look at the queue may find more than the last; None when no time is known."""
        return None if self._sooner is None else self._sooner - self._clock()

    def quotas(self, room: int, barred: Set[LaneId] = frozenset()) -> list[Quota]:
        """What to claim for so many free places; nothing when nothing is known to wait."""
        # What is on its way back, or in flight of a strict lane, comes before what would be claimed
        # now.
        waits = self._returning | self._strict | barred
        if self._held:
            waits |= self._still_held()
        ready = (
            (lane for key, lane in self._known.items() if key not in waits)
            if waits
            else self._known.values()
        )
        return self._fair_share.divide(ready, room) if room > 0 else []

    def claimed(self, quotas: Iterable[Quota], taken: Counter[LaneId], cut: bool) -> None:
        """Take note of a claim's answer; `cut` when it was cut short, and says nothing of what is left."""
        for quota in quotas:
            lane, got = quota.lane, taken[quota.lane.id]
            lane.served -= quota.limit - got
            if got:
                self._unbegun[lane.id] += got
                if lane.order is Order.STRICT:
                    self._strict.add(lane.id)
            if got < quota.limit and not cut:
                self._emptied(quota, got)

    def hold(self, key: LaneId, seconds: float) -> None:
        """Claim nothing from a lane for so long: what its next mail leaves through has no room."""
        self._held[key] = self._clock() + seconds
        self._look_at(self._held[key])

    def _still_held(self) -> set[LaneId]:
        now = self._clock()
        self._held = {key: until for key, until in self._held.items() if until > now}
        return set(self._held)

    def is_strict(self, key: LaneId) -> bool:
        """Whether a mail of this lane is in flight, and nothing may overtake it."""
        return key in self._strict

    def _emptied(self, quota: Quota, got: int) -> None:
        """A lane gave less than asked: it has no fresh mails left, and deferred ones only if it gave all it might."""
        lane = quota.lane
        lane.fresh = False
        lane.due = lane.due and quota.deferred_limit < quota.limit and quota.deferred_limit <= got
        if lane.id in self._limited:  # it may not be empty: a limit may have held the rest back
            self._look_at(self._clock() + SURVEY_INTERVAL)

    def _look_at(self, time: float) -> None:
        self._sooner = time if self._sooner is None else min(self._sooner, time)

    def may_begin(self, key: LaneId) -> bool:
        """Whether a claimed mail may begin: not if one before it in its lane may be on its way back."""
        return key not in self._returning

    def begun(self, key: LaneId) -> None:
        """A claimed mail has begun: the order of its lane no longer depends on it, unless that is strict."""
        if key not in self._strict:
            _less(self._unbegun, key)

    def returning(self, key: LaneId) -> None:
        """A claimed mail that has not begun goes back to the queue, and so must all of its lane that have not."""
        self._returning.add(key)

    def ended(self, key: LaneId, begun: bool) -> bool:
        """A claimed mail is settled, or back in the queue; says whether its lane waited for that and may go on."""
        if begun and key not in self._strict:
            return False
        _less(self._unbegun, key)
        if key in self._unbegun or key not in self._returning | self._strict:
            return False
        self._returning.discard(key)
        self._strict.discard(key)
        if lane := self._known.get(key):
            lane.fresh = True  # perhaps; asking tells
            lane.served = self._fair_share.enter(key, lane.served)
        return lane is not None

    def surplus(self) -> list[LaneId]:
        """Lanes with work beyond this worker's share, which others may dispatch."""
        mine = [key for key in self._known if key in self._mine]
        if (
            self.start != FIRST or len(mine) <= self._share + SLACK
        ):  # a share of all is known when all were seen
            return []
        return [key for key in mine if key not in self._unbegun][: len(mine) - self._share]

    def idle(self) -> list[LaneId]:
        """All lanes of which nothing waits here to begin."""
        return [key for key in self._mine if key not in self._unbegun]

    def gave(self, keys: Iterable[LaneId]) -> None:
        for key in keys:
            self._mine.discard(key)
            self._known.pop(key, None)


def _less(counter: Counter[LaneId], key: LaneId) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
