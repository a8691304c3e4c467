"""Mails through the queue and an HTTP provider: what the database says afterwards."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from pillarbox.app import App
from pillarbox.store.database import Database
from pillarbox.store.vault import generate_key
from pillarbox.testing.twins import Dials, MailgunTwin, SendGridTwin, SesTwin
from pillarbox.testing.twins.base import Twin
from tests.harness import add_twin, attempts, enqueue, eventually, opened, settled, working


@pytest_asyncio.fixture(
    params=[SendGridTwin, SesTwin, MailgunTwin], ids=["sendgrid", "ses", "mailgun"]
)
async def twin(request: pytest.FixtureRequest) -> AsyncIterator[Twin]:
    async with request.param() as twin:
        yield twin


@asynccontextmanager
async def working_through(twin: Twin, database_url: str) -> AsyncIterator[App]:
    """A worker with the twin as its only provider."""
    key = generate_key()
    async with opened(database_url, secret_keys=key) as app:
        await add_twin(app, twin, "esp")
    async with working(database_url, secret_keys=key) as app:
        yield app


@pytest.mark.req("REQ-QUEUE-E003")
async def test_a_mail_leaves_and_the_providers_id_is_kept(
    twin: Twin, database: Database, database_url: str
) -> None:
    async with working_through(twin, database_url):
        sent = await enqueue(database, "a@mail.example", "b@mail.example", html="<b>Hi!</b>")
        await settled(database, sent, "sent", "sent")
        mail = await twin.next_mail()
        assert mail.message_uuid == str(sent)
        assert mail.recipients == ("a@mail.example", "b@mail.example")
        ids = {row["provider_message_id"] for row in await attempts(database, sent)}
        assert ids == {mail.id.strip("<>")}


@pytest.mark.req("REQ-QUEUE-N002")
async def test_a_refusal_for_good_fails_at_once(
    twin: Twin, database: Database, database_url: str
) -> None:
    twin.dials = Dials(
        status=413, body={"message": "too large", "errors": [{"message": "too large"}]}
    )
    async with working_through(twin, database_url):
        sent = await enqueue(database)
        [row] = await settled(database, sent, "failed")
        assert (row["reason"], row["attempts"]) == ("too_big", 1)


@pytest.mark.req("REQ-QUEUE-N003")
@pytest.mark.req("REQ-QUEUE-U005")
async def test_a_provider_that_repeats_our_key_is_not_quoted(
    twin: Twin, database: Database, database_url: str
) -> None:
    said = f"no {twin.secret} for {twin.provider_settings().get('access_key_id', 'api')} of reader@mail.example"
    twin.dials = Dials(status=400, body={"message": said, "errors": [{"message": said}]})
    async with working_through(twin, database_url):
        sent = await enqueue(database)
        await settled(database, sent, "failed")
        [row] = await attempts(database, sent)
        kept = json.dumps([str(value) for value in row.values()] + await _conversations(database))
        assert twin.secret not in kept
        assert str(twin.provider_settings().get("access_key_id", "none of it")) not in kept
        assert "reader@mail.example" not in kept
        assert "X-Pillarbox-Attempt" in kept


async def _conversations(database: Database) -> list[Any]:
    return [str(dict(row)) for row in await database.fetch("SELECT * FROM pillarbox.conversations")]


async def test_the_client_is_closed_with_the_app(
    twin: Twin, database: Database, database_url: str
) -> None:
    async with working_through(twin, database_url):
        await settled(database, await enqueue(database), "sent")
        assert twin.open_connections >= 1

    async def closed() -> bool:
        return twin.open_connections == 0

    await eventually(closed)
