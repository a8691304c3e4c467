"""A worker's own view of its lease is never later than the database's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pillarbox.deliver.lease import Lease


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_new_lease_is_not_valid() -> None:
    assert not Lease(60, Clock()).valid()


@given(st.floats(0, 100), st.floats(0, 200))
def test_it_counts_from_before_the_request(travel: float, later: float) -> None:
    clock = Clock()
    lease = Lease(60, clock)
    asked = lease.now()
    clock.now += (
        travel  # the database renewed it at some moment in between: at `asked` at the earliest
    )
    lease.renewed(asked)
    clock.now += later
    assert not lease.valid() or clock.now < asked + 60


def test_a_late_answer_does_not_shorten_it() -> None:
    clock = Clock()
    lease = Lease(60, clock)
    lease.renewed(clock.now)
    lease.renewed(clock.now - 30)
    clock.now += 40
    assert lease.valid()


def test_lost_is_lost() -> None:
    clock = Clock()
    lease = Lease(60, clock)
    lease.renewed(clock.now)
    lease.lost()
    assert not lease.valid()
