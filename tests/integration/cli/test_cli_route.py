"""The command line: routes, why mails take which, how providers are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.cli.cli_helpers import Cli


@pytest.fixture
def cli(database_url: str) -> Cli:
    """With a tenant `shop`, and the providers a, b and keep."""
    cli = Cli(database_url)
    cli("tenant", "add", "shop", "--sender", "hello@shop.example")
    for name in "ab":
        cli("provider", "add", "smtp", name, "--host", "mail.example", "--tls", "none")
    cli("provider", "add", "capture", "keep")
    return cli


def order(cli: Cli, *arguments: str) -> list[str]:
    return [one["name"] for one in cli.json("route", "list", *arguments)]


# --- adding, showing, changing


def test_a_route_is_added_with_conditions(cli: Cli) -> None:
    made = cli.json(
        "route", "add", "news", "--tenant", "shop", "--sender-domain", "Shop.example", "--recipient-domain",
        "*.mail.example", "--recipient-domain", "mail.example", "--tag", "x", "--tag", "y", "--lane", "bulk", "--class",
        "bulk", "--kind", "newsletter", "--min-size", "1KiB", "--max-size", "5MB", "--provider", "b", "--provider", "a",
    )  # fmt: skip
    assert made.pop("id")
    assert made.pop("created_at")
    assert made == {
        "name": "news", "tenant": "shop", "place": 1, "enabled": True, "sender_domains": ["shop.example"],
        "recipient_domains": ["*.mail.example", "mail.example"], "tags": ["x", "y"], "lanes": ["bulk"],
        "classes": ["bulk"], "kinds": ["newsletter"], "min_size": 1024, "max_size": 5_000_000,
        "providers": [
            {"name": "b", "enabled": True, "removed": False, "weight": None},
            {"name": "a", "enabled": True, "removed": False, "weight": None},
        ],
    }  # fmt: skip
    shown = cli("route", "show", "news", "--tenant", "shop").out
    for word in ("*.mail.example, mail.example", "newsletter", "5MB", "b → a"):
        assert word in shown
    listed = cli("route", "list").out
    assert "lane bulk" in listed
    assert "shop" in listed


def test_a_route_that_is_never_asked_is_told_of(cli: Cli) -> None:
    cli("route", "add", "own", "--tenant", "shop", "--provider", "a")
    shadowed = ("--tenant", "shop", "--tag", "x", "--provider", "b")
    assert (
        "route move late --tenant shop --before own" in cli("route", "add", "late", *shadowed).err
    )
    assert not cli("route", "add", "early", *shadowed, "--before", "own").err
    assert not cli("route", "add", "all", "--tag", "x", "--provider", "b").err
    cli("route", "disable", "own", "--tenant", "shop")
    assert not cli("route", "add", "later", *shadowed).err


def test_weights(cli: Cli) -> None:
    cli(
        "route",
        "add",
        "split",
        "--provider",
        "a",
        "--provider",
        "b",
        "--weight",
        "a=70",
        "--weight",
        "b=30",
    )
    assert "a 70, b 30" in cli("route", "show", "split").out
    told = cli("route", "explain", "--to", "mail.example").out
    assert "70%" in told
    cli("route", "change", "split", "--no-weight")
    assert "a → b" in cli("route", "list").out


def test_routes_stand_in_order_and_move(cli: Cli) -> None:
    for name in "123":
        cli("route", "add", name, "--provider", "a")
    cli("route", "add", "0", "--provider", "a", "--before", "1")
    cli("route", "add", "first", "--provider", "a", "--place", "1")
    assert order(cli) == ["first", "0", "1", "2", "3"]
    assert "3 is at place 1" in cli("route", "move", "3", "--place", "1").out
    cli("route", "move", "first")
    cli("route", "move", "2", "--before", "0")
    assert order(cli) == ["3", "2", "0", "1", "first"]


def test_a_list_for_a_tenant(cli: Cli) -> None:
    cli("tenant", "add", "lab")
    cli("route", "add", "all", "--provider", "a")
    for tenant in ("shop", "lab"):
        cli("route", "add", f"of-{tenant}", "--tenant", tenant, "--provider", "a")
    assert order(cli, "--tenant", "shop") == ["of-shop", "all"]
    assert order(cli) == ["of-shop", "of-lab", "all"]
    assert "no tenant" in cli("route", "list", "--tenant", "nobody", code=1).err


def test_a_change_changes_only_what_is_given(cli: Cli) -> None:
    cli("route", "add", "r", "--tag", "t", "--min-size", "0", "--provider", "a")
    before = cli.json("route", "show", "r")
    assert before["min_size"] == 0
    assert "changed route r" in cli("route", "change", "r", "--lane", "urgent", "--no-tag").out
    assert cli.json("route", "show", "r") == before | {"lanes": ["urgent"], "tags": None}
    cli("route", "change", "r", "--provider", "b", "--provider", "a", "--weight", "b=1")
    shown = cli.json("route", "show", "r")
    assert [(one["name"], one["weight"]) for one in shown["providers"]] == [("b", 1), ("a", 0)]


def test_every_condition_can_be_cleared(cli: Cli) -> None:
    cli("route", "add", "r", "--provider", "a")
    plain = cli.json("route", "show", "r")
    values = {
        "--sender-domain": "x.example", "--recipient-domain": "y.example", "--tag": "t", "--lane": "bulk",
        "--class": "bulk", "--kind": "k", "--min-size": "1", "--max-size": "9",
    }  # fmt: skip
    for flag, value in values.items():
        cli("route", "change", "r", flag, value)
        assert cli.json("route", "show", "r") != plain, flag
        cli("route", "change", "r", f"--no-{flag[2:]}")
        assert cli.json("route", "show", "r") == plain, flag


def test_routes_are_switched_and_removed(cli: Cli) -> None:
    cli("route", "add", "r", "--provider", "b")
    assert "disabled r" in cli("route", "disable", "r").out
    assert cli.json("route", "show", "r")["enabled"] is False
    assert cli.json("route", "explain", "--to", "x.example")[0]["rule"] is None
    assert cli.json("route", "enable", "r") == {"name": "r", "enabled": True}
    cli("route", "remove", "r", stdin="n\n", code=1)
    assert order(cli) == ["r"]
    assert "removed r" in cli("route", "remove", "r", "--yes").out
    assert order(cli) == []
    assert "default order" in cli("route", "list").err


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("--provider", "nobody"), 1, "see: pillarbox provider list"),
        (("--provider", "a", "--provider", "a"), 1, "named twice"),
        (("--provider", "a", "--weight", "a=0"), 1, "more than 0"),
        (("--provider", "a", "--weight", "b=1"), 1, "not a provider of this route"),
        (("--provider", "a", "--weight", "a"), 2, "PROVIDER=N"),
        (("--provider", "a", "--weight", "a=-1"), 2, "PROVIDER=N"),
        (("--provider", "a", "--weight", "a=1", "--weight", "a=2"), 2, "two weights"),
        (("--provider", "a", "--lane", "fast"), 2, "urgent, normal, bulk"),
        (("--provider", "a", "--class", "nothing"), 1, "class list"),
        (("--provider", "a", "--sender-domain", "*"), 1, "not a domain"),
        (("--provider", "a", "--min-size", "2", "--max-size", "1"), 1, "no mail would match"),
        (("--provider", "a", "--min-size", "large"), 2, "a size such as"),
        (("--provider", "a", "--place", "3"), 1, "must be 1 to 2"),
        (("--provider", "a", "--before", "x"), 1, "no other route 'x'"),
        (("--provider", "a", "--tenant", "nobody"), 1, "no tenant"),
        ((), 2, "--provider"),
    ],
)
def test_a_wrong_route_says_so_and_changes_nothing(
    cli: Cli, arguments: tuple[str, ...], code: int, word: str
) -> None:
    cli("route", "add", "there", "--provider", "a")
    assert word in cli("route", "add", "new", *arguments, code=code).err
    assert order(cli) == ["there"]


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ((), 2, "nothing to change"),
        (("--tag", "t", "--no-tag"), 2, "not both"),
        (("--weight", "a=1", "--no-weight"), 2, "not both"),
        (("--provider", "nobody"), 1, "no provider 'nobody'"),
    ],
)
def test_a_wrong_change_says_so(cli: Cli, arguments: tuple[str, ...], code: int, word: str) -> None:
    cli("route", "add", "r", "--provider", "a")
    assert word in cli("route", "change", "r", *arguments, code=code).err


def test_a_route_that_is_not_there(cli: Cli) -> None:
    cli("route", "add", "own", "--tenant", "shop", "--provider", "a")
    for words in (
        ("show",),
        ("move",),
        ("enable",),
        ("disable",),
        ("remove", "--yes"),
        ("change", "--tag", "t"),
    ):
        command, *more = words
        assert "give --tenant" in cli("route", command, "own", *more, code=1).err
        assert (
            "see `pillarbox route list`"
            in cli("route", command, "x", "--tenant", "shop", *more, code=1).err
        )
    assert (
        "already" in cli("route", "add", "own", "--tenant", "shop", "--provider", "a", code=1).err
    )


def test_removing_a_provider_that_routes_name_warns(cli: Cli) -> None:
    cli("route", "add", "r", "--provider", "a", "--provider", "b")
    cli("route", "add", "own", "--tenant", "shop", "--provider", "a")
    said = cli("provider", "remove", "a", "--yes").err
    assert "own (shop), r (all tenants)" in said
    assert "(removed)" in cli("route", "show", "r").out
    told = cli.json("route", "explain", "--to", "x.example")[0]
    assert (told["provider"], told["providers"][0]["notes"][0]["why"]) == ("b", "removed")
    assert cli("provider", "remove", "keep", "--yes").err == ""


# --- explaining


def explained(cli: Cli, *arguments: str) -> Any:
    [told] = cli.json("route", "explain", *arguments)
    return told


@pytest.mark.req("REQ-QUEUE-E002")
def test_which_rule_which_providers_and_why(cli: Cli) -> None:
    cli("route", "add", "resets", "--lane", "urgent", "--provider", "b")
    cli(
        "route",
        "add",
        "news",
        "--tenant",
        "shop",
        "--class",
        "bulk",
        "--tag",
        "n",
        "--provider",
        "a",
        "--provider",
        "b",
    )
    cli("provider", "disable", "a")
    told = explained(cli, "--tenant", "shop", "--to", "ada@Mail.example", "--lane", "urgent")
    assert told["rules"] == [
        {
            "name": "news",
            "for": "tenant",
            "fits": False,
            "misses": "tags",
            "has": "none",
            "wants": "n",
        },
        {"name": "resets", "for": "all", "fits": True, "misses": None, "has": None, "wants": None},
    ]
    assert (told["rule"], told["provider"], told["fate"], told["decided_by"]) == (
        "resets",
        "b",
        "leaves",
        "rule",
    )
    assert (told["sender_domain"], told["recipient_domain"], told["class"]) == (
        "shop.example", "mail.example", "transactional",
    )  # fmt: skip
    words = ("explain", "--tenant", "shop", "--to", "x.example", "--class", "bulk", "--tag", "n")
    told = explained(cli, *words[1:])
    assert [(one["name"], one["use"]) for one in told["providers"]] == [
        ("a", "skipped"),
        ("b", "used"),
    ]
    shown = cli("route", *words).out
    assert "is disabled" in shown
    assert "it leaves through b" in shown


@pytest.mark.req("REQ-QUEUE-S007")
def test_without_routes_the_default_order(cli: Cli) -> None:
    told = explained(cli, "--to", "x.example")
    assert (told["decided_by"], [one["name"] for one in told["providers"]]) == (
        "default_order",
        ["a", "b"],
    )
    assert "no routes: the default order holds" in cli("route", "explain", "--to", "x.example").out
    for name in "ab":
        cli("provider", "disable", name)
    told = explained(cli, "--to", "x.example")
    assert (told["provider"], [one["name"] for one in told["providers"]]) == (
        None,
        ["a", "b"],
    )  # nothing is captured


def test_a_mail_that_must_wait_says_so(cli: Cli) -> None:
    cli("route", "add", "r", "--provider", "a")
    cli.sql(
        "INSERT INTO pillarbox.provider_health (provider_id, state, reason, retry_at)"
        " VALUES (1, 'open', 'credential', '2100-01-01Z')"
    )
    shown = cli("route", "explain", "--to", "x.example").out
    assert "its breaker is open after credential, until 2100-01-01 00:00:00Z" in shown
    assert "it waits" in shown


def test_a_message_is_explained(cli: Cli) -> None:
    cli("route", "add", "far", "--recipient-domain", "far.example", "--provider", "b")
    id = cli.send("--tag", "t", "--to", "b@far.example", to="a@near.example")
    told = cli.json("route", "explain", id[:13])
    assert [(one["deliveries"], one["rule"], one["tags"]) for one in told] == [
        ([0], None, ["t"]),
        ([1], "far", ["t"]),
    ]
    shown = cli("route", "explain", id).out
    assert "deliveries 1" in shown
    assert "to far.example" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ((), 2, "--to"),
        (("0198c5a27d7e", "--to", "x.example"), 2, "--to"),
        (("0198c5a27d7e",), 1, "no message"),
        (("--to", "x.example", "--tenant", "nobody"), 1, "no tenant"),
        (("--to", "nobody@"), 1, "not an address or a domain"),
        (("--to", "*.x.example"), 1, "not an address or a domain"),
        (("--to", "x.example", "--from", "two words"), 1, "not an address or a domain"),
        (("--to", "x.example", "--lane", "fast"), 2, "urgent"),
        (("--to", "x.example", "--class", "none"), 1, "there is no class 'none'"),
    ],
)
def test_a_wrong_question(cli: Cli, arguments: tuple[str, ...], code: int, word: str) -> None:
    assert word in cli("route", "explain", *arguments, code=code).err


def test_nothing_of_a_hostile_mail_moves_the_cursor(cli: Cli) -> None:
    shown = cli("route", "explain", "--to", "x.example", "--kind", "\x1b[2J", "--tag", "a\nb").out
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown


# --- how providers are


def test_providers_that_are_well(cli: Cli) -> None:
    told = cli.json("provider", "health")
    assert [(one["name"], one["state"], one["budget"]) for one in told] == [
        (name, "closed", None) for name in ("a", "b", "keep")
    ]
    assert cli("provider", "health").out.count("closed") == 3
    assert "nothing" in cli("provider", "health", "--events").err
    assert "no provider" in cli("provider", "health", "nobody", code=1).err


def test_providers_that_are_not(cli: Cli) -> None:
    cli.sql(
        "INSERT INTO pillarbox.provider_health (provider_id, state, reason, since, retry_at, opened, checked_at,"
        " check_ok, check_said, held_until) VALUES (1, 'open', 'timeout', '2030-01-01Z', '2100-01-01Z', 2, now(),"
        " false, 'no answer', '2100-01-01Z')"
    )
    cli.sql(
        "UPDATE pillarbox.providers SET price_per_thousand = 1, budget_per_month = 2 WHERE id = 1"
    )
    cli.sql(
        "INSERT INTO pillarbox.provider_spending SELECT 1, date_trunc('month', now() AT TIME ZONE 'UTC'), 1700"
    )
    [told] = cli.json("provider", "health", "a")
    assert (told["state"], told["reason"], told["opened"], told["check_said"]) == (
        "open",
        "timeout",
        2,
        "no answer",
    )
    assert told["retry_at"] == "2100-01-01T00:00:00.000Z"
    assert (told["budget"]["used"], told["budget"]["spent"]) == (0.85, 1.7)
    for shown in (cli("provider", "health").out, cli("provider", "health", "a").out):
        for word in ("open", "timeout", "no answer", "████████░░ 85% (1.70 of 2.00)"):
            assert word in shown


def test_what_became_of_providers(cli: Cli) -> None:
    for provider, kind in ((1, "opened"), (2, "check_failed"), (1, "closed")):
        cli.sql(
            "INSERT INTO pillarbox.provider_events (provider_id, kind, data) VALUES (%s, %s, %s)",
            provider, kind, json.dumps({"reason": "tls"}),
        )  # fmt: skip
    told = cli.json("provider", "health", "--events")
    assert [(one["provider"], one["kind"]) for one in told] == [
        ("a", "closed"),
        ("b", "check_failed"),
        ("a", "opened"),
    ]
    assert [one["kind"] for one in cli.json("provider", "health", "a", "--events", "-n", "1")] == [
        "closed"
    ]
    shown = cli("provider", "health", "--events").out
    assert "check failed" in shown
    assert "reason=tls" in shown
