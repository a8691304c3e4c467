"""From tokens to mails: which, when, once, in which words; and what cannot be mailed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import pytest

from pillarbox.app import build_collector
from pillarbox.errors import SchemaMismatch, SecretError, StoreError
from pillarbox.lifecycle import services
from pillarbox.lifecycle.batch_policy import CollectBatch
from pillarbox.lifecycle.signing import check_expiry, verify
from pillarbox.store import tenants
from pillarbox.store.database import Database
from tests.harness import eventually, opened
from tests.integration.api.api_helpers import api_of
from tests.integration.cli.cli_helpers import Cli, process
from tests.integration.lifecycle.collector_helpers import (
    accounts,
    activate,
    collecting,
    collector,
    issue,
    mailed,
    outcomes,
    until,
)
from tests.integration.lifecycle.lifecycle_helpers import KEY, install

ALL = CollectBatch(1000, "test")
KEYS = [bytes.fromhex(KEY)]


@pytest.fixture(autouse=True)
async def _installed(database: Database) -> None:
    await install(database)


async def mail_of(database: Database, token: int) -> Any:
    """The mail of a token, whole."""
    row = await database.fetchrow(
        """SELECT m.*, c.text, c.html, d.state::text AS state, d.recipient FROM lifecycle.collected l
             JOIN pillarbox.messages m ON m.id = l.message_id JOIN pillarbox.deliveries d ON d.message_id = m.id
             LEFT JOIN pillarbox.contents c ON c.message_id = m.id
           WHERE l.token = $1""",
        token,
    )
    assert row is not None
    return row


async def the_token(database: Database, action: str = "activation") -> Any:
    return await database.fetchrow(
        "SELECT * FROM lifecycle.tokens WHERE action::text = $1 ORDER BY id DESC LIMIT 1", action
    )


def link_in(text: str) -> tuple[str, str, str]:
    """Path, token and expiry of the link in a text."""
    [found] = set(re.findall(r"https://hub\.example/\S+token=\S+", text))
    parts = urlsplit(found)
    fields = parse_qs(parts.query)
    return parts.path, fields["token"][0], fields["expires"][0]


# --- the mail


async def test_an_account_gets_its_link(database: Database, database_url: str) -> None:
    await accounts(database, 1, name="Mia Okafor")
    token = await the_token(database)
    async with collector(database_url) as (_, one):
        assert await one.collect(ALL) == 1
    mail = await mail_of(database, token["id"])
    path, signed, expiry = link_in(mail["text"])
    assert path == "/activate"
    assert verify(signed, "activation", None, KEYS) == token["secret"]
    assert check_expiry(expiry, signed, KEYS, token["created_at"]) == token["expires_at"]
    assert mail["html"].count("/activate?token=") >= 1
    assert "15 minutes" in mail["text"]
    assert (mail["class"], mail["kind"], mail["lane"], mail["state"]) == (
        "lifecycle",
        "hub_activation",
        1,
        "queued",
    )
    assert mail["recipient"] == "u1@mail.example"
    assert int(mail["expires_at"].timestamp()) == token["expires_at"]
    assert json.loads(mail["metadata"]) == {"token": token["id"], "account": token["account"]}


async def test_recovery_is_urgent_and_has_its_code(database: Database, database_url: str) -> None:
    [account] = await accounts(database, 1, portal="org", locale="de-AT")
    await activate(database, account)
    number = await issue(database, account, "password_recovery")
    async with collector(database_url) as (_, one):
        await one.collect(ALL)
    token, mail = await the_token(database, "password_recovery"), await mail_of(database, number)
    path, signed, _ = link_in(mail["text"])
    assert path == "/recover"
    assert verify(signed, "password_recovery", token["code"], KEYS) == token["secret"]
    assert token["code"] in mail["text"]
    assert token["code"] in mail["html"]
    assert (mail["kind"], mail["lane"]) == ("org_forgot_password", 0)
    assert "Passwort" in mail["subject"], "de-AT is German"


async def test_a_sign_in_code_is_made_when_it_is_mailed(
    database: Database, database_url: str
) -> None:
    [account] = await accounts(database, 1)
    await activate(database, account)
    number = await issue(database, account, "sign_in_code")
    assert (await the_token(database, "sign_in_code"))["code"] is None
    async with collector(database_url) as (app, one):
        await one.collect(ALL)
        mail = await mail_of(database, number)
        [code] = set(re.findall(r"\b\d{6}\b", mail["text"]))
        assert mail["lane"] == 0
        assert (await app.lifecycle.sign_in.verify(None, number, code)).id == account
    assert code.encode().hex() not in str(
        await database.fetch("SELECT * FROM pillarbox.challenges")
    )


async def test_a_notice_has_no_link_and_does_not_expire(
    database: Database, database_url: str
) -> None:
    [account] = await accounts(database, 1)
    await activate(database, account)
    number = await issue(database, account, "password_changed")
    async with collector(database_url) as (_, one):
        await one.collect(ALL)
    mail = await mail_of(database, number)
    assert "token=" not in mail["text"] + mail["html"]
    assert mail["expires_at"] is None


async def test_an_action_of_ones_own_is_a_row_and_a_template(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "hub" / "close_account"
    folder.mkdir(parents=True)
    (folder / "en.subject").write_text("Close {{ account.login }}?")
    (folder / "en.txt").write_text("{{ link }} {{ why }} {{ plan }}")
    action = "INSERT INTO lifecycle.actions (name, path, lane) VALUES ('close_account', '/close', 'bulk')"
    await database.execute(action)
    [account] = await accounts(database, 1, data='{"why": "account", "plan": "gold"}')
    await activate(database, account)
    number = await issue(database, account, "close_account", '{"why": "token"}')
    async with collector(database_url, template_dirs=tmp_path) as (_, one):
        await one.collect(ALL)
    mail = await mail_of(database, number)
    assert (mail["subject"], mail["kind"], mail["lane"]) == ("Close u1?", "hub_close_account", 2)
    assert mail["text"].endswith(" token gold"), "the token's data come before the account's"
    assert link_in(mail["text"])[0] == "/close"


async def test_the_mail_is_the_tenants(database: Database, database_url: str) -> None:
    await tenants.add_tenant(database, "people", default_sender="People <hi@people.example>")
    await accounts(database, 1)
    async with collector(
        database_url, lifecycle_tenant="people", lifecycle_sender="x@people.example"
    ) as (_, one):
        await one.collect(ALL)
    mail = await mail_of(database, (await the_token(database))["id"])
    assert mail["sender"] == "x@people.example"
    name = await database.fetchval(
        "SELECT name FROM pillarbox.tenants WHERE id = $1", mail["tenant_id"]
    )
    assert name == "people"


# --- which, and when


async def test_twenty_five_accounts_in_one_transaction(
    database: Database, database_url: str
) -> None:
    """One notification for all of them, and more than two batches."""
    async with collecting(database_url, lifecycle_batch_limit=10, lifecycle_batch_timeout="200ms"):
        await eventually(lambda: listening(database))
        await accounts(database, 25)
        await until(database, mailed=25)
    assert sorted((await mailed(database)).values()) == [1] * 25
    assert await database.fetchval("SELECT last_seq FROM lifecycle.jobs") == 25


async def listening(database: Database) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    return bool(await database.fetchval(query))


async def test_commits_out_of_order(database: Database, database_url: str) -> None:
    """A token with a lower number that commits later is not passed over."""
    slow = await asyncpg.connect(database_url)
    try:
        transaction = slow.transaction()
        await transaction.start()
        await slow.execute(
            "INSERT INTO lifecycle.accounts (email, login) VALUES ('slow@mail.example', 'slow')"
        )
        async with collecting(database_url):
            await accounts(database, 3)
            await until(database, mailed=3)
            await transaction.commit()
            await until(database, mailed=4)
    finally:
        await slow.close()
    assert (await mailed(database))["slow@mail.example"] == 1
    assert await database.fetchval("SELECT min(token) FROM lifecycle.collected") == 1


async def test_nothing_depends_on_a_notification(database: Database, database_url: str) -> None:
    async with collecting(database_url, notify="false", worker_poll_interval="100ms"):
        await accounts(database, 5)
        await until(database, mailed=5)


async def test_what_waited_while_nobody_collected_leaves_at_the_start(
    database: Database, database_url: str
) -> None:
    await accounts(database, 12)
    async with collecting(database_url, lifecycle_batch_limit=5, lifecycle_batch_timeout="1h"):
        await until(database, mailed=12)


async def test_collecting_begins_when_the_schema_is_installed(
    database: Database, database_url: str
) -> None:
    async with collecting(database_url, lifecycle_schema="people", worker_poll_interval="50ms"):
        await install(database, "people")
        await database.execute(
            "INSERT INTO people.accounts (email, login) VALUES ('a@mail.example', 'a')"
        )

        async def there() -> bool:
            return bool(await mailed(database))

        await eventually(there)


async def test_an_account_that_becomes_eligible_later(
    database: Database, database_url: str
) -> None:
    [account] = await accounts(database, 1)
    await activate(database, account)
    await database.execute(
        "UPDATE lifecycle.accounts SET status = 'suspended' WHERE id = $1", account
    )
    await issue(database, account, "password_recovery")
    async with collecting(database_url):
        await until(database, held=1)
        assert not await mailed(database)
        await database.execute(
            "UPDATE lifecycle.accounts SET status = 'active' WHERE id = $1", account
        )
        await until(database, mailed=1)


async def test_expired_consumed_and_superseded_ones_are_marked(
    database: Database, database_url: str
) -> None:
    first, second, third, _fourth = await accounts(database, 4)
    await database.execute("UPDATE lifecycle.tokens SET expires_at = 1 WHERE account = $1", first)
    await database.execute(
        "UPDATE lifecycle.tokens SET consumed_at = created_at WHERE account = $1", second
    )
    await issue(database, third, "activation")
    async with collector(database_url) as (app, one):
        assert await one.collect(ALL) == 5
        rendered = app.metrics.render().decode()
    assert await outcomes(database) == {"expired": 1, "consumed": 1, "superseded": 1, "mailed": 2}
    assert 'pillarbox_collected_total{outcome="mailed"} 2.0' in rendered
    assert "pillarbox_collect_batch_seconds_count 1.0" in rendered
    assert set(await mailed(database)) == {"u3@mail.example", "u4@mail.example"}


async def test_the_newest_wins_over_one_in_the_queue(database: Database, database_url: str) -> None:
    [account] = await accounts(database, 1)
    await activate(database, account)
    old = await issue(database, account, "password_recovery")
    async with collector(database_url) as (_, one):
        await one.collect(ALL)
        new = await issue(database, account, "password_recovery")
        await one.collect(ALL)
    assert (await mail_of(database, old))["state"] == "cancelled"
    assert (await mail_of(database, old))["text"] is None, "its secret is gone, too"
    assert (await mail_of(database, new))["state"] == "queued"


async def test_two_collectors_share_the_work(database: Database, database_url: str) -> None:
    """Many tokens, two collectors with small batches: each token once."""
    await accounts(database, 600)
    async with (
        collecting(database_url, lifecycle_batch_limit=7),
        collecting(database_url, lifecycle_batch_limit=11),
    ):
        await until(database, mailed=600)
    assert set((await mailed(database)).values()) == {1}


async def test_urgent_ones_do_not_wait_for_a_batch_to_fill(
    database: Database, database_url: str
) -> None:
    [account] = await accounts(database, 1)
    await activate(database, account)
    async with collecting(database_url, lifecycle_batch_limit=50, lifecycle_batch_timeout="1h"):
        await eventually(lambda: listening(database))
        await accounts(database, 3, prefix="v")
        await issue(database, account, "password_recovery")
        await until(database, mailed=1, waiting=3)
        assert set(await mailed(database)) == {"u1@mail.example"}


# --- what cannot be mailed


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A folder in which the activation mails of the portal `org` want a variable that nobody gives."""
    folder = tmp_path / "org" / "activation"
    folder.mkdir(parents=True)
    (folder / "en.subject").write_text("Hello {{ missing_name }}")
    (folder / "en.txt").write_text("{{ link }}")
    return tmp_path


