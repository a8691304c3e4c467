"""How many of a worker's places one of several providers may hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pillarbox.route.provider_shares import has_enough, headroom

WINDOWS = st.integers(1, 2000)


def taken(window: int, before: int = 0) -> int:
    """What a provider holds at last that takes whatever it may get, and gives nothing back."""
    held = 0
    while more := headroom(window - before - held, held):
        held += more
    return held


def test_a_hanging_provider_keeps_three_quarters() -> None:
    assert taken(100) == 75
    assert taken(2) == 1
    assert taken(1) == 1  # there is no half place


@given(WINDOWS, st.integers(1, 6))
def test_each_of_several_hanging_providers_leaves_some_for_the_next(
    window: int, hanging: int
) -> None:
    """They come one after another, and each takes all that it may."""
    before = 0
    for _ in range(hanging):
        free = window - before
        held = taken(window, before)
        assert 0 <= held <= free
        assert held < free or free < 2
        before += held
    assert before <= window


@given(WINDOWS, st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_providers_that_take_turns_never_exceed_the_window(window: int, turns: list[int]) -> None:
    held = dict.fromkeys(range(5), 0)
    for one in turns:
        held[one] += headroom(window - sum(held.values()), held[one])
        assert sum(held.values()) <= window


@given(WINDOWS)
def test_a_provider_that_holds_nothing_gets_the_first_mail(window: int) -> None:
    assert not has_enough(window, 0)
    assert headroom(1, 0) == 1
    assert headroom(0, 0) == 0


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_what_has_not_enough_has_room(free: int, held: int) -> None:
    if not has_enough(free, held):
        assert 1 <= headroom(free, held) <= free
