"""How free places are divided: never too many, none wasted, nobody forgotten, whatever waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.model.access import Order
from pillarbox.model.fairness import (
    FLOORS,
    LARGE_QUANTUM,
    FairShare,
    LaneId,
    Quota,
    ReadyLane,
    RoundRobinQueue,
)

ROOMS = st.integers(1, 120)
KEYS = st.builds(LaneId, st.integers(1, 40), st.integers(0, 2))
LANES = st.lists(
    st.builds(ReadyLane, KEYS, st.sampled_from(Order), st.booleans(), st.booleans()),
    max_size=60,
    unique_by=lambda one: one.id,
)
WAITING = LANES.map(lambda lanes: [lane for lane in lanes if lane.fresh or lane.due])


def lane(
    tenant: int,
    priority: int = 1,
    order: Order = Order.FIFO,
    *,
    fresh: bool = True,
    due: bool = False,
) -> ReadyLane:
    return ReadyLane(LaneId(tenant, priority), order, fresh, due)


def count(quotas: Sequence[Quota]) -> Counter[LaneId]:
    got: Counter[LaneId] = Counter()
    for quota in quotas:
        got[quota.lane.id] += quota.limit
    return got


def by_priority(quotas: Sequence[Quota]) -> Counter[int]:
    got: Counter[int] = Counter()
    for quota in quotas:
        got[quota.lane.id.priority] += quota.limit
    return got


def in_turns(
    fair_share: FairShare, lanes: Sequence[ReadyLane], rooms: Sequence[int]
) -> Counter[LaneId]:
    """What lanes that are never exhausted get together."""
    got: Counter[LaneId] = Counter()
    for room in rooms:
        got += count(fair_share.divide(lanes, room))
    return got


@given(LANES, st.lists(st.integers(0, 120), max_size=8))
def test_never_more_than_there_is_room_for(lanes: list[ReadyLane], rooms: list[int]) -> None:
    fair_share = FairShare()
    for room in rooms:
        quotas = fair_share.divide(lanes, room)
        assert sum(quota.limit for quota in quotas) <= room
        assert all(quota.limit > 0 for quota in quotas)


@given(LANES, ROOMS)
def test_only_lanes_in_which_something_waits_get_a_portion_and_one_each(
    lanes: list[ReadyLane], room: int
) -> None:
    quotas = FairShare().divide(lanes, room)
    assert all(quota.lane.fresh or quota.lane.due for quota in quotas)
    assert len({quota.lane.id for quota in quotas}) == len(quotas)


@given(WAITING, ROOMS)
def test_all_places_are_used(lanes: list[ReadyLane], room: int) -> None:
    """Unless a strict lane, which takes one, was offered more."""
    quotas = FairShare().divide(lanes, room)
    used = sum(quota.limit for quota in quotas)
    if lanes and all(lane.order is not Order.STRICT for lane in lanes):
        assert used == room
    assert all(quota.limit == 1 for quota in quotas if quota.lane.order is Order.STRICT)


@given(st.integers(1, 30), st.lists(ROOMS, min_size=1, max_size=30))
def test_equal_tenants_differ_by_at_most_a_quantum(tenants: int, rooms: list[int]) -> None:
    """However many places there are each time: nobody is always the one who gets the rest."""
    lanes = [lane(tenant) for tenant in range(tenants)]
    fair_share, got = FairShare(), Counter[LaneId]()
    for room in rooms:
        got += count(fair_share.divide(lanes, room))
        amounts = [got[one.id] for one in lanes]
        assert max(amounts) - min(amounts) <= LARGE_QUANTUM


@given(st.integers(1, 60), st.lists(ROOMS, min_size=1, max_size=30))
def test_a_turn_of_all_passes_no_tenant_by(tenants: int, rooms: list[int]) -> None:
    """Once a quantum for everybody was offered, everybody had something."""
    lanes = [lane(tenant) for tenant in range(tenants)]
    got = in_turns(FairShare(), lanes, rooms)
    assert len(got) == tenants or sum(rooms) < tenants * LARGE_QUANTUM


@given(WAITING, st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_nobody_starves(lanes: list[ReadyLane], rooms: list[int]) -> None:
    """Whatever waits is served within a bounded number of places, even the last of the lowest lane."""
    fair_share, served = FairShare(), set[LaneId]()
    # Each lane needs a turn of all others at its priority, and its priority's share is a twentieth
    # at least.
    enough = (len(lanes) + 1) * LARGE_QUANTUM * round(1 / FLOORS[2])
    offered = 0
    while offered < enough + 40:
        for room in rooms:
            served.update(count(fair_share.divide(lanes, room)))
            offered += room
    assert served == {one.id for one in lanes}


@pytest.mark.parametrize("room", [1, 2, 3, 7, 20, 25, 100])
def test_lower_lanes_get_their_floors_while_higher_ones_are_never_exhausted(room: int) -> None:
    lanes = [lane(1, 0), lane(2, 1), lane(3, 2)]
    fair_share, got = FairShare(), Counter[int]()
    for _ in range(2000 // room):
        got += by_priority(fair_share.divide(lanes, room))
    total = got.total()
    assert got[1] == pytest.approx(FLOORS[1] * total, abs=2)
    assert got[2] == pytest.approx(FLOORS[2] * total, abs=2)
    assert got[0] == total - got[1] - got[2]


@given(st.lists(st.integers(1, 100), min_size=50, max_size=50))
def test_floors_hold_for_any_rooms(rooms: list[int]) -> None:
    lanes = [lane(1, 0), lane(2, 1), lane(3, 2)]
    fair_share, got = FairShare(), Counter[int]()
    for room in rooms:
        got += by_priority(fair_share.divide(lanes, room))
    assert got[1] >= FLOORS[1] * sum(rooms) - 2
    assert got[2] >= FLOORS[2] * sum(rooms) - 2
    assert got[0] >= (1 - FLOORS[1] - FLOORS[2]) * sum(rooms) - 2


def test_with_nothing_above_it_the_lowest_lane_gets_everything() -> None:
    assert by_priority(FairShare().divide([lane(1, 2)], 50)) == {2: 50}


def test_higher_lanes_come_first() -> None:
    lanes = [lane(1, 2), lane(2, 0), lane(3, 1)]
    assert [quota.lane.id.priority for quota in FairShare().divide(lanes, 100)] == [0, 1, 2]


def test_a_lane_that_waits_again_saved_nothing_up() -> None:
    """A tenant that was silent for long gets no more than the others once it has work."""
    fair_share, busy = FairShare(), [lane(tenant) for tenant in range(20)]
    in_turns(fair_share, busy, [25] * 200)
    late = ReadyLane(LaneId(99, 1), Order.FIFO, True, False, fair_share.enter(LaneId(99, 1)))
    got = in_turns(fair_share, [*busy, late], [25] * 84)
    assert got[late.id] - min(got[one.id] for one in busy) <= 2 * LARGE_QUANTUM


def test_a_newcomer_goes_first() -> None:
    fair_share, busy = FairShare(), [lane(tenant) for tenant in range(100)]
    in_turns(fair_share, busy, [25] * 7)
    late = ReadyLane(LaneId(999, 1), Order.FIFO, True, False, fair_share.enter(LaneId(999, 1)))
    assert late.id in count(fair_share.divide([*busy, late], 25))


def test_lanes_that_come_and_go_do_not_starve_one_that_stays() -> None:
    """More lanes than there are places, each with one mail, and again as soon as that is gone."""
    fair_share, waits = FairShare(), lane(1000)
    fair_share.divide([waits], 4)
    guests = [lane(tenant) for tenant in range(50)]
    rounds = 0
    while waits not in [quota.lane for quota in fair_share.divide([*guests, waits], 8)]:
        # All are emptied, forgotten, and back.
        fair_share.leave(guests)
        guests = [
            ReadyLane(one.id, one.order, True, False, fair_share.enter(one.id)) for one in guests
        ]
        rounds += 1
        assert (
            rounds <= 2 * 50 * LARGE_QUANTUM // 8
        )  # two turns of all: the one it has just had, and the next


def test_what_left_long_ago_is_forgotten() -> None:
    fair_share, stays = FairShare(), lane(1000)
    fair_share.leave(
        [one for one in (lane(tenant) for tenant in range(100)) if fair_share.divide([one], 1)]
    )
    in_turns(fair_share, [stays], [100] * 3)
    fair_share.leave([])
    assert fair_share._left == {}


@given(st.integers(1, 100))
def test_fresh_and_deferred_mails_share(most: int) -> None:
    [quota] = FairShare().divide([lane(1, due=True)], most)
    assert quota.limit == most
    assert quota.deferred_limit == most // 2 or most == 1


@pytest.mark.parametrize("tenants", [1, 2, 3, 4])
def test_single_places_go_to_fresh_and_deferred_in_turn(tenants: int) -> None:
    """In every lane, not to the fresh of one and the deferred of another."""
    lanes = [lane(tenant, due=True) for tenant in range(tenants)]
    fair_share = FairShare()
    deferred: dict[LaneId, list[int]] = {one.id: [] for one in lanes}
    for _ in range(10 * tenants):
        for quota in fair_share.divide(lanes, 1):
            deferred[quota.lane.id].append(quota.deferred_limit)
    assert all(abs(sum(some) - len(some) / 2) <= 1 for some in deferred.values())


def test_only_fresh_or_only_deferred_mails_get_all() -> None:
    assert [quota[1:] for quota in FairShare().divide([lane(1)], 10)] == [(10, 0)]
    assert [quota[1:] for quota in FairShare().divide([lane(1, fresh=False, due=True)], 10)] == [
        (10, 10)
    ]


def test_a_strict_lane_may_always_take_what_is_due_again() -> None:
    """It blocks the lane: nothing else can be taken before it."""
    lanes = [lane(tenant, order=Order.STRICT, due=True) for tenant in range(3)]
    fair_share = FairShare()
    for _ in range(4):
        assert all(quota[1:] == (1, 1) for quota in fair_share.divide(lanes, 10))


@given(WAITING, ROOMS)
def test_the_order_within_a_priority_is_the_least_served_first(
    lanes: list[ReadyLane], room: int
) -> None:
    had = {one.id: one.served for one in lanes}
    quotas = [quota for quota in FairShare().divide(lanes, room) if quota.lane.id.priority == 1]
    order = [had[quota.lane.id] for quota in quotas]
    assert order == sorted(order)


# -- what waits for one provider


@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(1, 4), st.integers(0, 2)))))
def test_rounds_lose_nothing_and_keep_the_order_of_each_lane(
    steps: list[tuple[int, int] | None],
) -> None:
    rounds, given_in, taken = (
        RoundRobinQueue[tuple[LaneId, int]](),
        dict[LaneId, list[int]](),
        dict[LaneId, list[int]](),
    )
    for number, step in enumerate(steps):
        if step is not None:
            key = LaneId(*step)
            rounds.add(key, (key, number))
            given_in.setdefault(key, []).append(number)
        elif len(rounds):
            key, one = rounds.take()
            taken.setdefault(key, []).append(one)
    while len(rounds):
        key, one = rounds.take()
        taken.setdefault(key, []).append(one)
    assert taken == given_in


def test_lanes_take_turns_and_one_that_was_empty_comes_first() -> None:
    rounds = RoundRobinQueue[str]()
    for number in range(3):
        rounds.add(LaneId(1, 1), f"crowd {number}")
    rounds.add(LaneId(2, 1), "single")
    rounds.add(LaneId(3, 2), "bulk")
    assert [rounds.take() for _ in range(5)] == ["single", "crowd 0", "bulk", "crowd 1", "crowd 2"]