async def test_a_rendering_failure_sets_one_aside_and_the_rest_leaves(
    database: Database, database_url: str, broken: Path, cli: Cli
) -> None:
    await accounts(database, 3)
    await accounts(database, 1, prefix="x", portal="org")
    await accounts(database, 1, prefix="y", portal="nowhere")
    async with collector(database_url, template_dirs=broken) as (_, one):
        assert await one.collect(ALL) == 5
        assert await outcomes(database) == {"mailed": 3, "set_aside": 2}
        assert await one.collect(ALL) == 0, "not at once again"
    first, second = await asyncio.to_thread(cli.json, "dlq", "tokens")
    assert "missing_name" in first["problem"]
    assert "org/activation" in first["problem"]
    assert first["tries"] == 1
    assert 0 < first["again_in"] <= 60
    assert "nowhere" in second["problem"]
    assert (await asyncio.to_thread(cli.json, "dlq", "summary"))["tokens"] == 2
    shown = (await asyncio.to_thread(cli, "dlq", "list")).out
    assert "missing_name" in shown
    assert "2 tokens" in (await asyncio.to_thread(cli, "dlq", "summary")).out
    async with api_of(database_url) as api:
        assert (await api.shop.get("/dlq/summary")).json["tokens"] == 0, "they are another tenant's"


