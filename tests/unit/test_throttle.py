"""Failures: counted per minute, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pillarbox.model.throttle import Failures


def test_it_waits_after_so_many_and_not_before() -> None:
    failures = Failures(3)
    for second in range(3):
        assert failures.wait("a", second) == 0
        failures.add("a", second)
    assert failures.wait("a", 3) == 57
    assert failures.wait("b", 3) == 0


def test_a_minute_after_the_first_all_is_forgiven() -> None:
    failures = Failures(1)
    failures.add("a", 100)
    assert failures.wait("a", 159.5) == 0.5
    assert failures.wait("a", 160) == 0
    failures.add("a", 170)
    assert failures.wait("a", 171) == 59


def test_failing_on_does_not_prolong_it() -> None:
    failures = Failures(1)
    for second in range(50):
        failures.add("a", second)
    assert failures.wait("a", 50) == 10


@given(st.lists(st.tuples(st.integers(0, 500), st.floats(0, 5)), max_size=300))
def test_memory_is_bounded(tries: list[tuple[int, float]]) -> None:
    failures, now = Failures(5, remembered=20), 0.0
    for where, passed in tries:
        now += passed
        failures.add(where, now)
        assert len(failures) <= 20
        assert 0 <= failures.wait(where, now) <= 60


def test_the_oldest_is_forgotten_first() -> None:
    failures = Failures(1, remembered=2)
    for second, where in enumerate("abc"):
        failures.add(where, second)
    assert [failures.wait(where, 3) > 0 for where in "abc"] == [False, True, True]


def test_what_is_over_takes_no_memory() -> None:
    failures = Failures(1)
    for number in range(100):
        failures.add(number, 0)
    failures.add("later", 61)
    assert len(failures) == 1
