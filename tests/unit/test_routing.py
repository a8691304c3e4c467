"""Rules and the router: which rule decides, the default order, draws by weight, what may be said of a route."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.errors import InvalidMail, UnknownName
from pillarbox.model.delivery import LANES
from pillarbox.model.provider import Provider
from pillarbox.model.provider_kinds import KINDS
from pillarbox.model.route_settings import (
    CONDITIONS,
    MAX_PROVIDERS,
    MAX_VALUES,
    MAX_WEIGHT,
    checked_match,
    checked_providers,
    checked_weights,
)
from pillarbox.model.routing import MailFacts, RoutingRule, RuleMatch
from pillarbox.route.router import Router

SHOP, OTHER = 2, 3
MAIL = MailFacts(
    SHOP, "shop.example", "mail.example", "normal", "transactional", "receipt", ("paid",), 5000
)


def provider(
    id: int, kind: str = "smtp", *, enabled: bool = True, release_only: bool = False
) -> Provider:
    return Provider(id, f"p{id}", kind, {}, None, enabled, release_only=release_only)


def rule(
    id: int, tenant: int | None = None, place: int = 1, *providers: int, **more: Any
) -> RoutingRule:
    match, weights = more.pop("match", RuleMatch()), more.pop("weights", None)
    return RoutingRule(id, f"rule{id}", tenant, place, match, providers or (id,), weights, **more)


def chosen(*rules: RoutingRule, facts: MailFacts = MAIL, chance: float = 0.0) -> list[int]:
    return list(Router(rules, [provider(90)]).choose(facts, chance).providers)


# --- conditions

MISSES: list[tuple[str, Any]] = [
    ("sender_domains", ("other.example",)),
    ("sender_domains", ("*.shop.example",)),  # its subdomains, not itself
    ("recipient_domains", ("example", "xmail.example")),
    ("tags", ("refund", "Paid")),
    ("lanes", ("urgent", "bulk")),
    ("classes", ("bulk",)),
    ("kinds", ("welcome",)),
    ("min_size", 5001),
    ("max_size", 4999),
]
MEETS: list[tuple[str, Any]] = [
    ("sender_domains", ("other.example", "shop.example")),
    ("sender_domains", ("*.example",)),
    ("recipient_domains", ("mail.example",)),
    ("tags", ("refund", "paid")),
    ("lanes", ("normal",)),
    ("classes", ("bulk", "transactional")),
    ("kinds", ("receipt",)),
    ("min_size", 5000),
    ("max_size", 5000),
]


@pytest.mark.parametrize(("condition", "wanted"), MISSES)
def test_a_condition_that_is_not_met_is_named(condition: str, wanted: Any) -> None:
    assert RuleMatch(**{condition: wanted}).misses(MAIL) == condition


@pytest.mark.parametrize(("condition", "wanted"), MEETS)
def test_a_condition_that_is_met(condition: str, wanted: Any) -> None:
    assert RuleMatch(**{condition: wanted}).misses(MAIL) is None


def test_every_condition_has_both_cases() -> None:
    assert (
        {one[0] for one in MISSES}
        == {one[0] for one in MEETS}
        == set(CONDITIONS)
        == set(RuleMatch.__slots__)
    )


@given(st.sets(st.sampled_from(range(len(MEETS)))), st.sampled_from([None, *range(len(MISSES))]))
def test_all_conditions_must_be_met(met: set[int], missed: int | None) -> None:
    wanted = dict(MEETS[one] for one in met)
    if missed is None:
        assert RuleMatch(**wanted).misses(MAIL) is None
    else:
        assert RuleMatch(**wanted | dict([MISSES[missed]])).misses(MAIL) == MISSES[missed][0]


def test_a_mail_without_kind_and_tags_meets_no_list_of_them() -> None:
    bare = MailFacts(SHOP, "shop.example", "mail.example")
    assert RuleMatch(kinds=("receipt",)).misses(bare) == "kinds"
    assert RuleMatch(tags=("paid",)).misses(bare) == "tags"
    assert RuleMatch().misses(bare) is None


# --- which rule decides


@pytest.mark.req("REQ-QUEUE-E002")
def test_a_tenants_own_rules_come_before_those_for_all() -> None:
    """Whatever their places; the rules of others do not count."""
    rules = rule(1, None, 1), rule(2, SHOP, 9), rule(3, OTHER, 1)
    assert chosen(*rules) == [2]
    assert chosen(*rules, facts=MailFacts(OTHER, "", "")) == [3]
    assert chosen(*rules, facts=MailFacts(77, "", "")) == [1]


@pytest.mark.req("REQ-QUEUE-E002")
def test_the_first_rule_that_fits_decides() -> None:
    bulk = RuleMatch(lanes=("bulk",))
    rules = (
        rule(1, SHOP, 1, match=bulk),
        rule(2, SHOP, 2, match=RuleMatch(tags=("paid",))),
        rule(3, SHOP, 3),
    )
    router = Router(rules, [provider(90)])
    found = router.choose(MAIL, 0.0)
    assert (found.rule, list(found.providers)) == (rules[1], [2])
    assert router.choose(MailFacts(SHOP, "", "", "bulk"), 0.0).rule is rules[0]
    assert router.choose(MailFacts(SHOP, "", ""), 0.0).rule is rules[2]


def test_where_no_own_rule_fits_those_for_all_are_asked() -> None:
    assert chosen(rule(1, SHOP, 1, match=RuleMatch(lanes=("bulk",))), rule(2, None, 1)) == [2]


def test_a_disabled_rule_is_not_asked() -> None:
    assert chosen(rule(1, SHOP, 1, enabled=False), rule(2, SHOP, 2)) == [2]


def test_rules_with_the_same_place_stand_by_age() -> None:
    assert chosen(rule(8, SHOP, 1), rule(7, SHOP, 1)) == [7]


@given(
    st.lists(
        st.tuples(st.sampled_from([None, SHOP, OTHER]), st.integers(1, 5), st.booleans()),
        max_size=12,
    )
)
def test_the_order_of_rules_is_that_of_the_table(given: list[tuple[int | None, int, bool]]) -> None:
    """As the store lists them: own ones first, then by place, then by age; others' never."""
    rules = [rule(id, tenant, place, enabled=on) for id, (tenant, place, on) in enumerate(given, 1)]
    router = Router(reversed(rules), [])
    for tenant in (SHOP, OTHER, 99):
        mine = [one for one in rules if one.enabled and one.tenant_id in (tenant, None)]
        wanted = sorted(mine, key=lambda one: (one.tenant_id is None, one.position, one.id))
        assert list(router.rules_for(tenant)) == wanted


