"""Secrets stay secret: a whole installation under faults, searched for every secret that it was given."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pillarbox.model.secret import Secret
from pillarbox.store import access, providers
from pillarbox.store.database import Database
from pillarbox.store.vault import EncryptionKeyRing, generate_key
from pillarbox.testing import SmtpServer
from pillarbox.testing.certificates import make_ca
from pillarbox.testing.smtp import Extensions, Faults
from tests.harness import deliveries, eventually, settled, working
from tests.integration.accept.submission_helpers import connected, installed
from tests.integration.api.api_helpers import Api, api_of
from tests.integration.cli.cli_helpers import Cli

PASSWORD = "Zaunkoenig-4711-hunter2"  # of the provider
GUESS = "Rotkehlchen-0815-hunter3"  # a wrong one, of somebody who tries to log in


def spellings(secret: str) -> Iterator[str]:
    """A secret as it could show: itself, as bytes are shown, and within base64, wherever it begins there."""
    yield secret
    yield secret.encode().hex()
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + secret.encode()).decode()
        yield encoded[4 if before else 0 : -4]


def found(secrets: dict[str, str], places: dict[str, str]) -> list[tuple[str, str]]:
    """Which secret shows where."""
    return [
        (name, place)
        for name, secret in secrets.items()
        for place, text in places.items()
        if any(spelling in text for spelling in spellings(secret))
    ]


@pytest.mark.parametrize("text", ["hunter", "\0me\0", "\0you\0", "\0them\0"])
def test_what_is_searched_for_is_found(text: str) -> None:
    sent = base64.b64encode((text + PASSWORD).encode()).decode()
    assert found({"it": PASSWORD}, {"here": f"535 {sent} is wrong", "there": "535"}) == [
        ("it", "here")
    ]


async def everything_kept(database: Database) -> dict[str, str]:
    """Every row of every table of ours, as text."""
    tables = await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'pillarbox'")
    kept = {}
    for (table,) in tables:
        rows = await database.fetch(f'SELECT t::text FROM pillarbox."{table}" t')
        kept[f"table {table}"] = "\n".join(row[0] for row in rows)
    return kept


async def told_by_the_api(api: Api, message_id: str) -> dict[str, str]:
    """What tenants, administrators and people with a wrong key are told; pages and metrics, too."""
    wrong = api.nobody.using((api.shop.key or "")[:-6] + "aaaaaa")
    answers = {
        "story": await api.shop.get(f"/messages/{message_id}"), "listing": await api.shop.get("/messages"),
        "raw": await api.shop.get(f"/messages/{message_id}/raw"), "keys": await api.shop.get("/keys"),
        "logins": await api.shop.get("/smtp-logins"), "tenants": await api.admin.get("/admin/tenants"),
        "all keys": await api.admin.get("/admin/keys"), "wrong key": await wrong.get("/messages"),
        "no mail": await api.shop.post("/messages", {"to": api.shop.key}),
    }  # fmt: skip
    assert {name: one.status for name, one in answers.items() if one.status != 200} == {
        "wrong key": 401,
        "no mail": 422,
    }
    for path in ("/", "/metrics"):
        operator = {"Authorization": f"Bearer {api.admin.key}"}
        async with api.nobody.session.get(api.nobody.url + path, headers=operator) as answer:
            assert answer.status == 200
            answers[path] = await answer.read()  # type: ignore[assignment]
    return {
        name: f"{getattr(one, 'headers', '')} {getattr(one, 'content', one)!r}"
        for name, one in answers.items()
    }


def told_by_commands(cli: Cli, message_id: str) -> dict[str, str]:
    lines = [
        "provider list --json",
        "provider show relay",
        "config --json",
        "config",
        "key list --json",
    ]
    lines += [
        "smtp-login list --json",
        f"queue show {message_id}",
        "queue list --json",
        "provider test relay",
    ]
    answers = {line: cli(*line.split(), code=int("test" in line)) for line in lines}
    return {line: answer.out + answer.err for line, answer in answers.items()}


async def log_in(port: int, context: Any, username: str, password: str) -> str:
    async with connected(port, tls=context) as client:
        plain = base64.b64encode(f"\0{username}\0{password}".encode())
        return await client.say(b"AUTH PLAIN " + plain + b"\r\n")


@pytest.mark.req("REQ-QUEUE-N003")
async def test_no_secret_shows_anywhere(
    database: Database, database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The server refuses the provider's login and repeats what it was given; clients guess; everything is logged."""

    def repeats(session: object, argument: object) -> str:
        return f"535 5.7.8 {PASSWORD} is wrong: {server.commands[-1]}"

    sealing, certificate = generate_key(), make_ca(tmp_path)
    issued = certificate.issue()
    tls = {
        "smtp_tls": "127.0.0.1:0",
        "smtp_certificate": issued.certificate,
        "smtp_private_key": issued.key,
    }
    settings = {"secret_keys": sealing, "log_level": "debug", "worker_poll_interval": "100ms"}
    facts, login = await access.add_login(database, "default", "printer")
    faults = Faults(auth=[repeats], recipients={"ada@mail.example": ["451 4.7.1 later"]})
    async with (
        SmtpServer(faults, Extensions(any_login=True, mechanisms=["PLAIN"])) as server,
        installed(database_url, **settings | tls) as smtp,
        api_of(database_url, **settings) as api,
        working(database_url, **settings) as worker,
    ):
        given = {"host": server.host, "port": server.port, "tls": "none", "username": "me"}
        keys = EncryptionKeyRing([Secret(sealing)])
        await providers.add_provider(
            database, lambda: keys, "relay", "smtp", given, Secret(PASSWORD)
        )
        message_id = await api.shop.sent_id()
        for made in (1, 2):  # the login is refused, then the recipient
            await eventually(lambda made=made: _made(database, message_id, made))
            await database.execute("UPDATE pillarbox.deliveries SET next_attempt_at = now()")
        await settled(database, UUID(message_id), "sent")
        context = certificate.client_context()
        assert (
            await log_in(smtp.ports["smtp_tls"], context, facts.username, login.reveal())
        ).startswith("235")
        assert (await log_in(smtp.ports["smtp_tls"], context, facts.username, GUESS)).startswith(
            "535"
        )
        server.faults = Faults(auth=repeats)
        cli = Cli(database_url)
        cli.env["PILLARBOX_SECRET_KEYS"] = sealing
        places = await told_by_the_api(api, message_id)
        places |= await asyncio.to_thread(told_by_commands, cli, message_id)
        places |= {
            "metrics": worker.metrics.render().decode(),
            "smtp": smtp.app.metrics.render().decode(),
        }
    places |= await everything_kept(database) | dict(
        zip(("out", "err"), capfd.readouterr(), strict=True)
    )
    secrets = {"password": PASSWORD, "guess": GUESS, "login": login.reveal(), "sealing": sealing}
    secrets |= {"key": api.shop.key or "", "admin": api.admin.key or ""}
    assert any(
        "attempt settled" in line and message_id in line for line in places["err"].splitlines()
    )
    assert [json.loads(line) for line in places["err"].splitlines()], "the log is not empty"
    assert found(secrets, places) == []


async def _made(database: Database, message_id: str, made: int) -> bool:
    [row] = await deliveries(database, UUID(message_id))
    return row["attempts"] == made and row["state"] == "queued"
