"""Looking at messages stays on its indexes: what a tenant asks for costs the same, however much the others have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from pillarbox.store.database import Database
from pillarbox.store.message_pages import LOOKED_AT
from pillarbox.store.messages import FIRST_ID, LAST_ID, SQL

HISTORY = 30_000


async def remember(database: Database) -> None:
    """A long history of one tenant, and a short one of another, with statistics."""
    await database.execute("INSERT INTO pillarbox.tenants (name) VALUES ('small')")
    await database.execute(
        """WITH made AS (
             INSERT INTO pillarbox.messages (id, tenant_id, size, lane, created_at, class, sender, "to", subject)
             SELECT gen_random_uuid(), CASE WHEN n % 1000 = 0 THEN 2 ELSE 1 END, 1000, 1, now(), 'transactional',
               's@x.example', '{}', 'x'
             FROM generate_series(1, $1) AS n RETURNING id, tenant_id)
           INSERT INTO pillarbox.deliveries
             (message_id, seq, next_attempt_at, state, tenant_id, size, n, lane, role, recipient)
           SELECT id, row_number() OVER (), now(), 'sent', tenant_id, 1000, 0, 1, 't', 'r@x.example' FROM made""",
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


RANGE = {"tenant_id": 2, "first_id": FIRST_ID, "end_id": LAST_ID}
# Arguments (None where none is given), and the indexes that must be used. A message is found by
# either index: with few tenants PostgreSQL 18 skips through the other.
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "page": ({**RANGE, "limit": 50}, {"messages_tenant", "deliveries_pkey"}),
    "page_end": ({**RANGE, "position": LOOKED_AT}, {"messages_tenant"}),
    "message": ({"id": UUID(int=1), "tenant_id": 2}, set()),
    "deliveries": ({"message_id": UUID(int=1), "tenant_id": 2}, {"deliveries_pkey"}),
    "reschedule": (
        {
            "message_id": UUID(int=1),
            "recipient_numbers": [0],
            "send_at": datetime.now(UTC),
            "data": "{}",
        },
        {"deliveries_pkey"},
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_no_large_table_is_read_whole(database: Database, name: str) -> None:
    await remember(database)
    arguments, indexes = CASES[name]
    statement = getattr(SQL, name)
    query, *values = statement(**dict.fromkeys(statement.parameters) | arguments)
    async with database.transaction() as connection:
        await connection.execute(
            "SET LOCAL plan_cache_mode = force_generic_plan"
        )  # the worst the planner may choose
        text = await connection.fetchval("EXPLAIN (FORMAT JSON) " + query, *values)
    found = set(scans(json.loads(text)[0]["Plan"]))
    assert indexes <= found
    assert {"all of messages", "all of deliveries", "all of contents"}.isdisjoint(found)
