"""Fair queueing: how a worker's room is divided between priorities, and between tenants. Pure.

Higher priorities go first, within and across tenants, but while they could fill all of the room the
lower ones still get a little. Lanes of one priority take turns, the least served first, so that a
tenant with a million mails and one with a single mail wait for each other no longer than a turn.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from pillarbox.model.access import Order

# Shares of the room while higher priorities could fill it: a normal mail in five, a bulk mail in
# twenty. Enough to progress, too little to delay urgent mails noticeably.
FLOORS = {0: 0.0, 1: 0.2, 2: 0.05}
# Mails that a lane gets in its turn while more lanes wait than there is room for; of a large room
# an eighth, up to ten. A statement then touches fewer lanes: in single runs mails of a thousand
# tenants left half as fast again.
QUANTUM, LARGE_QUANTUM = 4, 10
BULK = 2
_SERVED = attrgetter("served")
T = TypeVar("T")


class LaneId(NamedTuple):
    """Names a lane: a tenant's queue at one priority."""

    tenant: int
    priority: int  # 0 urgent, 1 normal, 2 bulk


@dataclass(slots=True)
class ReadyLane:
    """What a dispatcher knows of a lane with waiting mails."""

    id: LaneId
    order: Order
    fresh: bool  # mails that were never tried
    due: bool  # deferred mails whose time has come
    served: int = 0  # mails it has had, counted from where it entered


class Quota(NamedTuple):
    """How many mails to claim from a lane, and how many of them may be deferred ones."""

    lane: ReadyLane
    limit: int
    deferred_limit: int


@dataclass(slots=True)
class FairShare:
    """Remembers how much each lane was served, and what lower priorities are owed."""

    _owed: dict[int, float] = field(default_factory=dict)
    # By priority: what the least served waiting lane has had.
    _level: dict[int, int] = field(default_factory=dict)
    # What lanes have had in which no mail waits any more.
    _left: dict[LaneId, int] = field(default_factory=dict)

    def enter(self, lane_id: LaneId, served: int = -1) -> int:
        """Where a lane with newly waiting mails starts to count.

        A lane cannot save up turns; a lane that is new goes first.
        """
        level = self._level.get(lane_id.priority, 0)
        return max(served, self._left.pop(lane_id, -1), level - 1)

    def leave(self, lanes: Iterable[ReadyLane]) -> None:
        """Remember lanes that were emptied, so that they do not come back as new ones too soon."""
        for lane in lanes:
            self._left[lane.id] = lane.served
        level = self._level
        self._left = {
            lane_id: served
            for lane_id, served in self._left.items()
            if served >= level.get(lane_id.priority, 0)
        }

    def divide(self, lanes: Iterable[ReadyLane], room: int) -> list[Quota]:
        """Divide the room between lanes with waiting mails; the quotas add up to at most `room`."""
        waiting: dict[int, list[ReadyLane]] = {}
        for lane in lanes:
            if lane.fresh or lane.due:
                waiting.setdefault(lane.id.priority, []).append(lane)
        quotas: list[Quota] = []
        for priority, share in self._shares(sorted(waiting), room):
            by_served = sorted(waiting[priority], key=_SERVED)
            self._level[priority] = max(self._level.get(priority, 0), by_served[0].served)
            quotas += _take_turns(by_served, share)
        return quotas

    def _shares(self, priorities: Sequence[int], room: int) -> list[tuple[int, int]]:
        """The room of each priority: lower ones get what they are owed, the highest the rest."""
        if not priorities:
            self._owed = {}
            return []
        highest, *lower = priorities
        owed = {
            priority: self._owed.get(priority, 0.0) + FLOORS[priority] * room for priority in lower
        }
        shares = []
        for priority in lower:
            share = min(int(owed[priority]), room)
            owed[priority] -= share
            room -= share
            shares.append((priority, share))
        self._owed = owed
        return [(highest, room), *shares]


def _take_turns(lanes: Sequence[ReadyLane], room: int) -> list[Quota]:
    """Equal quotas, or a quantum each while room is short; the others are first next time."""
    equal, remainder = divmod(room, len(lanes))
    quantum = min(max(room // 8, QUANTUM), LARGE_QUANTUM)
    quotas: list[Quota] = []
    for turn, lane in enumerate(lanes):
        if room <= 0:
            break
        fair = equal + 1 if turn < remainder else equal
        quota = _quota(lane, min(room, max(fair, quantum)))
        room -= quota.limit
        lane.served += quota.limit
        quotas.append(quota)
    return quotas


def _quota(lane: ReadyLane, limit: int) -> Quota:
    if lane.order is Order.STRICT:  # a mail that is due again comes before all others
        return Quota(lane, 1, 1)
    if not lane.due:
        return Quota(lane, limit, 0)
    if not lane.fresh:
        return Quota(lane, limit, limit)
    # Neither new mails nor retries starve; a single place goes to each kind in turn.
    deferred_limit = limit // 2 if limit > 1 else lane.served % 2
    return Quota(lane, limit, deferred_limit)


class RoundRobinQueue(Generic[T]):
    """What waits for one provider: each lane in its order, the lanes in turn.

    A lane that was empty comes first, so that another tenant's single mail does not wait behind a
    whole window; a bulk lane waits for its turn.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[LaneId, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, lane_id: LaneId, item: T) -> None:
        lane = self._lanes.get(lane_id)
        if lane is None:
            lane = self._lanes[lane_id] = deque()
            if lane_id.priority != BULK:
                self._lanes.move_to_end(lane_id, last=False)
        lane.append(item)
        self._count += 1

    def take(self) -> T:
        """The next item; the queue must not be empty."""
        lane_id, lane = next(iter(self._lanes.items()))
        item = lane.popleft()
        if lane:
            self._lanes.move_to_end(lane_id)
        else:
            del self._lanes[lane_id]
        self._count -= 1
        return item
