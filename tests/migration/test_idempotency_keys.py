"""The upgrade from 0.1.0: a request whose key it stored is a replay, and a different one a conflict."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from tests.integration.accept.intake_helpers import DEFAULT, mail, principal

from pillarbox import Attachment, Mail, enqueue, enqueue_many
from pillarbox.accept.intake import Intake
from pillarbox.accept.request_hash_1 import request_hash_1
from pillarbox.errors import IdempotencyConflict
from pillarbox.store.database import Database
from pillarbox.store.migrations import migrate
from pillarbox.telemetry.metrics import Metrics

RELEASED = 13  # the newest migration of version 0.1.0
LATER = datetime.now(UTC) + timedelta(days=2)
MAILS = [
    mail(idempotency_key="plain"),
    mail(idempotency_key="class", class_="bulk", sender=None, priority="urgent"),
    mail(idempotency_key="lists", to=["a@b.example", "c@d.example"], cc="e@f.example", tags=["x", "y"]),
    mail(idempotency_key="raw", text=None, raw=b"Subject: x\n\nline\n"),
    mail(idempotency_key="times", send_at=LATER, expires_at=LATER + timedelta(hours=1), max_attempts=4),
    mail(idempotency_key="json", metadata={"b": [1, None], "a": "ä"}, headers={"X-A": "1"}),
    mail(idempotency_key="files", attachments=[Attachment("a.txt", b"x" * 100, "text/plain", "id")]),
]  # fmt: skip


@pytest_asyncio.fixture
async def released(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A database of 0.1.0."""
    connection = await asyncpg.connect(empty_database_url)
    await migrate(connection, RELEASED)
    await connection.execute("UPDATE pillarbox.tenants SET default_sender = 'shop@example.com'")
    yield connection
    await connection.close()


async def store_as_http_of_0_1_0(connection: asyncpg.Connection, given: Mail) -> UUID:
    """What the HTTP server of 0.1.0 stored of a request with a key, apart from the mail itself."""
    message_id: UUID = await enqueue(connection, replace(given, idempotency_key=None))
    await connection.execute(
        "INSERT INTO pillarbox.idempotency_keys (tenant_id, key, message_id, request_hash)"
        " VALUES (1, $1, $2, $3)",
        given.idempotency_key,
        message_id,
        request_hash_1(given),
    )
    return message_id


async def count(connection: asyncpg.Connection) -> Any:
    return await connection.fetchval("SELECT count(*) FROM pillarbox.messages")


async def test_keys_of_sql(released: asyncpg.Connection) -> None:
    ids = [await enqueue(released, given) for given in MAILS]
    sizes = {row[0] for row in await released.fetch(HASHES)}
    assert sizes == {32}
    await migrate(released)
    for given, message_id in zip(MAILS, ids, strict=True):
        assert await enqueue(released, given) == message_id
        assert await enqueue_many(released, [given]) == [message_id]
        with pytest.raises(IdempotencyConflict):
            await enqueue(released, replace(given, subject="another"))
    assert await count(released) == len(MAILS)


HASHES = "SELECT octet_length(request_hash) FROM pillarbox.idempotency_keys"


async def test_keys_of_http(released: asyncpg.Connection, empty_database_url: str) -> None:
    ids = [await store_as_http_of_0_1_0(released, given) for given in MAILS]
    await migrate(released)
    database = await Database.connect(empty_database_url)
    intake = Intake(database, Metrics())
    caller = principal(replace(DEFAULT, default_sender="shop@example.com"))
    try:
        for given, message_id in zip(MAILS, ids, strict=True):
            receipt = await intake.accept(caller, given)
            assert (receipt.id, receipt.repeated) == (message_id, True)
            with pytest.raises(IdempotencyConflict):
                await intake.accept(caller, replace(given, subject="another"))
    finally:
        await intake.close()
        await database.close()
    assert await count(released) == len(MAILS)


async def test_http_servers_of_0_1_0_go_on_storing(released: asyncpg.Connection) -> None:
    """They insert rows themselves, beside new processes; their keys are compared with their hash."""
    await migrate(released)
    message_id = await store_as_http_of_0_1_0(released, MAILS[0])
    with pytest.raises(IdempotencyConflict):  # as in 0.1.0: SQL and HTTP had different hashes
        await enqueue(released, MAILS[0])
    assert (
        await released.fetchval("SELECT message_id FROM pillarbox.idempotency_keys") == message_id
    )
