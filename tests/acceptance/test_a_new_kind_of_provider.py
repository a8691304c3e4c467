"""A kind of provider is one record, a transport and a feedback: nothing else knows its name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
import typer
from tests.acceptance import postbote
from tests.harness import add_smtp, attempts, enqueue, settled, working
from tests.integration.api.api_helpers import serving
from tests.integration.cli.cli_helpers import Cli
from typer.testing import CliRunner

from pillarbox.cli import provider
from pillarbox.model.provider_kinds import KINDS
from pillarbox.store.database import Database
from pillarbox.store.vault import generate_key
from pillarbox.testing import SmtpServer

LICENCE, STAMPING_KEY = "licence-hunter2", "stamping-hunter2"
KEYS = generate_key()


class ProviderCli:
    """`pillarbox provider`, built while the kind is there."""

    def __init__(self, database_url: str) -> None:
        self._root = typer.Typer()
        provider.register(self._root)
        self._env = {
            "PILLARBOX_DATABASE_URL": database_url,
            "PILLARBOX_SECRET_KEYS": KEYS,
            "LICENCE": LICENCE,
            "STAMPING_KEY": STAMPING_KEY,
            "COLUMNS": "200",
        }

    async def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run beside this test's loop: a command has a loop of its own."""
        result = await asyncio.to_thread(
            CliRunner().invoke, self._root, ["provider", *arguments], env=self._env
        )
        assert result.exit_code == code, f"{result.output} {result.exception!r}"
        assert LICENCE not in result.output
        return str(result.output)

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self(*arguments, "--json"))


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "postbote", postbote.KIND)
    monkeypatch.setattr(postbote, "SENT", [])


@pytest.mark.usefixtures("kind")
async def test_a_kind_is_added_and_sends_and_hears(database_url: str) -> None:
    cli = ProviderCli(database_url)
    assert "Where the postman lives." in await cli("add", "postbote", "--help")
    arguments = ("--city", "Bern", "--secret-env", "LICENCE", "--connections", "3")
    added = await cli.json("add", "postbote", "pb", *arguments)
    assert added["webhook"] == f"/webhooks/postbote/{added['id']}"
    changing = ("--stamp", "red", "--webhook-secret-env", "STAMPING_KEY")
    assert (await cli.json("feedback", "pb", *changing))["changed"]
    shown = await cli.json("show", "pb")
    assert shown["settings"] == {"city": "Bern", "connections": 3, "stamp": "red"}
    assert (shown["secret"], shown["webhook_secret"]) == ("****", "****")
    assert "awake" in await cli("test", "pb")

    async with working(database_url, secret_keys=KEYS, http="127.0.0.1:0") as app:
        message_id = await enqueue(app.database, "ada@mail.example")
        await settled(app.database, message_id, "sent")
        [(settings, outgoing)] = postbote.SENT
        assert settings.licence is not None
        assert settings.licence.reveal() == LICENCE
        assert outgoing.message_id == message_id

        body = json.dumps(
            {"id": "1", "what": "bounced", "message": str(message_id), "to": "ada@mail.example"}
        ).encode()
        async with serving(app) as url, aiohttp.ClientSession() as session:
            for stamp, status in (("blue", 403), ("red", 200)):
                headers = {"X-Stamp": postbote.stamped(STAMPING_KEY, stamp, body)}
                path = f"{url}{added['webhook']}"
                async with session.post(path, data=body, headers=headers) as response:
                    assert response.status == status
        await settled(app.database, message_id, "bounced")


@pytest.mark.usefixtures("kind")
async def test_its_rank_and_limits_decide_the_route(database_url: str, database: Database) -> None:
    cli = ProviderCli(database_url)
    await cli("add", "postbote", "pb", "--city", "Bern", "--secret-env", "LICENCE")
    async with SmtpServer() as server:
        relay = await add_smtp(database, server)
        async with working(database_url, secret_keys=KEYS):
            small = await enqueue(database, "ada@mail.example")
            large = await enqueue(database, "ada@mail.example", text="x" * 20_000)
            await settled(database, small, "sent")
            await settled(database, large, "sent")
    used = [(await attempts(database, one))[-1]["provider_id"] for one in (small, large)]
    assert used[0] != relay
    assert used[1] == relay


@pytest.mark.usefixtures("kind")
async def test_its_settings_are_checked(database_url: str) -> None:
    cli = ProviderCli(database_url)
    arguments = ("add", "postbote", "pb", "--secret-env", "LICENCE")
    assert "--city" in await cli(*arguments, code=2)
    assert "such as Bern" in await cli(*arguments, "--city", "5", code=2)
    assert "worker_concurrency" in await cli("add", "postbote", "--help")


def test_without_its_record_the_kind_is_unknown(database_url: str) -> None:
    cli = Cli(database_url)
    assert "No such command" in cli("provider", "add", "postbote", "pb", code=2).err
