"""The upgrade from 0.1.0: providers keep their names, waits begin, attempts get steps; its workers go on writing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest_asyncio

from pillarbox.store.migrations import migrate

RELEASED = 13
# As workers of 0.1.0 record an attempt.
RECORD = (
    "INSERT INTO pillarbox.attempts (message_id, n, claim, started_at, ended_at, verdict)"
    " VALUES ($1, 0, $2, now(), now(), 'deferred')"
)


@pytest_asyncio.fixture
async def used(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A database of 0.1.0 in use."""
    connection = await asyncpg.connect(empty_database_url)
    await migrate(connection, RELEASED)
    for name, kind, removed in (("relay-removed-1", "smtp", True), ("capture", "capture", False)):
        await connection.execute(
            "INSERT INTO pillarbox.providers (name, kind, removed_at) VALUES ($1, $2, CASE WHEN $3 THEN now() END)",
            name, kind, removed,
        )  # fmt: skip
    message_id = await connection.fetchval(
        "SELECT pillarbox.enqueue(sender => 'a@b.example', \"to\" => '{c@d.example}', text => 'x')"
    )
    await connection.execute(RECORD, message_id, 1)
    yield connection
    await connection.close()


async def test_what_was_there_stays_and_means_the_same(used: asyncpg.Connection) -> None:
    await migrate(used)
    rows = await used.fetch(
        "SELECT name, removed_at IS NOT NULL, release_only FROM pillarbox.providers ORDER BY id"
    )
    assert [tuple(row) for row in rows] == [("relay", True, False), ("capture", False, False)]
    assert await used.fetchval("SELECT sends_out FROM pillarbox.installation"), (
        "a relay was configured once"
    )
    assert await used.fetchval("SELECT every(max_wait = interval '5 days') FROM pillarbox.classes")
    assert await used.fetchval("SELECT step FROM pillarbox.attempts") == 0
    assert await used.fetchval("SELECT waiting_since FROM pillarbox.deliveries") is None
    assert await used.fetchval("SELECT status FROM pillarbox.delivery_logs") == "queued"


async def test_only_a_demo_and_what_captures_do_not_count_as_sending(
    used: asyncpg.Connection,
) -> None:
    await used.execute("DELETE FROM pillarbox.providers WHERE kind = 'smtp'")
    await used.execute(
        "INSERT INTO pillarbox.providers (name, kind, settings, removed_at)"
        """ VALUES ('demo-ses-removed-3', 'ses', '{"url": "http://127.0.0.1:9/"}', now())"""
    )
    await migrate(used)
    assert not await used.fetchval("SELECT sends_out FROM pillarbox.installation")


async def test_a_name_is_free_once_its_provider_is_removed(used: asyncpg.Connection) -> None:
    await migrate(used)
    add = "INSERT INTO pillarbox.providers (name, kind) VALUES ('relay', 'smtp') ON CONFLICT DO NOTHING RETURNING id"
    assert await used.fetchval(add) is not None
    assert await used.fetchval(add) is None


async def test_workers_of_the_released_version_go_on_recording(used: asyncpg.Connection) -> None:
    await migrate(used)
    message_id = await used.fetchval("SELECT id FROM pillarbox.messages")
    await used.execute(RECORD, message_id, 2)
    await used.execute(f"{RECORD} ON CONFLICT DO NOTHING", message_id, 2)
    assert await used.fetchval("SELECT count(*) FROM pillarbox.attempts") == 2
    key = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'attempts_pkey'"
    assert await used.fetchval(key) == "PRIMARY KEY (message_id, n, claim, step)"
