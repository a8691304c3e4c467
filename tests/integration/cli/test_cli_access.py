"""The command line: tenants' settings, API keys, SMTP logins."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from pillarbox.store.access import digest
from pillarbox.store.migrations import migrate
from tests.integration.cli.cli_helpers import Cli


def shop(cli: Cli) -> Any:
    return cli.json("tenant", "show", "shop")


# --- tenants


def test_a_tenant_is_added_with_settings(cli: Cli) -> None:
    made = cli.json(
        "tenant", "add", "shop", "--sender", "The Shop <hello@shop.example>", "--class", "bulk", "--order", "strict",
        "--max-size", "5MB", "--max-recipients", "10", "--sender-domain", "Shop.example", "--sender-domain",
        "*.bücher.example", "--rate-per-second", "1", "--rate-per-hour", "100", "--rate-per-day", "1000",
        "--keep-content", "2d", "--keep-finished", "30d",
    )  # fmt: skip
    assert made.pop("id") > 1
    assert made.pop("created_at")
    assert made == {
        "name": "shop", "default_sender": "The Shop <hello@shop.example>", "default_class": "bulk", "order": "strict",
        "max_message_bytes": 5_000_000, "max_recipients": 10,
        "sender_domains": ["shop.example", "*.xn--bcher-kva.example"], "rate_per_second": 1, "rate_per_hour": 100,
        "rate_per_day": 1000, "content_retention": 2 * 86400, "finished_retention": 30 * 86400,
    }  # fmt: skip
    shown = cli("tenant", "show", "shop").out
    for word in ("strict", "5MB", "2d", "30d", "*.xn--bcher-kva.example"):
        assert word in shown
    listed = cli("tenant", "list").out
    assert "rate-per-second 1" in listed
    assert "default" in listed


def test_a_change_changes_only_what_is_given(cli: Cli) -> None:
    cli(
        "tenant",
        "add",
        "shop",
        "--rate-per-second",
        "5",
        "--sender-domain",
        "shop.example",
        "--order",
        "strict",
    )
    before = shop(cli)
    assert "changed tenant shop" in cli("tenant", "change", "shop", "--max-recipients", "7").out
    assert shop(cli) == before | {"max_recipients": 7}
    cli(
        "tenant",
        "change",
        "shop",
        "--no-rate-per-second",
        "--no-sender-domain",
        "--no-order",
        "--no-max-recipients",
    )
    assert shop(cli) == before | {"rate_per_second": None, "sender_domains": [], "order": "fifo"}


def test_every_setting_can_be_cleared(cli: Cli) -> None:
    cli("tenant", "add", "shop")
    plain = shop(cli)
    values = {
        "--sender": "a@b.example", "--class": "bulk", "--order": "parallel", "--max-size": "1MiB",
        "--max-recipients": "2", "--sender-domain": "b.example", "--rate-per-second": "3", "--rate-per-hour": "4",
        "--rate-per-day": "5", "--keep-content": "6d", "--keep-finished": "7d",
    }  # fmt: skip
    for flag, value in values.items():
        cli("tenant", "change", "shop", flag, value)
        assert shop(cli) != plain, flag
        cli("tenant", "change", "shop", f"--no-{flag[2:]}")
        assert shop(cli) == plain, flag


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("--rate-per-second", "0"), 2, "--rate-per-second"),
        (("--rate-per-day", "-5"), 2, "--rate-per-day"),
        (("--rate-per-hour", "many"), 2, "--rate-per-hour"),
        (("--max-recipients", "0"), 2, "--max-recipients"),
        (("--max-size", "10"), 2, "at least"),
        (("--order", "random"), 2, "fifo"),
        (("--keep-content", "0s"), 2, "duration"),
        (("--keep-finished", "soon"), 2, "duration"),
        (("--sender", "nobody"), 2, "legal"),
        (("--sender-domain", "shop example"), 1, "*.example.com"),
        (("--sender-domain", "*"), 1, "not a domain"),
        (("--class", "nothing"), 1, "class list"),
        (("--sender", "a@x.example", "--sender-domain", "y.example"), 1, "sender domains"),
        (("--rate-per-second", "5", "--no-rate-per-second"), 2, "not both"),
        ((), 2, "nothing to change"),
    ],
)
def test_a_wrong_change_says_so_and_changes_nothing(
    cli: Cli, arguments: tuple[str, ...], code: int, word: str
) -> None:
    cli("tenant", "add", "shop", "--rate-per-second", "5")
    before = shop(cli)
    assert word in cli("tenant", "change", "shop", *arguments, code=code).err
    assert shop(cli) == before


def test_a_tenant_that_is_not_there(cli: Cli) -> None:
    for words in (("tenant", "show", "nobody"), ("tenant", "change", "nobody", "--order", "strict"),
                  ("key", "add", "--tenant", "nobody", "--name", "a"), ("key", "list", "--tenant", "nobody"),
                  ("key", "show", "a", "--tenant", "nobody"), ("smtp-login", "list", "--tenant", "nobody"),
                  ("smtp-login", "add", "--tenant", "nobody", "--name", "a")):  # fmt: skip
        assert "there is no tenant 'nobody'" in cli(*words, code=1).err


# --- keys


def test_a_key_is_shown_once(cli: Cli) -> None:
    made = cli("key", "add", "--name", "website")
    token = made.out.strip()
    assert token.startswith("pbx_")
    assert "only once" in made.err
    assert token not in made.err
    [(kept,)] = cli.sql("SELECT hash FROM pillarbox.api_keys")
    assert kept == digest(token)
    beginning = token.rpartition("_")[0]
    for words in (
        ("key", "list"),
        ("key", "list", "--json"),
        ("key", "show", beginning),
        ("key", "show", "website"),
    ):
        told = cli(*words).out
        assert beginning in told
        assert token not in told


def test_a_key_has_what_was_asked_for(cli: Cli) -> None:
    cli("tenant", "add", "shop")
    made = cli.json(
        "key", "add", "--tenant", "shop", "--name", "support", "--scope", "read", "--scope", "manage",
        "--sender-domain", "A.example", "--recipient-domain", "*.b.example", "--expires", "90d",
    )  # fmt: skip
    assert made.pop("key").startswith(made["prefix"] + "_")
    assert (made["tenant"], made["name"], made["scopes"]) == ("shop", "support", ["read", "manage"])
    assert (made["sender_domains"], made["recipient_domains"]) == (["a.example"], ["*.b.example"])
    assert made["state"] == "in force"
    assert made["expires_at"]
    assert cli.json("key", "list", "--tenant", "shop") == [made]
    assert cli.json("key", "list", "--tenant", "default") == []
    assert "read, manage" in cli("key", "show", "support", "--tenant", "shop").out


def test_an_administrators_key(cli: Cli) -> None:
    made = cli.json("key", "add", "--admin", "--name", "operations")
    assert (made["tenant"], made["scopes"]) == (None, ["admin"])
    assert "(administrators)" in cli("key", "list").out
    assert "none: belongs to the administrators" in cli("key", "show", "operations").out


def child_of(cli: Cli, parent: str, name: str, expires: str = "NULL") -> None:
    cli.sql(
        "INSERT INTO pillarbox.api_keys (tenant_id, name, prefix, hash, scopes, parent_id, made_by, expires_at)"
        f" SELECT 1, %s, left(md5(%s), 10), sha256('x'), '{{send}}', id, 'key', {expires}"
        " FROM pillarbox.api_keys WHERE 'pbx_' || prefix = %s",
        name, name, parent,
    )  # fmt: skip


def test_a_key_is_revoked_with_what_it_made(cli: Cli) -> None:
    for keep in (False, True):
        made = cli.json("key", "add", "--name", "manager", "--scope", "manage")
        child_of(cli, made["prefix"], f"child-{keep}")
        question = cli("key", "revoke", made["prefix"], code=1, stdin="n\n")
        assert "with 1 key and 0 SMTP logins made by it" in question.out + question.err
        arguments = ["--keep-descendants"] if keep else []
        told = cli.json("key", "revoke", made["prefix"], "--yes", *arguments)
        assert told["descendants"] == {"keys": 0 if keep else 1, "logins": 0}
        assert [one["name"] for one in cli.json("key", "list")] == (["child-True"] if keep else [])
    assert "the key pbx_" in cli("key", "show", "child-True").out


def test_what_exceeds_its_maker_is_listed(cli: Cli) -> None:
    assert "no key or login exceeds" in cli("key", "list", "--exceeding").err
    made = cli.json("key", "add", "--name", "manager", "--scope", "manage", "--expires", "5d")
    child_of(cli, made["prefix"], "lasting")
    [one] = cli.json("key", "list", "--exceeding")
    assert (one["name"], one["fields"], one["certain"]) == (
        "lasting",
        ["scopes", "expires_at"],
        True,
    )
    assert "scopes, expires_at" in cli("key", "list", "--exceeding").out
    assert cli.json("key", "list", "--exceeding", "--tenant", "default") == [one]


def test_migrate_tells_what_may_exceed_its_maker(empty_database_url: str) -> None:
    asyncio.run(migrate_to(empty_database_url, 13))
    cli = Cli(empty_database_url)
    for name, scope, expires in (
        ("manager", "manage", "now() + interval '5 days'"),
        ("lasting", "send", "NULL"),
    ):
        cli.sql(
            "INSERT INTO pillarbox.api_keys (tenant_id, name, prefix, hash, scopes, expires_at)"
            f" VALUES (1, %s, left(md5(%s), 10), sha256('x'), ARRAY[%s], {expires})",
            name, name, scope,
        )  # fmt: skip
    assert "1 credential may exceed the key that made it" in cli("migrate").err
    assert "exceed" not in cli("migrate").err
    assert [one["name"] for one in cli.json("key", "list", "--exceeding")] == ["lasting"]
    assert len(cli.json("key", "list")) == 2


async def migrate_to(url: str, version: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        await migrate(connection, to=version)
    finally:
        await connection.close()


def test_a_key_is_revoked(cli: Cli) -> None:
    made = cli.json("key", "add", "--name", "website")
    cli("key", "revoke", made["prefix"], code=1, stdin="n\n")
    assert cli.json("key", "list")
    assert "revoked website" in cli("key", "revoke", made["prefix"], "--yes").out
    assert cli.json("key", "list") == []
    assert [one["state"] for one in cli.json("key", "list", "--all")] == ["revoked"]
    assert "was revoked" in cli("key", "revoke", made["prefix"], "--yes", code=1).err
    assert (
        "the key 'website' does not exist" in cli("key", "revoke", "website", "--yes", code=1).err
    )
    cli("key", "add", "--name", "website")


def test_a_name_in_several_tenants_needs_more(cli: Cli) -> None:
    cli("tenant", "add", "shop")
    cli("key", "add", "--name", "website")
    cli("key", "add", "--name", "website", "--tenant", "shop")
    assert "--tenant" in cli("key", "revoke", "website", "--yes", code=1).err
    cli("key", "revoke", "website", "--tenant", "shop", "--yes")
    assert [one["tenant"] for one in cli.json("key", "list")] == ["default"]


def test_a_whole_key_is_not_repeated(cli: Cli) -> None:
    token = "pbx_zzzzzzzzzz_" + "s" * 43
    told = cli("key", "show", token, code=1).err
    assert "pbx_zzzzzzzzzz" in told
    assert "ssss" not in told


def test_an_expired_key_says_so(cli: Cli) -> None:
    cli("key", "add", "--name", "website")
    cli.sql("UPDATE pillarbox.api_keys SET expires_at = now()")
    assert "expired" in cli("key", "list").out


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("--name", "a b"), 2, "a name is"),
        ((), 2, "--name"),
        (("--name", "a", "--scope", "all"), 2, "send"),
        (("--name", "a", "--scope", "admin"), 1, "send, read and manage"),
        (("--name", "a", "--admin", "--tenant", "default"), 2, "no --tenant"),
        (("--name", "a", "--admin", "--scope", "send"), 2, "no --scope"),
        (("--name", "a", "--expires", "2001-01-01"), 2, "in the past"),
        (("--name", "a", "--expires", "never"), 2, "duration"),
        (("--name", "a", "--sender-domain", "x@y.example"), 1, "not a domain"),
        (("--name", "a", "--recipient-domain", ""), 1, "not a domain"),
    ],
)
def test_a_wrong_key_is_refused(cli: Cli, arguments: tuple[str, ...], code: int, word: str) -> None:
    assert word in cli("key", "add", *arguments, code=code).err
    assert cli.json("key", "list", "--all") == []


def test_a_name_is_taken(cli: Cli) -> None:
    cli("key", "add", "--name", "website")
    assert "already" in cli("key", "add", "--name", "website", code=1).err
    cli("smtp-login", "add", "--name", "printer")
    assert "already" in cli("smtp-login", "add", "--name", "printer", code=1).err


# --- logins


def test_the_life_of_a_login(cli: Cli) -> None:
    cli("tenant", "add", "shop")
    made = cli.json(
        "smtp-login",
        "add",
        "--tenant",
        "shop",
        "--name",
        "printer",
        "--sender-domain",
        "shop.example",
    )
    password = made.pop("password")
    assert (made["username"], made["sender_domains"]) == ("printer@shop", ["shop.example"])
    assert cli.json("smtp-login", "list") == [made]
    told = cli("smtp-login", "list", "--tenant", "shop").out
    assert "printer@shop" in told
    assert password not in told
    assert "revoked printer@shop" in cli("smtp-login", "revoke", "printer@shop", "--yes").out
    assert "in force" in cli("smtp-login", "revoke", "printer@shop", "--yes", code=1).err
    assert cli.json("smtp-login", "list") == []
    assert [one["state"] for one in cli.json("smtp-login", "list", "--all")] == ["revoked"]


def test_a_login_for_people(cli: Cli) -> None:
    made = cli("smtp-login", "add", "--name", "printer")
    assert "printer@default" in made.out
    assert "only once" in made.err
