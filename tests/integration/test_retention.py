"""Retention: bodies first, whole mails later, in bounded batches, and never what is still to be sent."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox.store.database import Database
from pillarbox.store.retention import purge
from tests.harness import enqueue

DAY = 86400.0


async def aged(database: Database, days: int, state: str = "sent", **arguments: Any) -> Any:
    """A mail that was accepted days ago; its id tells its age, as ids do."""
    message_id = await enqueue(database, **arguments)
    row = await database.fetchrow(
        """SELECT encode(overlay(uuid_send($1) PLACING substring(int8send((extract(
             epoch FROM now() - $2 * interval '1 day') * 1000)::bigint) FROM 3) FROM 1 FOR 6), 'hex')::uuid AS id""",
        message_id,
        float(days),
    )
    assert row
    await database.execute(
        "UPDATE pillarbox.messages SET id = $2, created_at = now() - $3 * interval '1 day' WHERE id = $1",
        message_id, row["id"], float(days),
    )  # fmt: skip
    for table in ("contents", "deliveries"):
        await database.execute(
            f"UPDATE pillarbox.{table} SET message_id = $2 WHERE message_id = $1", message_id, row["id"]
        )
    await database.execute(
        "UPDATE pillarbox.deliveries SET state = $2::pillarbox.state WHERE message_id = $1", row["id"], state
    )
    await database.execute("INSERT INTO pillarbox.events (message_id, kind) VALUES ($1, 'test')", row["id"])
    return row["id"]


async def count(database: Database, table: str) -> int:
    return int(await database.fetchval(f"SELECT count(*) FROM pillarbox.{table}"))


@pytest.mark.parametrize("batch", [1, 3, 1000])
async def test_bodies_go_first_and_the_story_later(database: Database, batch: int) -> None:
    for days in (100, 95, 40, 35, 1):
        await aged(database, days)
    dropped = await purge(database, 30 * DAY, 90 * DAY, batch)
    assert dropped == {"messages": 2, "contents": 2, "captured": 0} or dropped == {
        "messages": 2,
        "contents": 2,
    }
    assert await count(database, "messages") == await count(database, "deliveries") == 3
    assert await count(database, "events") == 3
    assert await count(database, "contents") == 1


@pytest.mark.parametrize("state", ["pending", "queued", "processing", "held"])
async def test_what_is_still_to_be_sent_is_kept(database: Database, state: str) -> None:
    await aged(database, 400, state)
    await purge(database, DAY, 2 * DAY, 100)
    assert await count(database, "messages") == await count(database, "contents") == 1


async def test_none_keeps_for_ever(database: Database) -> None:
    await aged(database, 4000)
    assert (await purge(database, None, None, 100)).total() == 0
    assert await count(database, "contents") == 1


async def test_a_class_has_its_own_age(database: Database) -> None:
    await database.execute(
        "INSERT INTO pillarbox.classes (name, content_retention) VALUES ('brief', '1 day'), ('long', '1 year')"
    )
    await aged(database, 2, **{"class": "brief"})
    kept = await aged(database, 200, **{"class": "long"})
    await purge(database, 30 * DAY, None, 100)
    assert [row[0] for row in await database.fetch("SELECT message_id FROM pillarbox.contents")] == [kept]


async def test_an_idempotency_key_is_kept_for_a_day(database: Database) -> None:
    message_id = await enqueue(database, idempotency_key="k")
    await database.execute("UPDATE pillarbox.deliveries SET state = 'sent'")
    await purge(database, 0.0, 0.0, 100)
    assert await count(database, "messages") == 0
    assert await enqueue(database, idempotency_key="k") == message_id


@pytest.mark.parametrize("batch", [1, 100])
async def test_an_idempotency_key_goes_with_the_story(database: Database, batch: int) -> None:
    for days in (100, 50, 2):
        message_id = await aged(database, days)
        await database.execute(
            "INSERT INTO pillarbox.idempotency_keys VALUES (1, $1, $2, '')", f"key of {days} days ago", message_id
        )
    assert (await purge(database, None, 30 * DAY, batch))["keys"] == 2
    assert await count(database, "idempotency_keys") == 1


async def test_captured_mails_go_with_the_bodies(database: Database) -> None:
    await database.execute(
        """INSERT INTO pillarbox.captured (provider_id, message_id, at, sender, recipients, content)
           SELECT 1, gen_random_uuid(), now() - k * interval '20 days', 's', '{}', '' FROM generate_series(0, 4) k"""
    )
    dropped = await purge(database, 30 * DAY, 90 * DAY, 2)
    assert dropped["captured"] == 3
    assert await count(database, "captured") == 2
