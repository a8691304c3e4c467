"""A failed mail of an account is sent again: rendered from its token, or from a new one; its body is dropped again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pillarbox.store.database import Database
from pillarbox.testing.smtp import SmtpServer
from pillarbox.testing.smtp_faults import Faults
from tests.harness import add_smtp, settled, working
from tests.integration.cli.cli_helpers import Cli
from tests.integration.lifecycle.collector_helpers import accounts, collector, issue
from tests.integration.lifecycle.lifecycle_helpers import expire, install


@pytest.fixture(autouse=True)
async def installed(database: Database) -> None:
    await install(database)


@pytest.fixture
def cli(database_url: str) -> Cli:
    return Cli(database_url)


async def collected(database_url: str) -> None:
    async with collector(database_url) as (_, one):
        await one.run_once(asyncio.Event())


async def fail_all(database: Database) -> None:
    """As settling does it: what waits has failed, and its body is gone."""
    await database.execute(
        "UPDATE pillarbox.deliveries SET state = 'failed', reason = 'rejected' WHERE state = 'queued'"
    )
    await database.execute(
        "SELECT pillarbox._drop_secret_contents(ARRAY(SELECT id FROM pillarbox.messages))"
    )
    assert await database.fetchval("SELECT count(*) FROM pillarbox.contents") == 0


async def mails(database: Database) -> list[Any]:
    return await database.fetch(
        "SELECT m.id, d.state::text, d.recipient, c.text FROM pillarbox.messages m"
        " JOIN pillarbox.deliveries d ON d.message_id = m.id LEFT JOIN pillarbox.contents c ON c.message_id = m.id"
        " ORDER BY m.id"
    )


async def failed_mail(database: Database, database_url: str) -> tuple[str, int]:
    """The failed activation mail of a new account, and its token."""
    await accounts(database, 1)
    await collected(database_url)
    await fail_all(database)
    [mail] = await mails(database)
    return str(mail["id"]), await database.fetchval("SELECT id FROM lifecycle.tokens")


@pytest.mark.parametrize("command", [("queue", "retry"), ("dlq", "reprocess")])
async def test_it_is_rendered_again_from_its_token(
    database: Database, database_url: str, cli: Cli, command: tuple[str, str]
) -> None:
    mail, token = await failed_mail(database, database_url)
    await asyncio.to_thread(cli, *command, mail)
    assert await database.fetchval("SELECT outcome FROM lifecycle.token_log") == "waiting"
    await collected(database_url)
    old, new = await mails(database)
    assert (str(old["id"]), old["state"], new["state"]) == (mail, "cancelled", "queued")
    assert "https://hub.example/activate?token=" in new["text"]
    assert (
        await database.fetchval(
            "SELECT message_id FROM lifecycle.collected WHERE token = $1", token
        )
        == new["id"]
    )
    [event] = await database.fetch(
        "SELECT kind, data FROM pillarbox.events WHERE message_id = $1", old["id"]
    )
    assert (event["kind"], json.loads(event["data"])["token"]) == ("resent", str(token))
    await fail_all(database)  # its body is dropped when it is settled, as before
    refused = await asyncio.to_thread(
        cli, *command, mail, code=1
    )  # the old one was sent again before
    assert "NotPossible" not in refused.err


async def test_a_mail_that_a_server_refused_arrives_when_it_is_sent_again(
    database: Database, database_url: str, cli: Cli
) -> None:
    """With a real worker: its body is gone after each settlement, and the second link works."""
    await accounts(database, 1)
    await collected(database_url)
    [first] = await mails(database)
    async with SmtpServer(Faults(rcpt=["554 5.7.1 not today", None])) as server:
        await add_smtp(database, server)
        async with working(database_url):
            await settled(database, first["id"], "failed")
            assert await database.fetchval("SELECT count(*) FROM pillarbox.contents") == 0
            await asyncio.to_thread(cli, "queue", "retry", str(first["id"]))
            await collected(database_url)
            second = (await mails(database))[-1]
            assert second["id"] != first["id"]
            await settled(database, second["id"], "sent")
    assert await database.fetchval("SELECT count(*) FROM pillarbox.contents") == 0
    assert len(server.mails) == 1


async def test_an_expired_token_is_issued_anew(
    database: Database, database_url: str, cli: Cli
) -> None:
    [account] = await accounts(database, 1)
    token = await issue(database, account, "invite", '{"inviter": "Grace"}')
    await collected(database_url)
    await fail_all(database)
    mail = await database.fetchval(
        "SELECT message_id FROM lifecycle.collected WHERE token = $1", token
    )
    await expire(database, token)
    answer = await asyncio.to_thread(cli.json, "queue", "retry", str(mail))
    assert answer["is_new"]
    assert answer["token"] > token
    await collected(database_url)
    assert "Grace" in (await mails(database))[-1]["text"]


async def test_what_need_not_be_sent_again_is_refused(
    database: Database, database_url: str, cli: Cli
) -> None:
    mail, token = await failed_mail(database, database_url)
    newer = await issue(
        database, await database.fetchval("SELECT account FROM lifecycle.tokens"), "activation"
    )
    refused = await asyncio.to_thread(cli, "queue", "retry", mail, code=1)
    assert f"token {newer} replaced token {token}" in refused.err
    await database.execute("DELETE FROM lifecycle.tokens WHERE id = $1", newer)
    await database.execute(
        "UPDATE lifecycle.tokens SET consumed_at = extract(epoch FROM now()) WHERE id = $1", token
    )
    refused = await asyncio.to_thread(cli, "queue", "retry", mail, code=1)
    assert "was used" in refused.err
    assert [one["state"] for one in await mails(database)] == ["failed"]


async def test_all_at_once_leaves_mails_of_accounts_out(
    database: Database, database_url: str, cli: Cli
) -> None:
    await failed_mail(database, database_url)
    answer = await asyncio.to_thread(cli.json, "dlq", "reprocess", "--all", "--yes")
    assert (answer["reprocessed"], answer["skipped"]) == (0, {"content_purged": 1})
    dry = await asyncio.to_thread(
        cli.json, "dlq", "reprocess", str((await mails(database))[0]["id"]), "--dry-run"
    )
    assert dry["reprocessed"] == 1
    assert [one["state"] for one in await mails(database)] == ["failed"]
