"""The next step of a delivery attempt, decided from values alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.model.outcome import Outcome, Reason, accepted, deferred, rejected, unknown
from pillarbox.route.decide import (
    LONGEST_LIMIT_WAIT,
    LONGEST_PAUSE,
    LONGEST_POSTPONE,
    SHORT_WAIT,
    SHORTEST_POSTPONE,
    ChannelState,
    HoldLane,
    Postpone,
    Progress,
    ProviderWait,
    Refuse,
    Release,
    Send,
    SendEnd,
    SendStatus,
    Step,
    Wait,
    combine,
    hold_or_postpone,
    next_step,
    quota_wait,
    unusable_for,
)
from pillarbox.route.failover import should_fail_over

FAULT = deferred(Reason.UNAVAILABLE, 421)
TOO_BIG = rejected(Reason.TOO_BIG)
UNSUPPORTED = rejected(Reason.UNSUPPORTED)
UNSENT: dict[int, Outcome | None] = {0: None, 1: None}
LIMIT = ProviderWait(100.0, Reason.RATE_LIMITED)
BUDGET = ProviderWait(200.0, Reason.BUDGET)
DOWN = ProviderWait(10.0, Reason.NO_PROVIDER)


def channel(number: int, **state: object) -> ChannelState:
    return ChannelState(number, **state)  # type: ignore[arg-type]


def down(number: int, seconds: float = 10.0, **state: object) -> ChannelState:
    return channel(number, unusable_for=seconds, **state)


def paused(number: int, seconds: float) -> ChannelState:
    return channel(number, unusable_for=unusable_for(None, seconds), paused_for=seconds)


def step(
    *channels: ChannelState,
    outcomes: Mapping[int, Outcome | None] = UNSENT,
    used: Mapping[int, SendEnd] | None = None,
    **more: object,
) -> Step:
    return next_step(channels, Progress(outcomes, used or {}, **more))  # type: ignore[arg-type]


def test_a_healthy_provider_gets_the_mail() -> None:
    assert step(channel(1)) == Send(1, (0, 1))
    assert step(channel(1), channel(2)) == Send(1, (0, 1))


@pytest.mark.parametrize(
    "first",
    [
        down(1),
        down(1, 0.5),
        paused(1, LONGEST_PAUSE + 1),
        channel(1, refusal=TOO_BIG),
    ],
)
def test_a_provider_that_cannot_take_it_is_passed_over(first: ChannelState) -> None:
    assert step(first, channel(2)) == Send(2, (0, 1))


@pytest.mark.parametrize("end", [SendStatus.ANSWERED, LIMIT, BUDGET, DOWN])
def test_a_provider_is_used_once_in_an_attempt(end: SendEnd) -> None:
    assert step(channel(1), channel(2), used={1: end}) == Send(2, (0, 1))


def test_only_recipients_whose_mail_no_provider_took_go_to_the_next() -> None:
    assert step(channel(1), channel(2), outcomes={1: FAULT}, used={1: SendStatus.ANSWERED}) == Send(
        2, (1,)
    )
    assert step(channel(1), channel(2), outcomes={}, used={1: SendStatus.ANSWERED}) is None


@pytest.mark.parametrize("seconds", [SHORT_WAIT + 0.1, 30.0, LONGEST_PAUSE])
def test_a_mail_waits_for_a_pause_and_does_not_fail_over(seconds: float) -> None:
    assert step(paused(1, seconds), channel(2)) == Wait(seconds, Reason.RATE_LIMITED, [0, 1])


def test_a_short_pause_is_waited_for_in_the_channel() -> None:
    assert step(paused(1, SHORT_WAIT)) == Send(1, (0, 1))


def test_a_provider_without_room_bars_the_lane() -> None:
    full = channel(1, has_room=False)
    assert step(full, channel(2)) == Wait(0.0, Reason.RATE_LIMITED, [0, 1], full_provider=1)
    assert step(full, begun=True) == Send(1, (0, 1))  # part of the mail has left: it goes on


@pytest.mark.parametrize(
    ("seconds", "limit", "wait"),
    [
        (1.0, "rate_per_second", ProviderWait(1.0, Reason.RATE_LIMITED, patient=True)),
        (SHORT_WAIT, "rate_per_hour", ProviderWait(SHORT_WAIT, Reason.RATE_LIMITED)),
        (2.0, "budget_per_month", ProviderWait(2.0, Reason.BUDGET, patient=True)),
        (1e7, "budget_per_month", ProviderWait(LONGEST_LIMIT_WAIT, Reason.BUDGET)),
        (1.0, None, ProviderWait(1.0, Reason.RATE_LIMITED, patient=True)),
    ],
)
def test_waits_for_a_quota(seconds: float, limit: str | None, wait: ProviderWait) -> None:
    assert quota_wait(seconds, limit) == wait


def test_a_short_wait_for_a_quota_is_not_worth_another_provider() -> None:
    soon = quota_wait(1.0, "rate_per_second")
    assert step(channel(1), channel(2), used={1: soon}) == Wait(1.0, Reason.RATE_LIMITED, [0, 1])


@pytest.mark.parametrize(
    ("waits", "seconds", "reason"),
    [
        ([DOWN], 10.0, Reason.NO_PROVIDER),
        ([LIMIT], 100.0, Reason.RATE_LIMITED),
        ([BUDGET, LIMIT], 100.0, Reason.BUDGET),
        ([DOWN, LIMIT], 10.0, Reason.RATE_LIMITED),  # the limit is the reason, not the outage
        ([LIMIT, DOWN, BUDGET], 10.0, Reason.RATE_LIMITED),
    ],
)
def test_the_soonest_provider_is_waited_for(
    waits: list[ProviderWait], seconds: float, reason: Reason
) -> None:
    channels = [channel(number) for number in range(len(waits))]
    used: dict[int, SendEnd] = dict(enumerate(waits))
    assert step(*channels, used=used) == Wait(seconds, reason, [0, 1])


@pytest.mark.parametrize(
    ("age", "pool_usable", "seconds"),
    [
        (0.0, True, SHORTEST_POSTPONE),
        (100.0, True, 25.0),
        (1e6, True, LONGEST_POSTPONE),
        (1e6, False, 1.0),  # nothing is claimed anyway: the breaker says when to look again
    ],
)
def test_an_older_mail_is_postponed_for_longer(
    age: float, pool_usable: bool, seconds: float
) -> None:
    found = step(down(1, 1.0, pool_usable=pool_usable), age=age)
    assert found == Wait(seconds, Reason.NO_PROVIDER, [0, 1])


def test_what_no_provider_can_ever_carry_is_refused_with_the_first_reason() -> None:
    refused = [channel(1, refusal=TOO_BIG), channel(2, refusal=UNSUPPORTED)]
    assert step(*refused) == Refuse(TOO_BIG, [0, 1])
    assert step(*refused, down(3)) == Wait(10.0, Reason.NO_PROVIDER, [0, 1])


def test_a_route_of_disabled_providers_waits() -> None:
    assert step() == Wait(LONGEST_POSTPONE, Reason.NO_PROVIDER, [0, 1])
    assert step(no_provider=True) == Release([0, 1])  # the worker claims nothing any more


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({0: FAULT}, None),  # the answer of the provider stands
        ({0: TOO_BIG}, Wait(10.0, Reason.NO_PROVIDER, [0])),  # the next one perhaps can carry it
        ({0: FAULT, 1: None}, Wait(10.0, Reason.NO_PROVIDER, [1])),
        ({0: FAULT, 1: TOO_BIG}, Wait(10.0, Reason.NO_PROVIDER, [1])),
    ],
)
def test_who_waits_for_the_next_provider(
    outcomes: dict[int, Outcome | None], expected: Step
) -> None:
    assert step(channel(1), down(2), outcomes=outcomes, used={1: SendStatus.ANSWERED}) == expected


@pytest.mark.parametrize("outcome", [FAULT, TOO_BIG])
def test_without_another_provider_the_answer_stands(outcome: Outcome) -> None:
    assert step(channel(1), outcomes={0: outcome}, used={1: SendStatus.ANSWERED}) is None


@pytest.mark.parametrize("how", [{"stopped": True}, {"used": {1: SendStatus.INTERRUPTED}}])
def test_nothing_begins_after_an_interruption(how: dict[str, object]) -> None:
    two = (channel(1), channel(2))
    assert step(*two, **how) == Release([0, 1])  # type: ignore[arg-type]
    assert step(*two, outcomes={0: FAULT, 1: None}, **how) == Release([1])  # type: ignore[arg-type]
    assert step(*two, outcomes={0: FAULT}, **how) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("open_for", "paused_for", "seconds"),
    [
        (None, 0.0, None),
        (None, SHORT_WAIT, None),
        (None, 6.0, 6.0),
        (3.0, 0.0, 3.0),
        (3.0, 9.0, 3.0),
    ],
)
def test_how_long_a_provider_is_unusable(
    open_for: float | None, paused_for: float, seconds: float | None
) -> None:
    assert unusable_for(open_for, paused_for) == seconds


WAIT = Wait(7.0, Reason.BUDGET, [1])


@pytest.mark.parametrize(
    ("stops", "end"),
    [
        ([WAIT], WAIT),
        ([Release([0])], Release([0])),
        ([Release([0]), WAIT], WAIT),  # else it would be claimed again at once
        ([WAIT, Wait(1.0, Reason.NO_PROVIDER, [0])], WAIT),
    ],
)
def test_a_message_of_which_nothing_left_waits_as_a_whole(
    stops: list[Wait | Release], end: Wait | Release
) -> None:
    assert combine(stops, taken=False) == end


def test_recipients_that_would_wait_are_deferred_once_others_have_the_mail() -> None:
    assert combine([WAIT, Release([0])], taken=True) == [
        Refuse(deferred(Reason.NO_PROVIDER, retry_after=7.0), [1]),
        Refuse(deferred(Reason.NO_PROVIDER), [0]),
    ]


@pytest.mark.parametrize(
    ("wait", "pool_usable", "may_postpone", "expected"),
    [
        (Wait(1.0, Reason.RATE_LIMITED), True, True, HoldLane(1.0, marked=False)),
        (Wait(0.0, Reason.RATE_LIMITED), True, True, HoldLane(0.0, marked=False)),
        (Wait(SHORT_WAIT, Reason.RATE_LIMITED), True, True, Postpone(SHORT_WAIT)),
        (Wait(600.0, Reason.BUDGET), True, True, Postpone(600.0)),
        (Wait(600.0, Reason.BUDGET), True, False, HoldLane(LONGEST_POSTPONE, marked=False)),
        (Wait(1.0, Reason.NO_PROVIDER), True, True, Postpone(1.0)),
        (Wait(1.0, Reason.NO_PROVIDER), True, False, HoldLane(1.0, marked=True)),
        (Wait(1.0, Reason.NO_PROVIDER), False, True, HoldLane(1.0, marked=False)),
        (Wait(90.0, Reason.NO_PROVIDER), False, False, HoldLane(LONGEST_POSTPONE, marked=False)),
    ],
)
def test_whether_the_lane_waits_with_its_mail(
    wait: Wait, pool_usable: bool, may_postpone: bool, expected: HoldLane | Postpone
) -> None:
    found = hold_or_postpone(wait, pool_usable=pool_usable, may_postpone=may_postpone)
    assert found == expected


# -- a whole attempt, with providers that change at every step

OUTCOMES = st.sampled_from(
    [accepted(250), FAULT, TOO_BIG, UNSUPPORTED, rejected(Reason.REFUSED), unknown(Reason.LOST)]
)
WAITS = st.builds(
    ProviderWait,
    st.sampled_from([0.0, 1.0, 10.0]),
    st.sampled_from([Reason.NO_PROVIDER, Reason.RATE_LIMITED, Reason.BUDGET]),
    st.booleans(),
)
ENDS: st.SearchStrategy[SendEnd] = st.one_of(
    st.just(SendStatus.ANSWERED), st.just(SendStatus.INTERRUPTED), WAITS
)
STATES = st.tuples(
    st.sampled_from([None, TOO_BIG]),
    st.sampled_from([None, 0.5, 30.0]),
    st.sampled_from([0.0, 10.0, 100.0]),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=500)
@given(st.data(), st.integers(1, 4), st.integers(0, 4), st.booleans())
def test_every_attempt_ends_and_sends_nothing_twice(
    data: st.DataObject, recipients: int, providers: int, no_provider: bool
) -> None:
    results: dict[int, Outcome] = {}
    used: dict[int, SendEnd] = {}
    taken: Counter[int] = Counter()
    for _ in range(providers + 1):
        left = {
            index: results.get(index)
            for index in range(recipients)
            if index not in results or should_fail_over(results[index])
        }
        states = [ChannelState(number, *data.draw(STATES)) for number in range(providers)]
        found = next_step(
            states,
            Progress(left, used, bool(results), data.draw(st.booleans()), 9.0, no_provider),
        )
        if not isinstance(found, Send):
            break
        assert found.provider_id not in used
        assert set(found.recipients) <= set(left)
        assert states[found.provider_id].refusal is None
        used[found.provider_id] = end = data.draw(ENDS)
        answered = len(found.recipients)
        if end is not SendStatus.ANSWERED:  # the channel may have answered for some of them
            answered = data.draw(st.integers(0, len(found.recipients) - 1))
        for index in found.recipients[:answered]:
            results[index] = data.draw(OUTCOMES)
            if not should_fail_over(results[index]):
                taken[index] += 1
    else:
        pytest.fail("an attempt has at most as many sends as providers")
    assert max(taken.values(), default=0) <= 1
    if isinstance(found, Wait | Release | Refuse):
        assert found.recipients
        assert not set(found.recipients) & set(taken), "a recipient that has an answer waits"
    elif found is None:
        assert set(results) == set(range(recipients)), "a recipient is left without an outcome"