def test_many_tenants_with_rules_are_no_burden() -> None:
    """The worker does this every few seconds: it must not compare each tenant with each rule."""
    rules = [rule(id, id, 1) for id in range(1, 20_001)]
    router = Router(rules, [])
    assert [one.id for one in router.rules_for(19_999)] == [19_999]


# --- without a rule


@pytest.mark.req("REQ-QUEUE-S007")
def test_without_a_rule_the_default_order_holds() -> None:
    """SendGrid, SES, Mailgun, SMTP, among those that are there; of one kind the oldest first."""
    kinds = {1: "smtp", 2: "mailgun", 3: "ses", 4: "sendgrid", 5: "sendgrid"}
    found = Router([], [provider(id, kind) for id, kind in kinds.items()]).choose(MAIL, 0.9)
    assert (found.rule, list(found.providers)) == (None, [4, 5, 3, 2, 1])


@pytest.mark.req("REQ-QUEUE-S007")
def test_the_default_order_holds_where_no_rule_fits() -> None:
    router = Router(
        [rule(1, SHOP, 1, match=RuleMatch(lanes=("bulk",)))], [provider(8), provider(9, "ses")]
    )
    assert list(router.choose(MAIL, 0.0).providers) == [9, 8]


def test_what_captures_stands_in_for_nobody() -> None:
    """A mail that failed over to it would count as sent, and never arrive."""
    both = [provider(1, "capture"), provider(2, "smtp")]
    assert list(Router([], both).choose(MAIL, 0.0).providers) == [2]
    off = [provider(1, "capture"), provider(2, "smtp", enabled=False)]
    assert list(Router([], off).choose(MAIL, 0.0).providers) == [2]
    assert list(Router([], both[:1]).choose(MAIL, 0.0).providers) == []
    assert list(Router([], both[:1], captures=True).choose(MAIL, 0.0).providers) == [1]