async def test_it_is_collected_again_after_the_fix(
    database: Database, database_url: str, broken: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "REFRESH_INTERVAL", 0.0)
    await accounts(database, 2, portal="org")
    async with collecting(database_url, template_dirs=broken):
        await until(database, set_aside=2)
        (broken / "org" / "activation" / "en.subject").write_text("Hello")
        assert await asyncio.to_thread(cli.json, "dlq", "tokens", "--retry") == {"retried": 2}
        await until(database, mailed=2)  # by the collector that runs
    assert (await asyncio.to_thread(cli, "dlq", "tokens")).out == ""
    await asyncio.to_thread(cli, "dlq", "tokens", "--retry", code=1)


async def test_one_that_was_set_aside_comes_again_by_itself(
    database: Database, database_url: str, broken: Path
) -> None:
    await accounts(database, 1, portal="org")
    async with collector(database_url, template_dirs=broken) as (_, one):
        await one.collect(ALL)
        await database.execute("UPDATE lifecycle.waiting SET held_until = now()")
        await one.sweep()
        assert await one.collect(ALL) == 1
    assert await database.fetchval("SELECT tries FROM lifecycle.waiting") == 2
    await database.execute("UPDATE lifecycle.waiting SET held_until = now()")
    await database.execute("UPDATE lifecycle.tokens SET expires_at = 1")
    async with collector(database_url, template_dirs=broken) as (_, one):
        await one.sweep()
        await one.collect(ALL)
    assert await outcomes(database) == {"expired": 1}


