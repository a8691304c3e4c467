"""Retry policies and what an outcome makes of a delivery: pure, so shown for all values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.model.delivery import State, Unknown, decide
from pillarbox.model.outcome import Outcome, Reason, Verdict, accepted, deferred, rejected, unknown
from pillarbox.model.retry import (
    ESP,
    LIFECYCLE,
    LONGEST_RETRY_AFTER,
    POLICIES,
    QUADRATIC,
    RetryPolicy,
)

MINUTE = 60.0
policies = st.sampled_from(list(POLICIES.values()))
attempts = st.integers(1, 120)
limits = st.none() | st.integers(1, 100)
chances = st.floats(0, 1, exclude_max=True)
asked = st.none() | st.floats(0, 1e9)


@pytest.mark.req("REQ-QUEUE-E004")
def test_the_named_schedules() -> None:
    assert QUADRATIC.schedule() == [k * k * MINUTE for k in range(1, 10)]
    assert ESP.schedule() == [30, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE]
    assert LIFECYCLE.schedule() == [MINUTE, 5 * MINUTE, 30 * MINUTE, 120 * MINUTE]
    assert [policy.max_attempts for policy in (QUADRATIC, ESP, LIFECYCLE)] == [10, 6, 5]


@pytest.mark.req("REQ-QUEUE-E006")
@pytest.mark.req("REQ-QUEUE-S001")
@given(policies, attempts, limits, chances, asked)
def test_there_is_a_wait_until_the_attempts_are_used_up(
    policy: RetryPolicy, made: int, limit: int | None, chance: float, wait: float | None
) -> None:
    delay = policy.delay(made, limit, chance, wait)
    assert (delay is None) == (made >= (policy.max_attempts if limit is None else limit))


@given(policies, attempts, limits, chances)
def test_jitter_stays_within_its_bounds(
    policy: RetryPolicy, made: int, limit: int | None, chance: float
) -> None:
    delay = policy.delay(made, limit, chance)
    if delay is not None:
        assert policy.wait(made) * policy.low <= delay <= policy.wait(made) * policy.high


@given(policies, st.integers(1, 100), chances)
def test_waits_never_get_shorter(policy: RetryPolicy, made: int, chance: float) -> None:
    first, then = policy.delay(made, 1000, chance), policy.delay(made + 1, 1000, chance)
    assert first is not None
    assert then is not None
    assert first <= then


@pytest.mark.req("REQ-QUEUE-E004")
@given(st.integers(1, 5), chances, st.floats(0, 1e9))
def test_a_provider_is_heard_but_not_for_ever(made: int, chance: float, wait: float) -> None:
    delay = ESP.delay(made, None, chance, wait)
    assert delay is not None
    assert min(wait, LONGEST_RETRY_AFTER) <= delay <= 3600  # no wait of this policy exceeds an hour


outcomes = st.sampled_from(
    [
        accepted(250),
        deferred(Reason.GREYLISTED, 451),
        rejected(Reason.INVALID_RECIPIENT, 550),
        unknown(Reason.LOST),
    ]
)


@pytest.mark.req("REQ-QUEUE-N002")
@given(outcomes, attempts, policies, st.sampled_from(Unknown), limits, chances)
def test_every_outcome_has_one_consequence(
    outcome: Outcome,
    made: int,
    policy: RetryPolicy,
    class_says: Unknown,
    limit: int | None,
    chance: float,
) -> None:
    decision = decide(outcome, made, policy, class_says, limit, chance)
    assert (decision.delay is not None) == (decision.state is State.QUEUED)
    assert (decision.reason is None) == (
        decision.state is State.SENT
    )  # whatever is not sent says why
    match outcome.verdict:
        case Verdict.ACCEPTED:
            assert decision.state is State.SENT
        case Verdict.REJECTED:
            assert decision.state is State.FAILED
        case Verdict.UNKNOWN if class_says is Unknown.HOLD:
            assert decision.state is State.HELD
        case _:
            assert decision.state is (
                State.FAILED if policy.exhausted(made, limit) else State.QUEUED
            )