def test_a_release_only_provider_is_used_where_a_rule_names_it() -> None:
    providers = [provider(1, "smtp", release_only=True), provider(2, "smtp")]
    assert list(Router([], providers).choose(MAIL, 0.0).providers) == [2]
    assert list(Router([rule(1, None, 1, 1)], providers).choose(MAIL, 0.0).providers) == [1]


def test_a_rule_may_name_what_captures() -> None:
    assert chosen(rule(1, SHOP, 1, 5, 4)) == [5, 4]


def test_every_kind_is_in_the_default_order() -> None:
    assert list(KINDS) == ["sendgrid", "ses", "mailgun", "smtp", "capture"]


def test_simple_is_the_choice_for_every_mail_if_there_is_one() -> None:
    router = Router([rule(1, SHOP, 1, enabled=False)], [provider(9)])
    assert router.simple is not None
    assert router.simple == router.choose(MAIL, 0.5)
    assert Router([rule(1, SHOP, 1)], []).simple is None
    assert Router([rule(1, None, 1)], []).simple is None


# --- weights

WEIGHTS = st.lists(st.integers(0, 100), min_size=1, max_size=6).filter(any)
CHANCES = st.floats(0, 1, exclude_max=True)


@given(WEIGHTS, CHANCES)
def test_a_draw_loses_no_provider_and_names_none_twice(weights: list[int], chance: float) -> None:
    providers = tuple(range(1, len(weights) + 1))
    drawn = chosen(rule(1, None, 1, *providers, weights=weights), chance=chance)
    assert sorted(drawn) == list(providers)
    assert weights[drawn[0] - 1] > 0


@given(WEIGHTS)
def test_weighted_draws_have_the_right_frequencies(weights: list[int]) -> None:
    """Over chances that are spread evenly; exactly, up to the borders between providers."""
    providers = tuple(range(1, len(weights) + 1))
    router = Router([rule(1, None, 1, *providers, weights=weights)], [])
    draws = 1000
    first = Counter(router.choose(MAIL, n / draws).providers[0] for n in range(draws))
    for one, weight in zip(providers, weights, strict=True):
        assert first[one] == pytest.approx(draws * weight / sum(weights), abs=1)


@given(WEIGHTS, CHANCES)
def test_the_others_follow_from_heavy_to_light(weights: list[int], chance: float) -> None:
    providers = tuple(range(1, len(weights) + 1))
    rest = chosen(rule(1, None, 1, *providers, weights=weights), chance=chance)[1:]
    assert [weights[one - 1] for one in rest] == sorted(
        (weights[one - 1] for one in rest), reverse=True
    )


def test_without_weights_chance_changes_nothing() -> None:
    assert all(chosen(rule(1, None, 1, 7, 5, 6), chance=n / 10) == [7, 5, 6] for n in range(10))


# --- what may be said of a route


def refused(code: str, field: str, call: Any, *arguments: Any) -> InvalidMail:
    with pytest.raises(InvalidMail) as caught:
        call(*arguments)
    assert (caught.value.code, caught.value.field) == (code, field)
    return caught.value