async def test_an_address_that_is_none_is_set_aside(database: Database, database_url: str) -> None:
    await database.execute(
        "INSERT INTO lifecycle.accounts (email, login) VALUES ('not an address', 'x')"
    )
    await accounts(database, 2)
    async with collector(database_url) as (_, one):
        await one.collect(ALL)
    assert await outcomes(database) == {"mailed": 2, "set_aside": 1}
    problem = await database.fetchval("SELECT problem FROM lifecycle.waiting")
    assert problem == "email: not a legal e-mail address"
    assert "not an address" not in problem


async def test_a_name_cannot_become_a_header(database: Database, database_url: str) -> None:
    await accounts(database, 1, name="Eve\r\nBcc: all@mail.example\r\n\r\nhello")
    await accounts(database, 1, prefix="eve\nBcc: all", portal="org")
    async with collector(database_url) as (_, one):
        await one.collect(ALL)
    rows = await database.fetch(
        "SELECT subject, headers, recipient FROM pillarbox.messages JOIN pillarbox.deliveries ON message_id = id"
    )
    assert len(rows) == 1, "an address with a line end is none"
    assert all("\n" not in row["subject"] and "\r" not in row["subject"] for row in rows)
    assert (
        await database.fetchval(
            "SELECT count(*) FROM pillarbox.deliveries WHERE recipient LIKE 'all@%'"
        )
        == 0
    )


