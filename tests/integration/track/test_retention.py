"""Retention: bodies first, whole mails later, in bounded batches, and never what is still to be sent."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.store.catalog import ClassRecord, put_class
from pillarbox.store.database import Database
from pillarbox.store.retention import SQL, purge
from pillarbox.store.tenants import add_tenant, change_tenant
from tests.harness import enqueue
from tests.integration.queue.test_query_plans import plan_of, remember

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
            f"UPDATE pillarbox.{table} SET message_id = $2 WHERE message_id = $1",
            message_id,
            row["id"],
        )
    await database.execute(
        "UPDATE pillarbox.deliveries SET state = $2::pillarbox.state WHERE message_id = $1",
        row["id"],
        state,
    )
    await database.execute(
        "INSERT INTO pillarbox.events (message_id, kind) VALUES ($1, 'test')", row["id"]
    )
    return row["id"]


async def ids(database: Database, table: str, column: str) -> set[Any]:
    return {row[0] for row in await database.fetch(f"SELECT {column} FROM pillarbox.{table}")}


class Counting(Database):
    """A database that counts what it is asked."""

    asked = 0

    async def fetchrow(self, query: str, *arguments: Any) -> Any:
        self.asked += 1
        return await super().fetchrow(query, *arguments)


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
    assert [
        row[0] for row in await database.fetch("SELECT message_id FROM pillarbox.contents")
    ] == [kept]


async def test_a_tenant_has_its_own_ages(database: Database) -> None:
    """Shorter or longer than the installation's, for bodies and for the whole story."""
    await add_tenant(
        database, "brief", content_retention=timedelta(days=1), finished_retention=timedelta(days=3)
    )
    await add_tenant(
        database,
        "long",
        content_retention=timedelta(days=60),
        finished_retention=timedelta(days=400),
    )
    kept = {}
    for tenant, ages in {
        "brief": (0, 2, 4, 100),
        "long": (2, 50, 70, 300, 500),
        "default": (2, 50, 100),
    }.items():
        for days in ages:
            kept[await aged(database, days, tenant=tenant)] = (tenant, days)
    dropped = await purge(database, 30 * DAY, 90 * DAY, 4)
    assert (dropped["messages"], dropped["contents"]) == (4, 4)
    assert {kept[one] for one in await ids(database, "messages", "id")} == {
        ("brief", 0), ("brief", 2), ("long", 2), ("long", 50), ("long", 70), ("long", 300), ("default", 2),
        ("default", 50),
    }  # fmt: skip
    assert {kept[one] for one in await ids(database, "contents", "message_id")} == {
        ("brief", 0), ("long", 2), ("long", 50), ("default", 2),
    }  # fmt: skip


async def test_a_class_comes_before_its_tenant(database: Database) -> None:
    await add_tenant(database, "shop", content_retention=timedelta(days=60))
    await database.execute(
        "INSERT INTO pillarbox.classes (name, content_retention) VALUES ('brief', '1 day')"
    )
    await aged(database, 2, tenant="shop", **{"class": "brief"})
    kept = await aged(database, 50, tenant="shop")
    await purge(database, 30 * DAY, None, 100)
    assert await ids(database, "contents", "message_id") == {kept}


async def test_a_tenant_ends_what_the_installation_keeps_for_ever(database: Database) -> None:
    await add_tenant(
        database, "shop", content_retention=timedelta(days=1), finished_retention=timedelta(days=3)
    )
    await aged(database, 4, tenant="shop")
    bare = await aged(database, 2, tenant="shop")
    kept = await aged(database, 4000)
    await purge(database, None, None, 100)
    assert await ids(database, "messages", "id") == {bare, kept}
    assert await ids(database, "contents", "message_id") == {kept}


async def test_what_was_captured_of_a_tenant_goes_with_its_bodies(database: Database) -> None:
    await add_tenant(database, "shop", content_retention=timedelta(days=1))
    for tenant in ("shop", "default"):
        await database.execute(
            """INSERT INTO pillarbox.captured (provider_id, message_id, at, sender, recipients, content)
               VALUES (1, $1, now() - interval '2 days', $2, '{}', '')""",
            await aged(database, 2, tenant=tenant),
            tenant,
        )
    assert (await purge(database, 30 * DAY, None, 100))["captured"] == 1
    assert await ids(database, "captured", "sender") == {"default"}


async def test_a_round_looks_only_at_what_came_of_age_since_the_last(database: Database) -> None:
    """However much is kept for longer: cost does not grow with history."""
    await add_tenant(
        database,
        "long",
        finished_retention=timedelta(days=400),
        content_retention=timedelta(days=400),
    )
    for days in range(100, 130):
        await aged(database, days, tenant="long")
    counting = Counting(database.pool, "", True)
    await purge(counting, 30 * DAY, 90 * DAY, 10)
    first, counting.asked = counting.asked, 0
    await aged(database, 95)
    assert (await purge(counting, 30 * DAY, 90 * DAY, 10))["messages"] == 1
    assert counting.asked < first
    assert (
        counting.asked <= 3 * 5
    )  # of each walk: its beginning, a batch, and the batch that finds nothing more


