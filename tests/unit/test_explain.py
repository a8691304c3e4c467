"""Why a mail leaves through which provider: rules tried, providers skipped, what is kept for whom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.model.delivery import LANES
from pillarbox.model.provider import Provider
from pillarbox.model.routing import MailFacts, RoutingRule, RuleMatch
from pillarbox.route import decide
from pillarbox.route.circuit_breaker import CircuitState
from pillarbox.route.explain import (
    SHORT_PAUSE,
    SHORT_RATE_WAIT,
    CandidateUse,
    ExhaustedLimit,
    Explanation,
    MailFate,
    ObstacleReason,
    ProviderStatus,
    explain,
)
from pillarbox.route.quota import QuotaUsage, RateUsage, exhausted_limits, next_month, reserved_from
from pillarbox.route.router import Router, chance_of

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
SHOP = 2
MAIL = MailFacts(SHOP, "shop.example", "mail.example", kind="receipt", tags=("a", "b"), size=5000)
NAMES = {1: "first", 2: "second", 3: "third"}


def status(id: int, **more: Any) -> ProviderStatus:
    return ProviderStatus(**{"id": id, "name": NAMES[id], "kind": "smtp"} | more)


def explained(
    *rules: RoutingRule,
    facts: MailFacts = MAIL,
    raw: bool = False,
    chance: float = 0.0,
    **more: Any,
) -> Explanation:
    """The explanation where the first provider stands like this, and the others are well."""
    providers = [Provider(id, name, "smtp", {}, None) for id, name in NAMES.items()]
    statuses = {id: status(id) for id in NAMES} | {1: status(1, **more)}
    return explain(Router(rules, providers), facts, statuses, NOW, raw=raw, chance=chance)


def rule(
    id: int, *providers: int, tenant: int | None = SHOP, weights: Any = None, **match: Any
) -> RoutingRule:
    return RoutingRule(
        id, f"rule{id}", tenant, id, RuleMatch(**match), providers or (1, 2), weights
    )


# --- rules


@pytest.mark.req("REQ-QUEUE-E002")
def test_every_rule_that_was_tried_says_why_it_did_not_fit() -> None:
    rules = [
        rule(1, lanes=("bulk",)), rule(2, tags=("x", "y")), rule(3, recipient_domains=("other.example",)),
        rule(4, 3, max_size=5000), rule(5, 1),
    ]  # fmt: skip
    found = explained(*rules)
    assert [(one.rule.name, one.misses, one.has, one.wants) for one in found.rules] == [
        ("rule1", "lanes", "normal", "bulk"),
        ("rule2", "tags", "a, b", "x, y"),
        ("rule3", "recipient_domains", "mail.example", "other.example"),
        ("rule4", None, "", ""),
    ]
    assert (found.rule, found.used and found.used.name) == (rules[3], "third")


@pytest.mark.parametrize(
    ("match", "has", "wants"),
    [
        (
            {"sender_domains": ("x.example", "*.y.example")},
            "shop.example",
            "x.example, *.y.example",
        ),
        ({"classes": ("bulk",)}, "transactional", "bulk"),
        ({"kinds": ("welcome",)}, "receipt", "welcome"),
        ({"min_size": 5001}, "5000", "5001"),
        ({"max_size": 4999}, "5000", "4999"),
    ],
)
def test_what_the_mail_has_and_what_the_rule_wants(
    match: dict[str, Any], has: str, wants: str
) -> None:
    [one] = explained(rule(1, **match)).rules
    assert (one.misses, one.has, one.wants) == (next(iter(match)), has, wants)


def test_a_mail_without_kind_and_tags() -> None:
    bare = MailFacts(SHOP, "shop.example", "mail.example")
    found = explained(rule(1, kinds=("k",)), rule(2, tags=("t",)), facts=bare)
    assert [one.has for one in found.rules] == ["none", "none"]


@pytest.mark.req("REQ-QUEUE-S007")
def test_without_a_rule_the_default_order_is_told() -> None:
    found = explained()
    assert (found.rule, found.rules) == (None, [])
    assert [(one.name, one.use) for one in found.providers] == [
        ("first", CandidateUse.USED), ("second", CandidateUse.NEXT), ("third", CandidateUse.NEXT),
    ]  # fmt: skip
    assert found.fate is MailFate.LEAVES


def test_others_rules_are_not_told() -> None:
    assert explained(rule(1, tenant=99), rule(2, 2, tenant=None)).rules[0].rule.name == "rule2"


def test_shares_of_weighted_providers() -> None:
    weighted = rule(1, 2, 1, 3, weights=(30, 70, 0))
    found = explained(weighted)
    assert [(one.name, one.share) for one in found.providers] == [
        ("first", 0.7),
        ("second", 0.3),
        ("third", 0.0),
    ]
    assert [one.name for one in explained(weighted, chance=0.99).providers] == [
        "second",
        "first",
        "third",
    ]
    assert [one.share for one in explained(rule(1, 2, 1)).providers] == [None, None]


def test_a_persons_choice_comes_before_all_rules() -> None:
    found = explain(Router([rule(1, 1)], []), MAIL, {id: status(id) for id in NAMES}, NOW, via=3)
    assert (found.via, found.rule, found.rules) == (3, None, ())
    assert [(one.name, one.use) for one in found.providers] == [("third", CandidateUse.USED)]


def test_a_choice_that_was_removed_since_counts_no_more() -> None:
    statuses = {id: status(id) for id in NAMES} | {3: status(3, removed=True)}
    found = explain(Router([rule(1, 1)], []), MAIL, statuses, NOW, via=3)
    assert (found.via, [one.name for one in found.providers]) == (None, ["first"])


@given(st.uuids())
def test_a_message_draws_always_the_same(id: UUID) -> None:
    assert 0 <= chance_of(id) < 1
    assert chance_of(id) == chance_of(UUID(str(id)))


# --- providers

SKIPPED: list[tuple[dict[str, Any], ObstacleReason, str, datetime | None]] = [
    ({"enabled": False}, ObstacleReason.DISABLED, "is disabled", None),
    ({"removed": True, "enabled": False}, ObstacleReason.REMOVED, "was removed", None),
    ({"takes_parts": True}, ObstacleReason.RAW, "cannot carry raw mails", None),
    ({"max_bytes": 4999}, ObstacleReason.TOO_BIG, "takes at most 4,999 bytes", None),
    ({"circuit": CircuitState.OPEN, "reason": "timeout", "retry_at": LATER}, ObstacleReason.BREAKER_OPEN,
     "its breaker is open after timeout", LATER),
    ({"held_until": LATER}, ObstacleReason.PAUSED, "asked for a pause", LATER),
    ({"exhausted": [ExhaustedLimit(ObstacleReason.BUDGET, LATER)]}, ObstacleReason.BUDGET, "its budget is used up", LATER),
    ({"exhausted": [ExhaustedLimit(ObstacleReason.RATE, LATER)]}, ObstacleReason.RATE, "its rate is used up", LATER),
]  # fmt: skip


@pytest.mark.parametrize(("more", "why", "said", "until"), SKIPPED)
def test_why_a_provider_is_skipped(
    more: dict[str, Any], why: ObstacleReason, said: str, until: datetime | None
) -> None:
    found = explained(raw=True, **more)
    first, second, third = found.providers
    assert (first.use, second.use, third.use) == (
        CandidateUse.SKIPPED,
        CandidateUse.USED,
        CandidateUse.NEXT,
    )
    assert [(one.why, one.text, one.until) for one in first.obstacles] == [(why, said, until)]
    assert found.used == second


def test_every_reason_has_a_case() -> None:
    assert {one[1] for one in SKIPPED} == set(ObstacleReason) - {ObstacleReason.HALF_OPEN}


def test_a_provider_that_no_longer_exists_at_all() -> None:
    found = explain(Router([rule(1, 77, 2)], []), MAIL, {2: status(2)}, NOW)
    assert [(one.name, one.use) for one in found.providers] == [
        ("#77", CandidateUse.SKIPPED),
        ("second", CandidateUse.USED),
    ]


def test_several_reasons_are_all_told() -> None:
    found = explained(
        raw=True, takes_parts=True, max_bytes=1, circuit=CircuitState.OPEN, held_until=LATER
    )
    assert [one.why for one in found.providers[0].obstacles] == [
        ObstacleReason.RAW,
        ObstacleReason.TOO_BIG,
        ObstacleReason.BREAKER_OPEN,
        ObstacleReason.PAUSED,
    ]


def test_mails_wait_for_what_passes_soon() -> None:
    pause, rate = NOW + SHORT_PAUSE, NOW + SHORT_RATE_WAIT
    for soon, more in (
        (pause, {"held_until": pause}),
        (rate, {"exhausted": [ExhaustedLimit(ObstacleReason.RATE, rate)]}),
    ):
        first = explained(**more).providers[0]
        assert first.use is CandidateUse.USED
        assert first.obstacles[0].until == soon
        assert "mails wait for it" in first.obstacles[0].text
    assert (
        explained(held_until=pause + timedelta(seconds=1)).providers[0].use is CandidateUse.SKIPPED
    )


def test_soon_means_the_same_to_the_worker() -> None:
    assert (SHORT_RATE_WAIT.total_seconds(), SHORT_PAUSE.total_seconds()) == (
        decide.SHORT_WAIT,
        decide.LONGEST_PAUSE,
    )


def test_a_pause_that_is_over_is_none() -> None:
    assert explained(held_until=NOW).providers[0].obstacles == []


def test_a_half_open_one_is_used() -> None:
    first = explained(circuit=CircuitState.HALF_OPEN, reason="timeout").providers[0]
    assert (first.use, first.obstacles[0].why) == (CandidateUse.USED, ObstacleReason.HALF_OPEN)
    assert first.obstacles[0].text == "is being tried again after timeout: one mail at a time"


def test_limits_that_are_just_kept() -> None:
    assert explained(max_bytes=5000).providers[0].use is CandidateUse.USED
    assert explained(takes_parts=True).providers[0].use is CandidateUse.USED  # not a raw mail


@pytest.mark.parametrize(
    ("more", "fate"),
    [
        ({}, MailFate.LEAVES),
        ({"enabled": False}, MailFate.WAITS),
        ({"removed": True}, MailFate.WAITS),
        ({"circuit": CircuitState.OPEN}, MailFate.WAITS),
        ({"held_until": LATER}, MailFate.WAITS),
        ({"max_bytes": 1}, MailFate.FAILS),
        (
            {"max_bytes": 1, "circuit": CircuitState.OPEN},
            MailFate.FAILS,
        ),  # nor would it when it is back
        ({"takes_parts": True}, MailFate.FAILS),
    ],
)
def test_what_becomes_of_a_mail_with_one_provider(more: dict[str, Any], fate: MailFate) -> None:
    assert explained(rule(1, 1), raw=True, **more).fate is fate


def test_a_mail_that_somebody_could_carry_waits() -> None:
    statuses = {
        1: status(1, max_bytes=1),
        2: status(2, circuit=CircuitState.OPEN),
        3: status(3, enabled=False),
    }
    assert explain(Router([rule(1, 1, 2)], []), MAIL, statuses, NOW).fate is MailFate.WAITS
    assert explain(Router([rule(1, 1, 3)], []), MAIL, statuses, NOW).fate is MailFate.FAILS


# --- what is kept for whom


def test_reserves_by_lane() -> None:
    assert [reserved_from(lane, 10, 20) for lane in LANES] == [0, Decimal("0.1"), Decimal("0.3")]
    assert [reserved_from(lane, 0, 0) for lane in LANES] == [0, 0, 0]


@pytest.mark.parametrize(
    ("spent", "stopped"),
    [(0, ""), (69, ""), (70, "bulk"), (89, "bulk"), (90, "normal bulk"), (99, "normal bulk"),
     (100, "urgent normal bulk")],
)  # fmt: skip
def test_password_resets_leave_when_the_newsletter_has_eaten_the_budget(
    spent: int, stopped: str
) -> None:
    usage = QuotaUsage((), Decimal(spent), Decimal(1), Decimal(100))
    assert [lane for lane in LANES if exhausted_limits(usage, lane, NOW)] == stopped.split()


def test_a_budget_is_used_up_until_the_next_month() -> None:
    [found] = exhausted_limits(QuotaUsage((), Decimal(5), Decimal(1), Decimal(5)), "urgent", NOW)
    assert (found.why, found.until) == (ObstacleReason.BUDGET, datetime(2030, 2, 1, tzinfo=UTC))
    assert next_month(datetime(2030, 12, 31, 23, 59, tzinfo=UTC)) == datetime(
        2031, 1, 1, tzinfo=UTC
    )


def test_without_a_budget_nothing_is_used_up() -> None:
    assert exhausted_limits(QuotaUsage((), Decimal(10**9)), "bulk", NOW) == []


def test_the_longest_wait_of_a_rate_counts() -> None:
    rates = [
        RateUsage(10, 1, NOW + timedelta(seconds=1)),
        RateUsage(100, 3600, NOW + timedelta(hours=1)),
        RateUsage(5, 86400, None),
    ]
    [found] = exhausted_limits(QuotaUsage(rates), "normal", NOW)
    assert found.why is ObstacleReason.RATE
    # Ten in an hour may leave in one go: the tenth place is free again when nine are left of them.
    assert found.until == NOW + timedelta(seconds=3600 - 9 * 36)


def test_a_days_burst_is_reserved_a_seconds_is_not() -> None:
    def stopped(*rates: RateUsage) -> list[str]:
        return [lane for lane in LANES if exhausted_limits(QuotaUsage(rates), lane, NOW)]

    # Of a hundred that may leave in one go, 75 have.
    day = RateUsage(1000, 86400, NOW + timedelta(seconds=75 * 86.4), reserved=True)
    assert stopped(day) == ["bulk"]
    assert stopped(RateUsage(day.limit, day.seconds, day.used_until)) == []
    fresh = RateUsage(1000, 86400, None, reserved=True)
    assert stopped(fresh) == []


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 10**6), st.floats(0, 90_000))
def test_a_higher_lane_never_waits_longer(
    urgent: int, normal: int, most: int, ahead: float
) -> None:
    usage = QuotaUsage(
        [RateUsage(most, 86400, NOW + timedelta(seconds=ahead), reserved=True)], reserve_urgent=urgent,
        reserve_normal=min(normal, 100 - urgent),
    )  # fmt: skip
    waits = [
        max((one.until for one in exhausted_limits(usage, lane, NOW)), default=NOW)
        for lane in LANES
    ]
    assert waits == sorted(waits)
