"""What one worker knows of its lanes: where mails wait, which it dispatches, what has not begun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set

from pillarbox.model.access import Order
from pillarbox.model.fairness import FairShare, LaneId, Quota, ReadyLane
from pillarbox.queue.records import SurveyedLane

# Lanes in one survey. A worker that dispatches so many has plenty to do; the next survey goes on
# where this one ended.
SURVEY_LIMIT = 5000
# Up to so many lanes, a survey costs a small part of a claim (a quarter of a millisecond), and
# comes before each one. Then the first claim after a commit takes the new mail; what goes before it
# was claimed by then: a batch at most.
FEW_LANES = 32
# With more lanes, while busy, look for newly filled ones this often; and this often after a hint,
# which is as often as enqueuers send them. One tenant's mails are a small part of what is claimed
# meanwhile.
SURVEY_INTERVAL = 0.05
HINTED_INTERVAL = 0.01
# Enqueuers send at most one hint in ten milliseconds: after a hint, look once more for mails that
# were committed just behind it.
TRAILING_LOOK = 0.012
# A survey of very many lanes takes long: it gets this share of the time at most. A short one may
# have waited for other statements, so its time counts up to LANE_COST seconds per lane.
SURVEY_SHARE = 0.1
LANE_COST = 30e-6
# A worker keeps this many lanes more than its share, so that lanes do not move back and forth with
# every mail.
SLACK = 1
FIRST = LaneId(0, -1)  # before all lanes
NEVER, ALWAYS = float("inf"), float("-inf")


class LaneTracker:
    """The lanes as last surveyed, corrected by what was claimed since. Does no I/O."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._fair_share = FairShare()
        self._known: dict[LaneId, ReadyLane] = {}
        # Claimed mails on which the order of their lane depends: not begun, or of a strict lane.
        self._unbegun: Counter[LaneId] = Counter()
        self._returning: set[LaneId] = set()  # lanes with an unbegun mail that is being released
        self._strict: set[LaneId] = set()  # strict lanes with a mail in flight
        self._limited: set[LaneId] = set()  # lanes of tenants with rate limits
        self._held: dict[LaneId, float] = {}  # lanes not to claim from, until then
        self._own: set[LaneId] = set()
        self._working = 0  # lanes with work in the survey, of all dispatchers
        self._share = 0  # how many of them this worker should dispatch
        self._next_survey = self._next_hinted_survey = ALWAYS
        self._few = True  # whether the last survey saw few lanes
        self._hinted = False  # since the last survey
        self._trailing_at = NEVER  # when to look for mails committed just behind a hint
        self._sooner: float | None = None  # when something will be due that is not due now
        self.start = FIRST  # where the next survey begins

    # -- surveys

    def stale(self, hinted: bool = False) -> bool:
        """Whether to survey: with few lanes before every claim; sooner after a hint."""
        now = self._clock()
        if hinted:
            self._hinted = True
            self._trailing_at = now + TRAILING_LOOK
        if self._few and any(lane.fresh or lane.due for lane in self._known.values()):
            return True
        if self._hinted or now >= self._trailing_at:
            return now >= self._next_hinted_survey
        return now >= self._next_survey

    def forget(self) -> None:
        """Dispatch no lane and know of no waiting mail; unbegun mails are not forgotten."""
        self._own.clear()
        self._known.clear()
        self._next_survey = self._next_hinted_survey = ALWAYS
        self.start = FIRST

    def to_take(self, surveyed: Sequence[SurveyedLane]) -> list[LaneId]:
        """The lanes without a dispatcher to take: up to this worker's share of lanes with work."""
        ordered = [lane for lane in surveyed if lane.waits and lane.order is not Order.PARALLEL]
        owned = sum(lane.is_own for lane in ordered)
        if self.start == FIRST:
            self._working = len(ordered)
        else:  # a further page of the same survey
            self._working += len(ordered)
            owned += len(self._own & self._known.keys())
        self._share = 0
        if surveyed:
            self._share = -(-self._working // max(surveyed[0].workers, 1))
        free = [lane for lane in ordered if lane.free]
        free.sort(key=lambda lane: lane.priority)
        return [lane.id for lane in free[: max(self._share - owned, 0)]]

    def surveyed(
        self, surveyed: Sequence[SurveyedLane], taken: Iterable[LaneId], asked_at: float
    ) -> None:
        """Note a survey that was started at `asked_at`, and the lanes taken since."""
        now = self._clock()
        before = self._known
        known = {} if self.start == FIRST else before
        self.start = surveyed[-1].id if len(surveyed) >= SURVEY_LIMIT else FIRST
        for lane in surveyed:
            if lane.is_own:
                self._own.add(lane.id)
            else:
                self._own.discard(lane.id)
        self._own.update(taken)
        for lane in surveyed:
            self._see(lane, known)
        self._known = known
        self._fair_share.leave(lane for key, lane in before.items() if key not in known)
        self._sooner = self._soonest(surveyed, now)
        self._schedule_survey(len(surveyed), asked_at, now)

    def _see(self, lane: SurveyedLane, known: dict[LaneId, ReadyLane]) -> None:
        lane_id = lane.id
        if lane.limited:
            self._limited.add(lane_id)
        else:
            self._limited.discard(lane_id)
        may_claim = lane.order is Order.PARALLEL or lane_id in self._own
        if not (lane.waits and may_claim and lane.limited_for is None):
            return
        before = self._known.get(lane_id)
        served = self._fair_share.enter(lane_id, before.served if before else -1)
        due = lane.due_in is not None and lane.due_in <= 0
        known[lane_id] = ReadyLane(lane_id, lane.order, lane.fresh, due, served)

    def _soonest(self, surveyed: Sequence[SurveyedLane], now: float) -> float | None:
        """When a lane may have something for this worker that it does not have now."""
        times = [until for until in self._held.values() if until > now]
        for lane in surveyed:
            if lane.other_lease_for is not None and lane.order is not Order.PARALLEL:
                waits = [lane.other_lease_for]
            else:
                waits = [wait for wait in (lane.due_in, lane.limited_for) if wait and wait > 0]
            times += [now + wait for wait in waits]
        return min(times, default=None)

    def _schedule_survey(self, lanes: int, asked_at: float, now: float) -> None:
        self._few = lanes <= FEW_LANES
        self._hinted = False
        if asked_at >= self._trailing_at:
            self._trailing_at = NEVER
        pause = min(now - asked_at, (1 + lanes) * LANE_COST) / SURVEY_SHARE
        self._next_survey = now + max(SURVEY_INTERVAL, pause)
        self._next_hinted_survey = now + max(HINTED_INTERVAL, pause)

    @property
    def next_due(self) -> float | None:
        """Seconds until a survey may find more than the last; None when no time is known."""
        return None if self._sooner is None else self._sooner - self._clock()

    # -- claims

    def quotas(self, room: int, barred: Set[LaneId] = frozenset()) -> list[Quota]:
        """What to claim for so many free places; nothing when no mail is known to wait."""
        if room <= 0:
            return []
        # A mail that is being released, or is in flight of a strict lane, comes before all others.
        closed = self._returning | self._strict | barred
        if self._held:
            closed |= self._still_held()
        if not closed:
            return self._fair_share.divide(self._known.values(), room)
        open_lanes = [lane for lane_id, lane in self._known.items() if lane_id not in closed]
        return self._fair_share.divide(open_lanes, room)

    def claimed(self, quotas: Iterable[Quota], taken: Counter[LaneId], cut: bool) -> None:
        """Note the answer to a claim; with `cut`, too few bytes may have cut it short."""
        for quota in quotas:
            lane, got = quota.lane, taken[quota.lane.id]
            lane.served -= quota.limit - got
            if got:
                self._unbegun[lane.id] += got
                if lane.order is Order.STRICT:
                    self._strict.add(lane.id)
            if got < quota.limit and not cut:
                self._emptied(quota, got)

    def _emptied(self, quota: Quota, got: int) -> None:
        """A lane gave less than its quota: no fresh mails are left, and deferred ones perhaps."""
        lane = quota.lane
        lane.fresh = False
        lane.due = lane.due and quota.deferred_limit < quota.limit and quota.deferred_limit <= got
        if lane.id in self._limited:  # it may not be empty: a limit may have held the rest back
            self._look_at(self._clock() + SURVEY_INTERVAL)

    def hold(self, lane_id: LaneId, seconds: float) -> None:
        """Claim nothing from a lane for so long: the provider of its next mail has no room."""
        self._held[lane_id] = self._clock() + seconds
        self._look_at(self._held[lane_id])

    def _still_held(self) -> set[LaneId]:
        now = self._clock()
        self._held = {lane_id: until for lane_id, until in self._held.items() if until > now}
        return set(self._held)

    def _look_at(self, time: float) -> None:
        self._sooner = time if self._sooner is None else min(self._sooner, time)

    # -- the order of each lane

    def is_strict(self, lane_id: LaneId) -> bool:
        """Whether a mail of this lane is in flight, and nothing may overtake it."""
        return lane_id in self._strict

    def may_begin(self, lane_id: LaneId) -> bool:
        """Whether a claimed mail may begin: not while one of its lane is being released."""
        return lane_id not in self._returning

    def begun(self, lane_id: LaneId) -> None:
        """A claimed mail has begun: its lane's order no longer depends on it, unless strict."""
        if lane_id not in self._strict:
            _decrement(self._unbegun, lane_id)

    def returning(self, lane_id: LaneId) -> None:
        """An unbegun mail will be released, and so must all unbegun mails of its lane."""
        self._returning.add(lane_id)

    def ended(self, lane_id: LaneId, begun: bool) -> bool:
        """A claimed mail was settled or released; True if its lane waited for that."""
        if begun and lane_id not in self._strict:
            return False
        _decrement(self._unbegun, lane_id)
        if lane_id in self._unbegun or lane_id not in self._returning | self._strict:
            return False
        self._returning.discard(lane_id)
        self._strict.discard(lane_id)
        lane = self._known.get(lane_id)
        if lane is None:
            return False
        lane.fresh = True  # perhaps; the next claim shows it
        lane.served = self._fair_share.enter(lane_id, lane.served)
        return True

    # -- lanes for other workers

    def surplus(self) -> list[LaneId]:
        """Lanes with work beyond this worker's share, for other workers to dispatch."""
        own = [lane_id for lane_id in self._known if lane_id in self._own]
        # The share of all lanes is known once all were surveyed.
        if self.start != FIRST or len(own) <= self._share + SLACK:
            return []
        idle = [lane_id for lane_id in own if lane_id not in self._unbegun]
        return idle[: len(own) - self._share]

    def idle(self) -> list[LaneId]:
        """All lanes of this worker without an unbegun mail."""
        return [lane_id for lane_id in self._own if lane_id not in self._unbegun]

    def gave(self, lanes: Iterable[LaneId]) -> None:
        for lane_id in lanes:
            self._own.discard(lane_id)
            self._known.pop(lane_id, None)


def _decrement(counter: Counter[LaneId], lane_id: LaneId) -> None:
    counter[lane_id] -= 1
    if counter[lane_id] <= 0:
        del counter[lane_id]