async def test_what_postgresql_cannot_hold_harms_no_other(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "org" / "activation"
    folder.mkdir(parents=True)
    (folder / "en.subject").write_text("Hello")
    (folder / "en.txt").write_text("{{ '\\x00' }} {{ link }}")
    await accounts(database, 2, prefix="x", portal="org")
    await accounts(database, 2)
    async with collector(database_url, template_dirs=tmp_path) as (_, one):
        await one.collect(ALL)
    assert await outcomes(database) == {"mailed": 2, "set_aside": 2}


async def test_a_tenants_limit_holds(database: Database, database_url: str) -> None:
    await tenants.change_tenant(database, "default", sender_domains=["other.example"])
    await accounts(database, 1)
    async with collector(database_url) as (_, one):
        await one.collect(ALL)
    assert await outcomes(database) == {"set_aside": 1}
    assert "may not send" in await database.fetchval("SELECT problem FROM lifecycle.waiting")


async def test_a_collector_says_what_it_lacks(database: Database, database_url: str) -> None:
    async with opened(database_url) as app:
        with pytest.raises(SecretError, match="PILLARBOX_LIFECYCLE_KEYS"):
            await build_collector(app)
    with pytest.raises(SchemaMismatch, match="migrate --with lifecycle --lifecycle-schema people"):
        async with collector(database_url, lifecycle_schema="people"):
            pass


async def test_a_batch_that_fails_leaves_nothing_behind(
    database: Database, database_url: str
) -> None:
    """Mails and outcomes are one transaction: neither without the other."""
    await accounts(database, 3)
    await database.execute(
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
           CREATE TRIGGER refuse BEFORE INSERT ON lifecycle.collected EXECUTE FUNCTION refuse()"""
    )
    async with collector(database_url) as (_, one):
        with pytest.raises(StoreError, match="RaiseError: no"):
            await one.collect(ALL)
        assert await outcomes(database) == {"waiting": 3}
        assert not await mailed(database)
        await database.execute("DROP TRIGGER refuse ON lifecycle.collected")
        assert await one.collect(ALL) == 3
    assert len(await mailed(database)) == 3


async def test_ids_are_those_of_the_mails(database: Database, database_url: str) -> None:
    await accounts(database, 300)
    async with collector(database_url) as (_, one):
        await one.collect(ALL)
    rows = await database.fetch(
        """SELECT t.account, m.metadata FROM lifecycle.collected c JOIN lifecycle.tokens t ON t.id = c.token
             JOIN pillarbox.messages m ON m.id = c.message_id"""
    )
    assert len(rows) == 300
    assert all(json.loads(row["metadata"])["account"] == row["account"] for row in rows)
    assert all(
        isinstance(row["message_id"], UUID)
        for row in await database.fetch("SELECT * FROM lifecycle.collected")
    )


@pytest.mark.parametrize(
    "more", [(), ("--once",), ("--stdout",)], ids=["mailing", "once", "stdout"]
)
@pytest.mark.parametrize("schema", ["lifecycle", "poeple"])
async def test_collecting_without_the_schema_exits_with_the_reason(
    database: Database, database_url: str, schema: str, more: tuple[str, ...]
) -> None:
    await database.execute("DROP SCHEMA lifecycle CASCADE")
    arguments = ("collect", *more, "--database-url", database_url)
    with process(
        *arguments, env={"PILLARBOX_LIFECYCLE_KEYS": KEY, "PILLARBOX_LIFECYCLE_SCHEMA": schema}
    ) as one:
        assert await asyncio.to_thread(one.end) == 1
        assert "migrate --with lifecycle" in one.output
        assert "stopped" not in one.output
