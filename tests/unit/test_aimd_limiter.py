"""How many mails at the same time: never none, never too many, less when asked, slowly more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.route.aimd_limiter import (
    DECREASE_INTERVAL,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LONGEST_RETRY_AFTER,
    AimdLimiter,
)

MOST = st.integers(1, 500)
ASKED = st.one_of(st.none(), st.floats(0, 100_000))
STEPS = st.lists(st.tuples(st.floats(0, 100), st.booleans(), ASKED), max_size=60)


@given(MOST, STEPS)
def test_never_below_one_nor_above_most(
    most: int, steps: list[tuple[float, bool, float | None]]
) -> None:
    limiter, now = AimdLimiter(most), 100.0
    for later, well, asked in steps:
        now += later
        limiter.increase() if well else limiter.decrease(now, asked)
        assert 1.0 <= limiter.limit <= most
        assert (
            limiter.max_in_flight(limiter.paused_until + now) >= 1
        )  # somebody may always go, once the pause is over
        assert limiter.max_in_flight(limiter.paused_until + now) <= most


@given(MOST, st.integers(1, 5))
def test_some_wait_behind_those_that_are_sent_until_it_is_asked_to_decrease(
    most: int, ahead: int
) -> None:
    limiter = AimdLimiter(most)
    assert limiter.max_in_flight(1.0, ahead) == most * ahead
    limiter.decrease(1.0, 0.0)
    assert limiter.max_in_flight(2.0, ahead) == max(1, most // 2) * (ahead if most == 1 else 1)


def test_a_limit_of_nothing_is_one() -> None:
    assert AimdLimiter(0).max_in_flight(1.0) == 1


@given(st.integers(2, 500))
def test_too_many_halves(most: int) -> None:
    limiter = AimdLimiter(most)
    assert limiter.decrease(10.0, None)
    assert limiter.limit == most / 2


def test_answers_to_what_was_sent_before_do_not_slow_down_again() -> None:
    """Fifty mails were in flight, and each is told the same: that is one piece of news."""
    limiter = AimdLimiter(64)
    assert limiter.decrease(10.0, 0)
    assert not any(limiter.decrease(10.0 + n / 50, 0) for n in range(50))
    assert limiter.limit == 32
    assert limiter.decrease(10.0 + DECREASE_INTERVAL, 0)
    assert limiter.limit == 16


def test_nor_do_they_during_a_pause_that_was_asked_for() -> None:
    limiter = AimdLimiter(64)
    assert limiter.decrease(10.0, 30)
    assert not limiter.decrease(15.0, 30)
    assert (limiter.limit, limiter.paused_until) == (32, 45.0)  # it is honoured, all the same
    assert limiter.decrease(45.0, None)
    assert limiter.limit == 16


@given(MOST, st.floats(0, 10_000), st.floats(0, 100_000))
def test_retry_after_is_honoured_up_to_an_hour(most: int, now: float, asked: float) -> None:
    limiter = AimdLimiter(most)
    limiter.decrease(now, asked)
    until = now + min(asked, LONGEST_RETRY_AFTER)
    assert limiter.paused_until == max(until, 0.0)
    assert limiter.max_in_flight(until) >= 1
    assert until == now or limiter.max_in_flight(now) == 0


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=20))
def test_a_shorter_pause_does_not_end_a_longer_one(asked: list[float]) -> None:
    limiter = AimdLimiter(10)
    for one in asked:
        limiter.decrease(100.0, one)
    assert limiter.paused_until == 100.0 + min(max(asked), LONGEST_RETRY_AFTER)


def test_pauses_of_unsaid_length_double() -> None:
    limiter, now, pauses = AimdLimiter(1000), 100.0, []
    for _ in range(9):
        limiter.decrease(now, None)
        pauses.append(limiter.paused_until - now)
        now = limiter.paused_until + DECREASE_INTERVAL
    assert pauses[:7] == [FIRST_PAUSE * 2**n for n in range(6)] + [LONGEST_PAUSE]
    assert pauses[7:] == [LONGEST_PAUSE] * 2


def test_pauses_are_short_again_once_all_goes_well() -> None:
    limiter = AimdLimiter(2)
    for now in (10.0, 20.0, 30.0):
        limiter.decrease(now, None)
    for _ in range(10):
        limiter.increase()
    limiter.decrease(50.0, None)
    assert limiter.paused_until == 50.0 + FIRST_PAUSE


@given(st.integers(2, 200))
def test_it_grows_by_about_one_a_round(most: int) -> None:
    """A round: as many successes as may be in flight."""
    limiter = AimdLimiter(most)
    limiter.decrease(10.0, 0)
    before = limiter.limit
    for _ in range(int(before)):
        limiter.increase()
    assert limiter.limit <= before + 1
    assert limiter.limit >= min(most, before + 0.5)


@given(MOST, st.integers(1, 8))
def test_it_comes_back_whole(most: int, times: int) -> None:
    limiter = AimdLimiter(most)
    for n in range(times):
        limiter.decrease(10.0 + n * 100, 0)
    rounds = 0
    while limiter.limit < most:
        limiter.increase()
        rounds += 1
        assert rounds <= most * most + most
    assert limiter.limit == pytest.approx(most)
