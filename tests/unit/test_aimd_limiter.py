"""How many mails at the same time: never none, never too many, less when asked, slowly more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.route.aimd_limiter import FIRST_HOLD, LONGEST_ASKED, LONGEST_HOLD, PAUSE, AimdLimiter

MOST = st.integers(1, 500)
ASKED = st.one_of(st.none(), st.floats(0, 100_000))
STEPS = st.lists(st.tuples(st.floats(0, 100), st.booleans(), ASKED), max_size=60)


@given(MOST, STEPS)
def test_never_below_one_nor_above_most(
    most: int, steps: list[tuple[float, bool, float | None]]
) -> None:
    pace, now = AimdLimiter(most), 100.0
    for later, well, asked in steps:
        now += later
        pace.went_well() if well else pace.slow_down(now, asked)
        assert 1.0 <= pace.limit <= most
        assert (
            pace.places(pace.held_until + now) >= 1
        )  # somebody may always go, once the pause is over
        assert pace.places(pace.held_until + now) <= most


@given(MOST, st.integers(1, 5))
def test_some_wait_behind_those_that_are_sent_until_it_is_asked_to_slow_down(
    most: int, ahead: int
) -> None:
    pace = AimdLimiter(most)
    assert pace.places(1.0, ahead) == most * ahead
    pace.slow_down(1.0, 0.0)
    assert pace.places(2.0, ahead) == max(1, most // 2) * (ahead if most == 1 else 1)


def test_a_limit_of_nothing_is_one() -> None:
    assert AimdLimiter(0).places(1.0) == 1


@given(st.integers(2, 500))
def test_too_many_halves(most: int) -> None:
    pace = AimdLimiter(most)
    assert pace.slow_down(10.0, None)
    assert pace.limit == most / 2


def test_answers_to_what_was_sent_before_do_not_slow_down_again() -> None:
    """Fifty mails were in flight, and each is told the same: that is one piece of news."""
    pace = AimdLimiter(64)
    assert pace.slow_down(10.0, 0)
    assert not any(pace.slow_down(10.0 + n / 50, 0) for n in range(50))
    assert pace.limit == 32
    assert pace.slow_down(10.0 + PAUSE, 0)
    assert pace.limit == 16


def test_nor_do_they_during_a_pause_that_was_asked_for() -> None:
    pace = AimdLimiter(64)
    assert pace.slow_down(10.0, 30)
    assert not pace.slow_down(15.0, 30)
    assert (pace.limit, pace.held_until) == (32, 45.0)  # it is honoured, all the same
    assert pace.slow_down(45.0, None)
    assert pace.limit == 16


@given(MOST, st.floats(0, 10_000), st.floats(0, 100_000))
def test_retry_after_is_honoured_up_to_an_hour(most: int, now: float, asked: float) -> None:
    pace = AimdLimiter(most)
    pace.slow_down(now, asked)
    until = now + min(asked, LONGEST_ASKED)
    assert pace.held_until == max(until, 0.0)
    assert pace.places(until) >= 1
    assert until == now or pace.places(now) == 0


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=20))
def test_a_shorter_pause_does_not_end_a_longer_one(asked: list[float]) -> None:
    pace = AimdLimiter(10)
    for one in asked:
        pace.slow_down(100.0, one)
    assert pace.held_until == 100.0 + min(max(asked), LONGEST_ASKED)


def test_pauses_of_unsaid_length_double() -> None:
    pace, now, holds = AimdLimiter(1000), 100.0, []
    for _ in range(9):
        pace.slow_down(now, None)
        holds.append(pace.held_until - now)
        now = pace.held_until + PAUSE
    assert holds[:7] == [FIRST_HOLD * 2**n for n in range(6)] + [LONGEST_HOLD]
    assert holds[7:] == [LONGEST_HOLD] * 2


def test_pauses_are_short_again_once_all_goes_well() -> None:
    pace = AimdLimiter(2)
    for now in (10.0, 20.0, 30.0):
        pace.slow_down(now, None)
    for _ in range(10):
        pace.went_well()
    pace.slow_down(50.0, None)
    assert pace.held_until == 50.0 + FIRST_HOLD


@given(st.integers(2, 200))
def test_it_grows_by_about_one_a_round(most: int) -> None:
    """A round: as many successes as may be in flight."""
    pace = AimdLimiter(most)
    pace.slow_down(10.0, 0)
    before = pace.limit
    for _ in range(int(before)):
        pace.went_well()
    assert pace.limit <= before + 1
    assert pace.limit >= min(most, before + 0.5)


@given(MOST, st.integers(1, 8))
def test_it_comes_back_whole(most: int, times: int) -> None:
    pace = AimdLimiter(most)
    for n in range(times):
        pace.slow_down(10.0 + n * 100, 0)
    rounds = 0
    while pace.limit < most:
        pace.went_well()
        rounds += 1
        assert rounds <= most * most + most
    assert pace.limit == pytest.approx(most)