async def test_what_finished_late_goes_within_a_day(database: Database) -> None:
    late = await aged(database, 100, "held")
    await aged(database, 95)
    await purge(database, 30 * DAY, 90 * DAY, 100)
    await database.execute("UPDATE pillarbox.deliveries SET state = 'sent'")
    await purge(database, 30 * DAY, 90 * DAY, 100)
    assert await ids(database, "messages", "id") == {late}
    await database.execute(
        "UPDATE pillarbox.retention_walks SET began_at = began_at - interval '1 day'"
    )
    await purge(database, 30 * DAY, 90 * DAY, 100)
    assert await count(database, "messages") == 0


async def test_walks_of_ages_that_are_no_more_are_forgotten(database: Database) -> None:
    await aged(database, 100)
    await purge(database, None, 90 * DAY, 100)
    assert await count(database, "retention_walks") == 1
    await database.execute(
        "UPDATE pillarbox.retention_walks SET began_at = began_at - interval '3 days'"
    )
    await purge(database, None, None, 100)
    assert await count(database, "retention_walks") == 0


async def test_an_idempotency_key_stays_as_long_as_its_tenants_mail(database: Database) -> None:
    await add_tenant(database, "long", finished_retention=timedelta(days=400))
    message_id = await aged(database, 100, tenant="long")
    await database.execute(
        "INSERT INTO pillarbox.idempotency_keys VALUES (1, 'k', $1, '')", message_id
    )
    await purge(database, 30 * DAY, 90 * DAY, 100)
    assert await count(database, "idempotency_keys") == 1


async def test_a_key_that_outlived_its_mail_goes_after_a_day(database: Database) -> None:
    message_id = await aged(database, 2)
    await database.execute(
        "INSERT INTO pillarbox.idempotency_keys VALUES (1, 'k', $1, '')", message_id
    )
    await database.execute("DELETE FROM pillarbox.messages")
    assert (await purge(database, None, None, 100))["keys"] == 1


async def test_several_at_once_drop_everything_once(database: Database) -> None:
    await add_tenant(
        database, "brief", content_retention=timedelta(days=1), finished_retention=timedelta(days=3)
    )
    for days in range(1, 21):
        await aged(database, days, tenant="brief" if days % 2 else "default")
    rounds = await asyncio.gather(*(purge(database, 5 * DAY, 10 * DAY, 3) for _ in range(4)))
    assert sum(one["messages"] for one in rounds) == 15
    assert (
        await count(database, "messages") == 5
    )  # of brief the one of a day, of default those of 2, 4, 6 and 8 days


async def test_a_changed_age_reaches_older_mails_in_the_next_round(database: Database) -> None:
    """Also where another tenant or class has that age already, and its walk was far ahead."""
    brief = timedelta(days=2)
    await add_tenant(database, "brief", content_retention=brief, finished_retention=brief)
    await aged(database, 10, **{"class": "bulk"})
    await aged(database, 9)
    await aged(database, 8, tenant="brief")
    assert (await purge(database, 30 * DAY, 90 * DAY, 100))["messages"] == 1
    await put_class(database, ClassRecord("bulk", None, "resend", False, brief))
    assert (await purge(database, 30 * DAY, 90 * DAY, 100))["contents"] == 1
    await change_tenant(database, "default", finished_retention=brief)
    assert (await purge(database, 30 * DAY, 90 * DAY, 100))["messages"] == 2


@pytest.mark.parametrize("query", ["purge_finished", "purge_contents", "purge_keys"])
async def test_no_large_table_is_read_whole(database: Database, query: str) -> None:
    await remember(database)
    for filled in (
        "idempotency_keys SELECT 1, id::text, id, ''",
        "attempts (message_id, claim, started_at, ended_at, n, verdict) SELECT id, 1, now(), now(), 0, 'accepted'",
        "conversations SELECT id, 1, ''",
        "events (message_id, kind) SELECT id, 'test'",
        "captured (provider_id, message_id, sender, recipients, content) SELECT 1, id, '', '{}', ''",
        "feedback (provider_id, event_id, message_id, n, kind, at, hard, data, waiting)"
        " SELECT 1, id::text, id, 0, 'delivered', now(), false, '{}', false",
        "webhook_calls (id, endpoint_id, message_id, kind, at, payload, state, next_at)"
        " SELECT id, id, id, 'message.sent', now(), '{}', 'delivered', now()",
    ):
        await database.execute(f"INSERT INTO pillarbox.{filled} FROM pillarbox.messages")
    await database.execute("ANALYZE")
    found = await plan_of(database, SQL[query])
    assert {one for one in found if one.startswith("all of")} <= {
        "all of tenants",
        "all of classes",
    }
    assert not {"deliveries_fresh", "deliveries_state"} & set(found)


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
            "INSERT INTO pillarbox.idempotency_keys VALUES (1, $1, $2, '')",
            f"key of {days} days ago",
            message_id,
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
