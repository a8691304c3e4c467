"""Webhooks cost the same however long the log and the queue of calls are: the plans, and the work, guarded."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from pillarbox.store.database import Database
from pillarbox.store.webhooks import SQL
from tests.harness import enqueue
from tests.integration.queue.test_query_plans import plan_of
from tests.integration.track.test_customer_webhooks import TELL

ENDPOINT = UUID("0198c5a2-7d7e-7b0c-9e55-0c2f0c3d7a11")


async def remember(database: Database, analyze: bool) -> None:
    """An endpoint with a long log, and many calls that wait; with statistics, or with none."""
    await database.execute(
        "INSERT INTO pillarbox.webhook_endpoints (id, tenant_id, url, secret) VALUES ($1, 1, 'https://x.example', '')",
        ENDPOINT,
    )
    await database.execute(
        """INSERT INTO pillarbox.webhook_calls (id, endpoint_id, message_id, n, kind, at, payload, state, next_at)
           SELECT pillarbox._new_id(), $1, gen_random_uuid(), 0, 'message.sent', now(), '{}',
             CASE WHEN i % 3 = 0 THEN 'waiting' ELSE 'delivered' END, now() + (i % 100 - 50) * interval '1 minute'
           FROM generate_series(1, 15000) AS i""",
        ENDPOINT,
    )
    if analyze:
        await database.execute("VACUUM ANALYZE pillarbox.webhook_calls")


async def looked_at(database: Database, query: str, *arguments: Any) -> int:
    """How many pages a statement touches."""
    async with database.transaction() as connection:
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        text = await connection.fetchval(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query, *arguments
        )
    plan = json.loads(text)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("analyze", [True, False])
async def test_claiming_and_settling_look_at_little(database: Database, analyze: bool) -> None:
    await remember(database, analyze)
    claim = SQL.claim(lease=60.0, limit=10, per_endpoint=10, busy_endpoints=[], busy_counts=[])
    found = await plan_of(database, SQL.claim.text)
    assert "all of webhook_calls" not in found
    assert "webhook_calls_order" in found
    assert await looked_at(database, *claim) < 1000
    assert await looked_at(database, *SQL.due_in()) < 100
    row = await database.fetchrow(
        "SELECT id FROM pillarbox.webhook_calls WHERE state = 'waiting' LIMIT 1"
    )
    assert row
    await database.execute("UPDATE pillarbox.webhook_calls SET claim = 7 WHERE id = $1", row["id"])
    settle = SQL.settle_call(
        id=row["id"],
        claim=7,
        state="waiting",
        delay=5.0,
        status=500,
        error="x",
        took=1.0,
        gone=False,
        disable_after=60.0,
    )
    assert await looked_at(database, *settle) < 150
    log = SQL.calls(
        endpoint_id=ENDPOINT,
        tenant_id=1,
        states=["waiting", "delivered", "failed"],
        before=None,
        limit=50,
    )
    assert await looked_at(database, *log) < 300
    replay = SQL.replay(
        endpoint_id=ENDPOINT,
        states=["failed"],
        first_id=UUID(int=0),
        end_id=UUID(int=2**128 - 1),
        limit=100,
        after=None,
    )
    assert await looked_at(database, *replay) < 50


@pytest.mark.parametrize("analyze", [True, False])
async def test_telling_looks_at_little(database: Database, analyze: bool) -> None:
    await remember(database, analyze)
    message_id = await enqueue(database)
    at = await database.fetchval("SELECT now()")
    told = [message_id], [0], ["message.sent"], [at], ["{}"]
    await database.execute(TELL, *told)
    assert await looked_at(database, TELL, *told) < 150


async def test_with_no_endpoint_telling_is_one_look(database: Database) -> None:
    at = await database.fetchval("SELECT now()")
    told = [uuid4()] * 1000, [0] * 1000, ["message.sent"] * 1000, [at] * 1000, ["{}"] * 1000
    await database.execute(TELL, *told)
    assert await looked_at(database, TELL, *told) < 20
