"""The circuit breaker: when it opens, how it is probed, how flapping is damped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.deliver.health_monitor import CHECK_TIMEOUT, READ_INTERVAL
from pillarbox.route.circuit_breaker import (
    FAILURES_TO_OPEN,
    FIRST_WAIT,
    FORGOTTEN_AFTER,
    LONGEST_WAIT,
    MAX_OPENED,
    SLOW,
    SLOW_FACTOR,
    SLOWEST,
    SUCCESSES_TO_CLOSE,
    CircuitBreaker,
    CircuitState,
)

NOW = 1000.0


def failing(health: CircuitBreaker, times: int, now: float = NOW) -> CircuitBreaker:
    for _ in range(times):
        health = health.failed(now, "unavailable")
    return health


def well(health: CircuitBreaker, times: int, now: float = NOW) -> CircuitBreaker:
    for _ in range(times):
        health = health.succeeded(now, 0.1)
    return health


OPEN = failing(CircuitBreaker(), FAILURES_TO_OPEN)
HALF_OPEN = OPEN.probed(OPEN.retry_at)


# --- opening


@pytest.mark.req("REQ-QUEUE-S002")
def test_three_failures_in_a_row_open_it() -> None:
    assert FAILURES_TO_OPEN == 3
    assert failing(CircuitBreaker(), 2).circuit is CircuitState.CLOSED
    opened = failing(CircuitBreaker(), 3)
    assert (opened.circuit, opened.since, opened.reason) == (CircuitState.OPEN, NOW, "unavailable")
    assert opened.retry_at == NOW + FIRST_WAIT


@pytest.mark.req("REQ-QUEUE-S002")
@given(st.lists(st.booleans(), max_size=60))
def test_it_opens_exactly_at_the_third_failure_in_a_row(answers: list[bool]) -> None:
    health, row = CircuitBreaker(), 0
    for right in answers:
        health = well(health, 1) if right else failing(health, 1)
        row = 0 if right else row + 1
        assert (health.circuit is CircuitState.OPEN) == (row == FAILURES_TO_OPEN)
        if row == FAILURES_TO_OPEN:
            return


def test_trouble_with_the_account_opens_it_at_once() -> None:
    """No other mail would escape it."""
    opened = CircuitBreaker().failed(NOW, "credential", trouble=True)
    assert (opened.circuit, opened.reason) == (CircuitState.OPEN, "credential")


def test_what_fails_late_changes_nothing() -> None:
    """Mails in flight when it opened are no news, and do not make the wait longer."""
    assert failing(OPEN, 50, NOW + 3) == OPEN
    assert OPEN.failed(NOW + 3, "credential", trouble=True) == OPEN


def test_what_succeeds_late_does_not_close_it() -> None:
    """Only probes do: else a slow provider would close its own breaker, and flap."""
    late = well(OPEN, 10, NOW + 3)
    assert replace(late, usual=OPEN.usual) == OPEN


def test_late_answers_teach_how_long_it_takes() -> None:
    late = OPEN.succeeded(NOW + 4, 4.0)
    assert late.usual == 4.0
    assert late.slow_after == 4.0 * SLOW_FACTOR


# --- probing


def test_it_is_probed_when_its_wait_is_over() -> None:
    assert OPEN.probed(OPEN.retry_at - 0.01) is OPEN
    probed = OPEN.probed(OPEN.retry_at)
    assert (probed.circuit, probed.since, probed.reason) == (
        CircuitState.HALF_OPEN,
        OPEN.retry_at,
        "unavailable",
    )


@pytest.mark.parametrize("health", [CircuitBreaker(), failing(CircuitBreaker(), 2), HALF_OPEN])
def test_only_an_open_one_is_probed(health: CircuitBreaker) -> None:
    assert health.probed(10**9) is health


def test_three_successes_close_it() -> None:
    assert SUCCESSES_TO_CLOSE == 3
    assert well(HALF_OPEN, 2).circuit is CircuitState.HALF_OPEN
    closed = well(HALF_OPEN, 3, NOW + 9)
    assert (closed.circuit, closed.since, closed.failures, closed.reason) == (
        CircuitState.CLOSED,
        NOW + 9,
        0,
        None,
    )


@given(st.integers(0, SUCCESSES_TO_CLOSE - 1), st.booleans())
def test_one_failure_of_a_probe_opens_it_again(successes: int, trouble: bool) -> None:
    opened = well(HALF_OPEN, successes).failed(NOW + 10, "timeout", trouble=trouble)
    assert (opened.circuit, opened.reason, opened.since) == (CircuitState.OPEN, "timeout", NOW + 10)
    assert opened.retry_at == NOW + 10 + 2 * FIRST_WAIT


def test_probes_begin_anew_each_time() -> None:
    again = well(HALF_OPEN, 2).failed(NOW + 10, "timeout")
    assert well(again.probed(again.retry_at), 2).circuit is CircuitState.HALF_OPEN


# --- flapping


def flap(health: CircuitBreaker, now: float) -> tuple[CircuitBreaker, float]:
    """Comes back just long enough to close the breaker, and goes again."""
    health = failing(health, 3, now)
    wait = health.retry_at - now
    return well(health.probed(health.retry_at), 3, health.retry_at), wait


def test_an_open_breaker_is_probed_every_thirty_seconds_at_least() -> None:
    """Also when the probe before took as long as it may, and the loop that makes them comes late by its jitter."""
    assert LONGEST_WAIT + CHECK_TIMEOUT + 2 * READ_INTERVAL * 1.1 <= 30


def test_each_opening_doubles_the_wait_up_to_the_longest() -> None:
    health, waits = CircuitBreaker(since=NOW), []
    for _ in range(10):
        health, wait = flap(health, health.since + 1)
        waits.append(wait)
    assert waits == pytest.approx([5, 10, *[LONGEST_WAIT] * 8])


def test_failing_probes_double_the_wait_too() -> None:
    health, waits = OPEN, []
    for _ in range(8):
        probed = health.probed(health.retry_at)
        health = probed.failed(probed.since, "unavailable")
        waits.append(health.retry_at - health.since)
    assert waits == pytest.approx([10, *[LONGEST_WAIT] * 7])


def test_openings_are_forgiven_slowly() -> None:
    health = CircuitBreaker(CircuitState.CLOSED, NOW, opened=3)
    assert well(health, 100, NOW + FORGOTTEN_AFTER - 1).opened == 3
    assert well(health, 100, NOW + FORGOTTEN_AFTER).opened == 2
    assert (
        well(well(health, 1, NOW + FORGOTTEN_AFTER), 100, NOW + 2 * FORGOTTEN_AFTER - 1).opened == 2
    )
    assert well(health, 1, NOW + 2 * FORGOTTEN_AFTER).opened == 1
    assert well(health, 1, NOW + 100 * FORGOTTEN_AFTER).opened == 0


def test_a_long_outage_is_not_held_against_it_for_long() -> None:
    """However often it was probed in vain: an hour later all is forgiven."""
    health = OPEN
    for _ in range(500):
        probed = health.probed(health.retry_at)
        health = probed.failed(probed.since, "unavailable")
    assert health.opened == MAX_OPENED
    back = well(health.probed(health.retry_at), 3, health.retry_at)
    assert well(back, 1, back.since + 3600).opened == 0


def test_a_failure_does_not_wait_for_forgiveness() -> None:
    """Only answers forgive: silence proves nothing."""
    health = failing(
        CircuitBreaker(CircuitState.CLOSED, NOW, opened=3), 3, NOW + 5 * FORGOTTEN_AFTER
    )
    assert health.retry_at - health.since == LONGEST_WAIT


@given(
    st.lists(
        st.tuples(st.floats(0, 1000), st.sampled_from(["well", "fails", "trouble", "probe"])),
        max_size=80,
    )
)
def test_whatever_happens_it_stays_sound(steps: list[tuple[float, str]]) -> None:
    health, now = CircuitBreaker(), 0.0
    for later, what in steps:
        now += later
        if what == "well":
            health = health.succeeded(now, 0.1)
        elif what == "probe":
            health = health.probed(now)
        else:
            health = health.failed(now, "timeout", trouble=what == "trouble")
        assert 0 <= health.opened <= MAX_OPENED
        assert 0 <= health.failures < FAILURES_TO_OPEN
        assert 0 <= health.successes < SUCCESSES_TO_CLOSE
        assert health.since <= now
        assert SLOW <= health.slow_after <= SLOWEST
        if health.circuit is CircuitState.OPEN:
            assert FIRST_WAIT - 1e-6 <= health.retry_at - health.since <= LONGEST_WAIT + 1e-6
            assert health.reason


def test_a_clock_that_goes_back_takes_nothing_back() -> None:
    health = CircuitBreaker(CircuitState.CLOSED, NOW, opened=2)
    assert health.succeeded(NOW - 5000, 0.1).opened == 2


# --- slow answers


def test_what_is_slow_depends_on_what_is_usual() -> None:
    assert CircuitBreaker().slow_after == SLOW == 3.0
    assert CircuitBreaker(usual=0.2).slow_after == SLOW
    assert CircuitBreaker(usual=2.0).slow_after == 2.0 * SLOW_FACTOR
    assert CircuitBreaker(usual=60.0).slow_after == SLOWEST  # still before the timeout of 30 s


@given(st.lists(st.floats(0.001, 30), min_size=1, max_size=100))
def test_what_is_usual_lies_among_what_was(took: list[float]) -> None:
    health = CircuitBreaker()
    for one in took:
        health = health.succeeded(NOW, one)
    assert min(took) - 1e-9 <= health.usual <= max(took) + 1e-9


def test_an_answer_that_nobody_measured_says_nothing_of_time() -> None:
    assert CircuitBreaker(usual=2.0).succeeded(NOW, 0.0).usual == 2.0


def test_one_slow_answer_changes_little() -> None:
    health = well(CircuitBreaker(), 50)
    assert health.succeeded(NOW, 10.0).slow_after < 5
