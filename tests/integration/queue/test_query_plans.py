"""Claiming and settling stay on their indexes, whatever the history: the plans, guarded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from pillarbox.queue.ledger import SQL
from pillarbox.store.database import Database

HISTORY = 30_000
STATEMENTS = (
    "survey", "claim", "take_lanes", "give_lanes", "settle", "release", "reap", "promote", "release_strays"
)  # fmt: skip


async def remember(database: Database) -> None:
    """A long history of finished mails and a handful of waiting ones, with statistics."""
    await database.execute(
        """WITH made AS (
             INSERT INTO pillarbox.messages (id, tenant_id, size, lane, created_at, class, sender, "to", subject)
             SELECT gen_random_uuid(), 1, 1000, 1, now(), 'transactional', 's@x.example', '{}', 'x'
             FROM generate_series(1, $1) RETURNING id)
           INSERT INTO pillarbox.deliveries
             (message_id, seq, next_attempt_at, state, tenant_id, size, n, lane, role, recipient)
           SELECT id, row_number() OVER (), now(),
             (CASE WHEN row_number() OVER () % 3000 = 0 THEN 'queued' ELSE 'sent' END)::pillarbox.state,
             1, 1000, 0, 1, 't', 'r@x.example'
           FROM made""",
        HISTORY,
    )
    await database.execute("INSERT INTO pillarbox.contents SELECT id, 'x' FROM pillarbox.messages")
    await database.execute("VACUUM ANALYZE")


def scans(plan: dict[str, Any]) -> Iterator[str]:
    """Every index that a plan looks into, and every table that it reads whole."""
    if "Index Name" in plan:
        yield plan["Index Name"]
    elif plan["Node Type"] == "Seq Scan":
        yield f"all of {plan['Relation Name']}"
    for child in plan.get("Plans", []):
        yield from scans(child)


async def explain(connection: asyncpg.Connection, query: str) -> dict[str, Any]:
    """The generic plan of a query, which knows no argument: a worker's, and the worst that the planner may choose."""
    await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    await connection.execute(f"PREPARE asked AS {query}")
    types = await connection.fetchval(
        "SELECT parameter_types FROM pg_prepared_statements WHERE name = 'asked'"
    )
    arguments = f"({', '.join('NULL' for _ in types)})" if types else ""
    text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE asked{arguments}")
    await connection.execute("DEALLOCATE asked")
    return json.loads(text)[0]["Plan"]  # type: ignore[no-any-return]


async def plan_of(database: Database, query: str) -> list[str]:
    async with database.transaction() as connection:
        return list(scans(await explain(connection, query)))


@pytest.mark.parametrize("name", STATEMENTS)
async def test_no_large_table_is_read_whole(database: Database, name: str) -> None:
    await remember(database)
    found = await plan_of(database, SQL[name])
    large = {f"all of {table}" for table in ("deliveries", "messages", "contents", "attempts")}
    assert found
    assert large.isdisjoint(found)


@pytest.mark.parametrize("name", ["settle", "release"])
async def test_settling_finds_its_rows_by_their_key(database: Database, name: str) -> None:
    """Not by a partial index that the statistics call empty: it is walked whole, for every row."""
    await remember(database)
    found = await plan_of(database, SQL[name])
    assert {one for one in found if one.startswith("deliveries")} == {"deliveries_pkey"}


async def test_a_claim_finds_the_rest_of_its_messages_by_their_key(database: Database) -> None:
    await remember(database)
    await database.execute("UPDATE pillarbox.deliveries SET state = 'sent'")
    await database.execute(
        "VACUUM ANALYZE pillarbox.deliveries"
    )  # statistics that know of nothing queued
    found = Counter(await plan_of(database, SQL["claim"]))
    # By the partial indexes to choose the heads, once each; by the key for everything else.
    assert (found["deliveries_ready"], found["deliveries_deferred"], found["deliveries_pkey"]) == (
        1,
        1,
        5,
    )


async def test_a_survey_jumps_from_lane_to_lane(database: Database) -> None:
    await remember(database)
    found = Counter(await plan_of(database, SQL["survey"]))
    assert (found["deliveries_ready"], found["deliveries_deferred"], found["deliveries_pkey"]) == (
        2,
        2,
        0,
    )
