"""What a worker makes of its surveys and claims: which lanes it takes and gives, and what it may begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from pillarbox.model.access import Order
from pillarbox.model.fairness import LaneId, Quota
from pillarbox.queue import lanes as module
from pillarbox.queue.lanes import FIRST, SLACK, LaneTracker
from pillarbox.queue.ready_queues.postgres import TRAILING_LOOKS
from pillarbox.queue.records import SurveyedLane
from pillarbox.queue.survey_schedule import (
    FEW_LANES,
    HINTED_INTERVAL,
    SURVEY_INTERVAL,
    SURVEY_SHARE,
    TRAILING_LOOK,
)
from pillarbox.queue.work_signal import WorkSignal

A, B, C = LaneId(1, 1), LaneId(2, 1), LaneId(3, 1)


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lanes(clock: Clock) -> LaneTracker:
    return LaneTracker(clock)


def seen(key: LaneId, **changes: Any) -> SurveyedLane:
    usual = {
        "order": Order.FIFO, "fresh": True, "due_in": None, "is_own": False, "other_lease_for": None, "limited_for": None,
        "limited": False, "workers": 1,
    }  # fmt: skip
    return SurveyedLane(*key, **(usual | changes))


def own(key: LaneId, **changes: Any) -> SurveyedLane:
    return seen(key, is_own=True, **changes)


MANY = [
    seen(LaneId(tenant, 1)) for tenant in range(1, FEW_LANES + 2)
]  # too many to be surveyed before every claim


def survey(lanes: LaneTracker, *rows: SurveyedLane) -> list[LaneId]:
    """What a queue does, if nobody else takes lanes at the same time; returns the lanes taken."""
    taken = lanes.to_take(rows)
    lanes.surveyed(rows, taken, lanes._clock())
    return taken


def claim(
    lanes: LaneTracker, room: int = 10, *, cut: bool = False, **taken: int
) -> Sequence[Quota]:
    """Ask for quotas, and answer with so many from the lanes of tenants `t1`, `t2` …"""
    quotas = lanes.quotas(room)
    lanes.claimed(
        quotas, Counter({LaneId(int(name[1:]), 1): count for name, count in taken.items()}), cut
    )
    return quotas


def asked(lanes: LaneTracker, room: int = 10) -> dict[LaneId, int]:
    return {quota.lane.id: quota.limit for quota in lanes.quotas(room)}


# -- which lanes to take


def test_a_lone_worker_takes_every_lane_with_work(lanes: LaneTracker) -> None:
    assert survey(
        lanes, seen(A), seen(B, fresh=False, due_in=-1.0), seen(C, fresh=False, due_in=5.0)
    ) == [A, B]
    assert set(asked(lanes)) == {A, B}


def test_of_many_workers_each_takes_its_share_and_the_highest_lanes_first(
    lanes: LaneTracker,
) -> None:
    keys = [LaneId(tenant, priority) for tenant in range(1, 4) for priority in (2, 1, 0)]
    assert survey(lanes, *(seen(key, workers=3) for key in keys)) == [
        LaneId(t, 0) for t in (1, 2, 3)
    ]


def test_lanes_that_others_dispatch_are_left_to_them(lanes: LaneTracker) -> None:
    assert survey(lanes, seen(A, other_lease_for=30.0, workers=2), seen(B, workers=2)) == [B]
    assert set(asked(lanes)) == {B}


def test_a_worker_without_room_has_no_share(lanes: LaneTracker) -> None:
    rows = [seen(LaneId(tenant, 1), workers=1) for tenant in range(1, 5)]
    assert len(survey(lanes, *rows)) == 4


def test_parallel_lanes_need_no_dispatcher(lanes: LaneTracker) -> None:
    assert (
        survey(
            lanes, seen(A, order=Order.PARALLEL, other_lease_for=9.0), seen(B, order=Order.PARALLEL)
        )
        == []
    )
    assert set(asked(lanes)) == {A, B}


def test_lanes_wanted_but_not_got_are_not_claimed_from(lanes: LaneTracker) -> None:
    rows = [seen(A), seen(B)]
    assert lanes.to_take(rows) == [A, B]
    lanes.surveyed(rows, [B], lanes._clock())  # another worker was faster
    assert set(asked(lanes)) == {B}


def test_a_lane_that_was_lost_is_not_claimed_from(lanes: LaneTracker) -> None:
    survey(lanes, seen(A))
    survey(lanes, seen(A, other_lease_for=9.0, workers=2))
    assert asked(lanes) == {}
    assert lanes.idle() == []


# -- which lanes to give


def test_a_worker_gives_what_is_beyond_its_share_with_some_slack(lanes: LaneTracker) -> None:
    keys = [LaneId(tenant, 1) for tenant in range(1, 9)]
    survey(lanes, *(seen(key) for key in keys))
    assert lanes.surplus() == []
    survey(lanes, *(own(key, workers=2) for key in keys))
    assert len(lanes.surplus()) == 4
    few = [*(own(key, workers=2) for key in keys[: 4 + SLACK]),
           *(seen(key, workers=2, other_lease_for=9.0) for key in keys[4 + SLACK :])]  # fmt: skip
    survey(lanes, *few)
    assert lanes.surplus() == []


def test_a_lane_is_kept_while_a_claimed_mail_has_not_begun(lanes: LaneTracker) -> None:
    keys = [LaneId(tenant, 1) for tenant in range(1, 5)]
    survey(lanes, *(own(key, workers=4) for key in keys))
    claim(lanes, 20, t1=2, t2=1)
    assert set(lanes.idle()) == {keys[2], keys[3]}
    assert set(lanes.surplus()) == {keys[2], keys[3]}
    lanes.order.begun(keys[0])
    assert keys[0] not in lanes.idle()
    lanes.order.begun(keys[0])
    assert keys[0] in lanes.idle()


def test_a_lane_that_gave_nothing_can_be_given_away(lanes: LaneTracker) -> None:
    survey(lanes, seen(A))
    claim(lanes, t1=0)
    assert lanes.idle() == [A]


def test_what_was_given_is_forgotten(lanes: LaneTracker) -> None:
    survey(lanes, seen(A), seen(B))
    lanes.gave([A])
    assert lanes.idle() == [B]
    assert set(asked(lanes)) == {B}


def test_a_new_lease_dispatches_nothing_but_remembers_what_is_under_way(lanes: LaneTracker) -> None:
    survey(lanes, seen(A))
    claim(lanes, t1=1)
    lanes.forget()
    assert lanes.stale()
    assert lanes.idle() == []
    survey(lanes, seen(A))
    assert lanes.idle() == []  # the mail claimed under the lease before may still come back
    lanes.ended(A, begun=False)
    assert lanes.idle() == [A]


# -- what is left after a claim


def test_a_lane_that_gave_all_it_was_asked_for_may_have_more(lanes: LaneTracker) -> None:
    survey(lanes, seen(A), seen(B))
    claim(lanes, 10, t1=5, t2=3)
    assert set(asked(lanes)) == {A}


def test_a_claim_cut_short_says_nothing_of_what_is_left(lanes: LaneTracker) -> None:
    survey(lanes, seen(A))
    claim(lanes, cut=True, t1=1)
    assert set(asked(lanes)) == {A}


def test_deferred_mails_are_not_forgotten_when_the_fresh_ones_are_gone(lanes: LaneTracker) -> None:
    survey(lanes, seen(A, due_in=-1.0))
    [quota] = claim(lanes, 10, t1=6)  # one fresh, and all five deferred ones that it might be
    assert (quota.limit, quota.deferred_limit) == (10, 5)
    [quota] = lanes.quotas(10)
    assert (quota.lane.fresh, quota.limit, quota.deferred_limit) == (False, 10, 10)


def test_without_deferred_mails_left_a_lane_is_empty(lanes: LaneTracker) -> None:
    survey(lanes, seen(A, due_in=-1.0))
    claim(lanes, 10, t1=4)
    assert asked(lanes) == {}


def test_a_single_place_for_fresh_mails_leaves_the_deferred_ones_known(lanes: LaneTracker) -> None:
    survey(lanes, seen(A, due_in=-1.0))
    [quota] = claim(lanes, 1, t1=0)
    assert quota.deferred_limit in (0, 1)
    if quota.deferred_limit == 0:
        assert asked(lanes, 1) == {A: 1}


def test_what_was_asked_for_and_not_there_does_not_count_as_a_turn(lanes: LaneTracker) -> None:
    keys = [LaneId(tenant, 1) for tenant in range(1, 21)]
    survey(lanes, *(seen(key) for key in keys))
    claim(lanes, 200, cut=True, t1=1, **{f"t{n}": 10 for n in range(2, 21)})
    assert A in asked(lanes, 4)


# -- on the way back


def test_nothing_is_claimed_or_begun_before_what_comes_back(lanes: LaneTracker) -> None:
    survey(lanes, seen(A), seen(B))
    claim(lanes, 10, t1=5, t2=5)
    lanes.order.returning(A)
    assert not lanes.order.may_begin(A)
    assert lanes.order.may_begin(B)
    assert set(asked(lanes)) == {B}
    assert A not in lanes.idle()
    for _ in range(4):
        assert not lanes.ended(A, begun=False)
        assert not lanes.order.may_begin(A)  # the last four, too: they come after the first
    assert lanes.ended(A, begun=False)
    assert lanes.order.may_begin(A)
    assert set(asked(lanes)) == {A, B}


def test_what_had_begun_does_not_count_on_the_way_back(lanes: LaneTracker) -> None:
    survey(lanes, seen(A))
    claim(lanes, 10, t1=2)
    lanes.order.begun(A)
    lanes.order.returning(A)
    assert not lanes.ended(A, begun=True)
    assert not lanes.order.may_begin(A)
    lanes.ended(A, begun=False)
    assert lanes.order.may_begin(A)


# -- strict lanes


def test_a_strict_lane_waits_for_its_mail_and_then_goes_on(lanes: LaneTracker) -> None:
    survey(lanes, seen(A, order=Order.STRICT), seen(B, order=Order.STRICT))
    claim(lanes, 10, t1=1, t2=1)
    lanes.order.begun(A)
    assert asked(lanes) == {}
    assert lanes.idle() == []  # whoever took it could not know when to go on
    survey(lanes, own(A, order=Order.STRICT), own(B, order=Order.STRICT))
    assert asked(lanes) == {}
    assert lanes.ended(A, begun=True)
    assert asked(lanes) == {A: 1}
    assert lanes.idle() == [A]


def test_a_strict_lane_with_nothing_more_wakes_nobody(lanes: LaneTracker) -> None:
    survey(lanes, seen(A, order=Order.STRICT))
    claim(lanes, 10, t1=1)
    lanes.order.begun(A)
    survey(lanes)
    assert not lanes.ended(A, begun=True)


# -- limits and times


def test_a_limited_lane_rests_until_its_time(lanes: LaneTracker, clock: Clock) -> None:
    survey(lanes, seen(A, limited=True, limited_for=0.7), seen(B))
    assert set(asked(lanes)) == {B}
    assert lanes.next_due == pytest.approx(0.7)
    clock.now += 0.5
    assert lanes.next_due == pytest.approx(0.2)


def test_a_limited_lane_that_gave_little_is_looked_at_again_soon(lanes: LaneTracker) -> None:
    survey(lanes, seen(A, limited=True))
    assert lanes.next_due is None
    claim(lanes, 10, t1=3)
    assert lanes.next_due == pytest.approx(SURVEY_INTERVAL)
    survey(lanes, own(A))
    claim(lanes, 10, t1=3)
    assert lanes.next_due is None  # without a limit it is just empty


def test_a_held_lane_is_not_claimed_from_until_its_time(lanes: LaneTracker, clock: Clock) -> None:
    survey(lanes, seen(A), seen(B))
    lanes.hold(A, 0.5)
    assert set(asked(lanes)) == {B}
    assert lanes.next_due == pytest.approx(0.5)
    survey(lanes, own(A), own(B))
    assert set(asked(lanes)) == {B}
    assert lanes.next_due == pytest.approx(0.5)
    clock.now += 0.5
    assert set(asked(lanes)) == {A, B}


def test_few_lanes_are_surveyed_before_every_claim(lanes: LaneTracker) -> None:
    """So the first claim after a commit knows of the new mail."""
    survey(lanes, *MANY[1:])
    assert lanes.stale()
    claim(lanes, 1, t2=1)
    assert lanes.stale()
    survey(lanes, *MANY)
    assert not lanes.stale()


def test_nothing_is_surveyed_while_nothing_is_known_to_wait(lanes: LaneTracker) -> None:
    survey(lanes, seen(A))
    claim(lanes, t1=1)  # it gave less than was asked for
    assert not lanes.stale()


def test_after_a_hint_there_is_one_more_look(lanes: LaneTracker, clock: Clock) -> None:
    survey(lanes, *MANY)
    clock.now += HINTED_INTERVAL
    assert not lanes.stale()
    assert lanes.stale(hinted=True)
    survey(lanes, *MANY)
    assert not lanes.stale()
    clock.now += TRAILING_LOOK  # what came just behind the hint made none of its own
    assert lanes.stale()
    survey(lanes, *MANY)
    clock.now += TRAILING_LOOK
    assert not lanes.stale()


def test_the_next_due_is_the_soonest_of_all(lanes: LaneTracker) -> None:
    survey(
        lanes,
        seen(A, fresh=False, due_in=9.0),
        seen(B, other_lease_for=4.0),
        seen(C, limited=True, limited_for=6.0),
    )
    assert lanes.next_due == pytest.approx(4.0)
    survey(
        lanes, seen(A, fresh=False, due_in=9.0), seen(B, order=Order.PARALLEL, other_lease_for=4.0)
    )
    assert lanes.next_due == pytest.approx(9.0)
    survey(lanes)
    assert lanes.next_due is None


def test_a_survey_gets_a_small_share_of_the_time(lanes: LaneTracker, clock: Clock) -> None:
    survey(lanes, *MANY)
    assert not lanes.stale()
    clock.now += SURVEY_INTERVAL
    assert lanes.stale()
    rows = [own(LaneId(tenant, 1)) for tenant in range(4000)]
    asked_at = clock.now
    clock.now += 0.1  # it took long
    lanes.surveyed(rows, lanes.to_take(rows), asked_at)
    clock.now += 0.1 / SURVEY_SHARE - 0.001
    assert not lanes.stale()
    clock.now += 0.001
    assert lanes.stale()


def test_a_short_survey_that_waited_for_others_comes_again_soon(
    lanes: LaneTracker, clock: Clock
) -> None:
    rows, asked_at = [own(A)], clock.now
    clock.now += 0.1
    lanes.surveyed(rows, lanes.to_take(rows), asked_at)
    clock.now += SURVEY_INTERVAL
    assert lanes.stale()


# -- more lanes than a survey shows


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> int:
    """Surveys of four lanes."""
    monkeypatch.setattr(module, "SURVEY_LIMIT", 4)
    return 4


def pages(lanes: LaneTracker, rows: Sequence[SurveyedLane], limit: int) -> list[LaneId]:
    """Survey until all were seen; returns the lanes taken."""
    taken = []
    while True:
        page = [row for row in rows if row.id > lanes.start][:limit]
        taken += survey(lanes, *page)
        if lanes.start == FIRST:
            return taken


def test_surveys_go_on_where_the_last_one_ended(lanes: LaneTracker, short: int) -> None:
    rows = [seen(LaneId(tenant, 1)) for tenant in range(1, 11)]
    survey(lanes, *rows[:short])
    assert lanes.start == rows[short - 1].id
    survey(lanes, *rows[short : 2 * short])
    assert lanes.start == rows[2 * short - 1].id
    survey(lanes, *rows[2 * short :])
    assert lanes.start == FIRST
    assert set(asked(lanes, 100)) == {row.id for row in rows}


def test_a_full_last_page_is_followed_by_an_empty_one(lanes: LaneTracker, short: int) -> None:
    rows = [seen(LaneId(tenant, 1)) for tenant in range(1, 9)]
    assert pages(lanes, rows, short) == [row.id for row in rows]
    assert set(asked(lanes, 100)) == {row.id for row in rows}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_share_is_that_of_all_pages(lanes: LaneTracker, short: int, workers: int) -> None:
    """A short last page must not make a worker give away what it took from the others."""
    rows = [seen(LaneId(tenant, 1), workers=workers) for tenant in range(1, 18)]
    taken = set(pages(lanes, rows, short))
    assert abs(len(taken) - 17 / workers) <= 1 + SLACK
    again = [own(row.id, workers=workers) if row.id in taken else row for row in rows]
    assert len(pages(lanes, again, short)) <= 1
    assert lanes.surplus() == []


# -- the wake-up that follows


async def test_going_on_asks_for_no_look_but_swallows_none() -> None:
    signal = WorkSignal(TRAILING_LOOKS)
    signal.resume()
    assert await signal.wait(60, None) == "settled"
    signal.resume()
    signal.wake()
    assert await signal.wait(60, None) == "notify"
    for _ in range(5):
        signal.resume()
        assert await signal.wait(60, None) == "settled"
    assert [await signal.wait(60, None) for _ in TRAILING_LOOKS] == ["trailing"] * len(
        TRAILING_LOOKS
    )
    signal.wake()
    signal.resume()
    assert await signal.wait(60, None) == "notify"