def test_conditions_are_kept_as_they_are_compared() -> None:
    match = checked_match({
        "sender_domains": ["Shop.EXAMPLE", "*.bücher.example", "shop.example"], "tags": ["a", "b", "a"],
        "lanes": ["bulk", "urgent"], "min_size": 0, "max_size": 0,
    })  # fmt: skip
    assert match.sender_domains == ("shop.example", "*.xn--bcher-kva.example")
    assert (match.tags, match.lanes, match.min_size, match.max_size) == (
        ("a", "b"),
        ("urgent", "bulk"),
        0,
        0,
    )


def test_an_empty_list_is_no_condition() -> None:
    assert checked_match({one: [] for one in CONDITIONS[:6]}) == RuleMatch()
    assert checked_match(dict.fromkeys(CONDITIONS)) == RuleMatch()


def test_conditions_that_are_not_given_stay() -> None:
    before = RuleMatch(tags=("a",), min_size=10)
    assert checked_match({"lanes": ["bulk"]}, before) == RuleMatch(
        tags=("a",), min_size=10, lanes=("bulk",)
    )
    assert checked_match({"tags": None}, before) == RuleMatch(min_size=10)


@pytest.mark.parametrize(
    ("condition", "value", "code"),
    [
        ("sender_domains", ["shop example"], "bad_domain"),
        ("recipient_domains", ["*"], "bad_domain"),
        ("recipient_domains", ["@mail.example"], "bad_domain"),
        ("tags", [""], "bad_value"),
        ("tags", ["a\0b"], "bad_value"),
        ("tags", ["x" * 999], "bad_value"),
        ("tags", [str(n) for n in range(MAX_VALUES + 1)], "too_many"),
        ("kinds", [""], "bad_value"),
        ("classes", [""], "bad_value"),
        ("lanes", ["high"], "unknown_lane"),
        ("min_size", -1, "out_of_range"),
        ("max_size", 2**31, "out_of_range"),
    ],
)
def test_wrong_conditions(condition: str, value: Any, code: str) -> None:
    refused(code, condition, checked_match, {condition: value})


def test_no_mail_is_both_larger_and_smaller() -> None:
    refused("out_of_range", "min_size", checked_match, {"min_size": 11, "max_size": 10})
    refused("out_of_range", "min_size", checked_match, {"max_size": 10}, RuleMatch(min_size=11))
    assert checked_match({"min_size": 10, "max_size": 10}).min_size == 10


KNOWN = {"a": 1, "b": 2, "c": 3}


def test_providers_are_named_once_and_known() -> None:
    assert checked_providers(["c", "a"], KNOWN) == (3, 1)
    refused("missing", "providers", checked_providers, [], KNOWN)
    refused("duplicate", "providers", checked_providers, ["a", "b", "a"], KNOWN)
    assert isinstance(
        refused("unknown_provider", "providers", checked_providers, ["a", "x"], KNOWN), UnknownName
    )
    many = {f"p{n}": n for n in range(MAX_PROVIDERS + 1)}
    refused("too_many", "providers", checked_providers, list(many), many)


def test_weights() -> None:
    assert checked_weights({"b": 30, "a": 70}, ["a", "b", "c"]) == (70, 30, 0)
    assert checked_weights(None, ["a"]) is None
    assert checked_weights({}, ["a"]) is None
    refused("unknown_provider", "weights", checked_weights, {"x": 1}, ["a"])
    refused("out_of_range", "weights", checked_weights, {"a": 0, "b": 0}, ["a", "b"])
    refused("out_of_range", "weights", checked_weights, {"a": -1, "b": 5}, ["a", "b"])
    refused("out_of_range", "weights", checked_weights, {"a": MAX_WEIGHT + 1}, ["a"])


def test_every_lane_may_be_asked_for() -> None:
    assert checked_match({"lanes": LANES}).lanes == LANES
