"""What one worker knows of the lanes: where mails wait, which it dispatches, what to claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set

from pillarbox.model.access import Order
from pillarbox.model.fairness import FairShare, LaneId, Quota, ReadyLane
from pillarbox.queue.lane_order import LaneOrder
from pillarbox.queue.records import SurveyedLane
from pillarbox.queue.survey_schedule import SURVEY_INTERVAL, SurveySchedule

# Lanes in one survey. A worker that dispatches so many has plenty to do; the next survey goes on
# where this one ended.
SURVEY_LIMIT = 5000
# A worker keeps this many lanes more than its share, so that lanes do not move back and forth with
# every mail.
SLACK = 1
FIRST = LaneId(0, -1)  # before all lanes


class LaneTracker:
    """The lanes as last surveyed, corrected by what was claimed since. Does no I/O."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._schedule = SurveySchedule(clock)
        self._fair_share = FairShare()
        self._known: dict[LaneId, ReadyLane] = {}  # with mails that this worker may claim
        self._own: set[LaneId] = set()  # lanes that this worker dispatches
        self._limited: set[LaneId] = set()  # lanes of tenants with rate limits
        self._held: dict[LaneId, float] = {}  # lanes not to claim from, until then
        self._working = 0  # lanes with work in the survey, of all dispatchers
        self._share = 0  # how many of them this worker should dispatch
        self._sooner: float | None = None  # when something will be due that is not due now
        self.order = LaneOrder()
        self.start = FIRST  # where the next survey begins

    # -- surveys

    def stale(self, hinted: bool = False) -> bool:
        """Whether it is time for a survey."""
        if hinted:
            self._schedule.hint()
        return self._schedule.is_due(self._known.values())

    def forget(self) -> None:
        """Dispatch no lane and know of no waiting mail; unbegun mails are not forgotten."""
        self._own.clear()
        self._known.clear()
        self._schedule.reset()
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
            workers = max(surveyed[0].workers, 1)
            self._share = -(-self._working // workers)
        free = [lane for lane in ordered if lane.free]
        free.sort(key=lambda lane: lane.priority)
        room = max(self._share - owned, 0)
        return [lane.id for lane in free[:room]]

    def surveyed(
        self,
        surveyed: Sequence[SurveyedLane],
        taken: Iterable[LaneId],
        asked_at: float,
    ) -> None:
        """Note a survey that was started at `asked_at`, and the lanes taken since."""
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
        self._fair_share.leave(lane for lane_id, lane in before.items() if lane_id not in known)
        self._sooner = self._soonest(surveyed)
        self._schedule.surveyed(len(surveyed), asked_at)

    def _see(self, lane: SurveyedLane, known: dict[LaneId, ReadyLane]) -> None:
        lane_id = lane.id
        if lane.limited:
            self._limited.add(lane_id)
        else:
            self._limited.discard(lane_id)
        if not lane.waits or lane.limited_for is not None:
            return
        if lane.order is not Order.PARALLEL and lane_id not in self._own:
            return
        before = self._known.get(lane_id)
        served = self._fair_share.enter(lane_id, before.served if before else -1)
        due = lane.due_in is not None and lane.due_in <= 0
        known[lane_id] = ReadyLane(lane_id, lane.order, lane.fresh, due, served)

    def _soonest(self, surveyed: Sequence[SurveyedLane]) -> float | None:
        """When a lane may have something for this worker that it does not have now."""
        now = self._clock()
        times = [until for until in self._held.values() if until > now]
        for lane in surveyed:
            if lane.other_lease_for is not None and lane.order is not Order.PARALLEL:
                times.append(now + lane.other_lease_for)
                continue
            waits = (lane.due_in, lane.limited_for)
            times += [now + wait for wait in waits if wait and wait > 0]
        return min(times, default=None)

    @property
    def next_due(self) -> float | None:
        """Seconds until a survey may find more than the last; None when no time is known."""
        if self._sooner is None:
            return None
        return self._sooner - self._clock()

    # -- claims

    def quotas(self, room: int, barred: Set[LaneId] = frozenset()) -> list[Quota]:
        """What to claim for so much room; nothing when no mail is known to wait."""
        if room <= 0:
            return []
        closed = self.order.closed() | barred
        if self._held:
            closed |= self._still_held()
        if not closed:
            return self._fair_share.divide(self._known.values(), room)
        open_lanes = [lane for lane_id, lane in self._known.items() if lane_id not in closed]
        return self._fair_share.divide(open_lanes, room)

    def claimed(self, quotas: Iterable[Quota], taken: Counter[LaneId], cut: bool) -> None:
        """Note the answer to a claim; with `cut`, too few bytes may have cut it short."""
        for quota in quotas:
            lane = quota.lane
            count = taken[lane.id]
            lane.served -= quota.limit - count
            if count:
                self.order.claimed(lane.id, count, lane.order is Order.STRICT)
            if count < quota.limit and not cut:
                self._emptied(quota, count)

    def _emptied(self, quota: Quota, count: int) -> None:
        """A lane gave less than its quota: no fresh mails are left, and deferred ones perhaps."""
        lane = quota.lane
        lane.fresh = False
        # Deferred mails may be left only if the quota's limit for them was reached.
        if quota.deferred_limit == quota.limit or quota.deferred_limit > count:
            lane.due = False
        if lane.id in self._limited:  # it may not be empty: a limit may have held the rest back
            self._look_at(self._clock() + SURVEY_INTERVAL)

    def hold(self, lane_id: LaneId, seconds: float) -> None:
        """Claim nothing from a lane for so long: the provider of its next mail has no room."""
        until = self._clock() + seconds
        self._held[lane_id] = until
        self._look_at(until)

    def _still_held(self) -> set[LaneId]:
        now = self._clock()
        self._held = {lane_id: until for lane_id, until in self._held.items() if until > now}
        return set(self._held)

    def _look_at(self, time: float) -> None:
        if self._sooner is None or time < self._sooner:
            self._sooner = time

    def ended(self, lane_id: LaneId, begun: bool) -> bool:
        """A claimed mail was settled or released; True if its lane waited for that."""
        if not self.order.ended(lane_id, begun):
            return False
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
        idle = [lane_id for lane_id in own if self.order.is_idle(lane_id)]
        return idle[: len(own) - self._share]

    def idle(self) -> list[LaneId]:
        """All lanes of this worker without an unbegun mail."""
        return [lane_id for lane_id in self._own if self.order.is_idle(lane_id)]

    def gave(self, lanes: Iterable[LaneId]) -> None:
        """Other workers may dispatch these lanes now."""
        for lane_id in lanes:
            self._own.discard(lane_id)
            self._known.pop(lane_id, None)
