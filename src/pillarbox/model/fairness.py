"""Who goes next: how a worker's free places are divided between priorities, and between the tenants of one. Pure.

Higher lanes go first, within and across tenants, but while they fill every place the lower ones
still get a little. Lanes of one priority take turns, the least served first, so that a tenant with
a million mails and one with a single mail wait for each other no longer than a turn takes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from pillarbox.model.access import Order

# Of the places, while higher lanes could take them all: a normal mail in five, a bulk mail in
# twenty. Enough to move, too little to be felt by what is urgent.
FLOORS = {0: 0.0, 1: 0.2, 2: 0.05}
# Mails that a lane gets in its turn where more lanes wait than there are places; of many places an
# eighth, up to ten. A statement then touches fewer lanes: in single runs mails of a thousand
# tenants left half as fast again.
QUANTUM, LARGE_QUANTUM = 4, 10
_SERVED = attrgetter("served")
BULK = 2
T = TypeVar("T")


class LaneId(NamedTuple):
    """Names a lane."""

    tenant: int
    priority: int  # 0 urgent, 1 normal, 2 bulk


@dataclass(slots=True)
class ReadyLane:
    """What a dispatcher knows of a lane in which something waits."""

    id: LaneId
    order: Order
    fresh: bool  # mails that were never tried
    due: bool  # deferred mails whose time has come
    served: int = 0  # mails it has had, counted from where it entered


class Quota(NamedTuple):
    """How many mails to take from a lane, and how many of them may be deferred ones."""

    lane: ReadyLane
    limit: int
    deferred_limit: int


@dataclass(slots=True)
class FairShare:
    """Remembers who had how much, and what share the lower lanes are owed."""

    _owed: dict[int, float] = field(default_factory=dict)
    _level: dict[int, int] = field(
        default_factory=dict
    )  # by priority: what the least served that waits has had
    _left: dict[LaneId, int] = field(
        default_factory=dict
    )  # what lanes have had in which nothing waits any more

    def enter(self, key: LaneId, served: int = -1) -> int:
        """Where a lane begins to count, in which something waits anew: nobody saves up turns, newcomers go first."""
        return max(served, self._left.pop(key, -1), self._level.get(key.priority, 0) - 1)

    def leave(self, lanes: Iterable[ReadyLane]) -> None:
        """Remember lanes in which nothing waits any more, lest they come back as newcomers before others had a turn."""
        left = ((lane.id, lane.served) for lane in lanes)
        level = self._level
        self._left = {
            key: had
            for key, had in (*self._left.items(), *left)
            if had >= level.get(key.priority, 0)
        }

    def divide(self, lanes: Iterable[ReadyLane], room: int) -> list[Quota]:
        """Portions of `room` places for the lanes; together at most `room`."""
        waiting: dict[int, list[ReadyLane]] = {}
        for lane in lanes:
            if lane.fresh or lane.due:
                waiting.setdefault(lane.id.priority, []).append(lane)
        quotas: list[Quota] = []
        for priority, places in self._places(sorted(waiting), room):
            in_order = sorted(waiting[priority], key=_SERVED)
            self._level[priority] = max(self._level.get(priority, 0), in_order[0].served)
            quotas += _take_turns(in_order, places)
        return quotas

    def _places(self, priorities: Sequence[int], room: int) -> list[tuple[int, int]]:
        """How many places each priority gets: the lower ones what they are owed, the highest all the rest."""
        self._owed = {one: self._owed.get(one, 0.0) + FLOORS[one] * room for one in priorities[1:]}
        given = []
        for one in priorities[1:]:
            places = min(int(self._owed[one]), room)
            self._owed[one] -= places
            room -= places
            given.append((one, places))
        return [(priorities[0], room), *given] if priorities else []


def _take_turns(lanes: Sequence[ReadyLane], places: int) -> list[Quota]:
    """As equal as whole mails allow, or a quantum each where places are short; who gets less is first next time."""
    each, more = divmod(places, len(lanes))
    quantum = min(max(places // 8, QUANTUM), LARGE_QUANTUM)
    quotas: list[Quota] = []
    for place, lane in enumerate(lanes):
        if places <= 0:
            break
        quota = _quota(lane, min(places, max(each + (place < more), quantum)))
        places -= quota.limit
        lane.served += quota.limit
        quotas.append(quota)
    return quotas


def _quota(lane: ReadyLane, most: int) -> Quota:
    if lane.order is Order.STRICT:  # what is due again comes before all others
        return Quota(lane, 1, 1)
    if not (lane.fresh and lane.due):
        return Quota(lane, most, most if lane.due else 0)
    # Neither new mails nor retries starve the other; a single place goes to each in turn.
    return Quota(lane, most, most // 2 if most > 1 else lane.served % 2)


class RoundRobinQueue(Generic[T]):
    """What waits for one provider: each lane in its order, the lanes in turn. One that was empty comes first, so that
    another tenant's single mail does not wait behind a whole window; but bulk waits for its turn.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[LaneId, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: LaneId, one: T) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
            if key.priority != BULK:
                self._lanes.move_to_end(key, last=False)
        lane.append(one)
        self._count += 1

    def take(self) -> T:
        """The next; there must be one."""
        key, lane = next(iter(self._lanes.items()))
        one = lane.popleft()
        if lane:
            self._lanes.move_to_end(key)
        else:
            del self._lanes[key]
        self._count -= 1
        return one
