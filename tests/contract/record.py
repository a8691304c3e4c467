"""The record behind the queue, as tests arrange and read it: the only SQL of the contract tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from tests.harness import SENDER, eventually

from pillarbox.store.database import Database

# -- tenants, classes and mails


async def add_tenant(database: Database, name: str, order: str = "fifo", **settings: Any) -> None:
    columns = {"name": name, "order_mode": order} | settings
    places = ", ".join(f"${place}" for place in range(1, len(columns) + 1))
    await database.execute(
        f"INSERT INTO pillarbox.tenants ({', '.join(columns)}) VALUES ({places})", *columns.values()
    )


async def set_tenant(database: Database, name: str = "default", **settings: Any) -> None:
    changes = ", ".join(f"{column} = ${place}" for place, column in enumerate(settings, 2))
    await database.execute(
        f"UPDATE pillarbox.tenants SET {changes} WHERE name = $1", name, *settings.values()
    )


async def fill(
    database: Database, count: int, tenant: str = "default", priority: str = "normal"
) -> list[UUID]:
    """Accept many mails in one go; returns them in the order of acceptance."""
    rows = await database.fetch(
        """SELECT pillarbox.enqueue(sender => $1, "to" => ARRAY['r@x.example'], subject => 'x', text => 'x',
                                    tenant => $2, priority => $3) FROM generate_series(1, $4)""",
        SENDER, tenant, priority, count,
    )  # fmt: skip
    return [row[0] for row in rows]


async def make_due(database: Database) -> None:
    """Let the time of everything that was deferred come."""
    await database.execute(
        "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state = 'queued'"
    )


async def add_class(database: Database, name: str, unknown: str) -> None:
    await database.execute(
        "INSERT INTO pillarbox.classes (name, unknown) VALUES ($1, $2)", name, unknown
    )


async def expire_messages(database: Database) -> None:
    await database.execute("UPDATE pillarbox.messages SET expires_at = now() - interval '1 second'")


async def cancel(database: Database, message_id: UUID) -> None:
    await database.execute(
        "UPDATE pillarbox.deliveries SET state = 'cancelled' WHERE message_id = $1", message_id
    )


# -- what was recorded


async def seq_of_messages(database: Database) -> dict[UUID, int]:
    """The order of acceptance."""
    return dict(await database.fetch("SELECT message_id, seq FROM pillarbox.deliveries"))


async def count_deliveries(database: Database, state: str) -> int:
    query = "SELECT count(*) FROM pillarbox.deliveries WHERE state = $1::text::pillarbox.state"
    return int(await database.fetchval(query, state))


async def count_unknown_attempts(database: Database) -> int:
    return int(
        await database.fetchval("SELECT count(*) FROM pillarbox.attempts WHERE verdict = 'unknown'")
    )


async def events(database: Database, message_id: UUID) -> list[str]:
    """The kinds of a message's events."""
    query = "SELECT kind FROM pillarbox.events WHERE message_id = $1 ORDER BY id"
    return [row["kind"] for row in await database.fetch(query, message_id)]


async def claim_times(database: Database, messages: Sequence[UUID]) -> list[tuple[float, int]]:
    """When messages were claimed, in seconds, and how many at each time."""
    rows = await database.fetch(
        """SELECT extract(epoch FROM claimed_at)::float8 AS at, count(*) FROM pillarbox.deliveries
           WHERE message_id = ANY ($1) GROUP BY claimed_at""",
        messages,
    )
    return [(row["at"], row["count"]) for row in rows]


# -- time


async def age_rates(database: Database, seconds: float) -> None:
    """Let time pass for rate limits: what was used up becomes older."""
    await database.execute(
        """UPDATE pillarbox.rates SET second_at = second_at - $1 * interval '1 second',
             hour_at = hour_at - $1 * interval '1 second', day_at = day_at - $1 * interval '1 second'""",
        seconds,
    )


async def end_lease(database: Database, worker: int) -> None:
    """Let a worker's lease run out a second ago."""
    await database.execute(
        "UPDATE pillarbox.workers SET lease_until = now() - interval '1 second' WHERE id = $1",
        worker,
    )


async def forget_lease(database: Database, worker: int) -> None:
    """Drop the length of a worker's lease, which older versions did not record."""
    await database.execute("UPDATE pillarbox.workers SET lease = NULL WHERE id = $1", worker)


async def set_availability(database: Database, touched_ago: float, since: float) -> None:
    """Processes have reached the database for `since` seconds, the last one `touched_ago`."""
    await database.execute(
        """UPDATE pillarbox.availability
           SET since = clock_timestamp() - $1 * interval '1 second',
               touched_at = clock_timestamp() - $2 * interval '1 second'""",
        float(since), float(touched_ago),
    )  # fmt: skip


async def delete_availability(database: Database) -> None:
    await database.execute("DELETE FROM pillarbox.availability")


async def availability(database: Database) -> tuple[float, float]:
    """For how many seconds processes have reached the database, and how long ago the last one."""
    row = await database.fetchrow(
        """SELECT extract(epoch FROM clock_timestamp() - since)::float8 AS since,
             extract(epoch FROM clock_timestamp() - touched_at)::float8 AS ago
           FROM pillarbox.availability"""
    )
    assert row is not None
    return row["since"], row["ago"]


@asynccontextmanager
async def claims_blocked(database: Database) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """Claims wait inside PostgreSQL; what is yielded waits for one that does."""
    async with database.transaction() as locker:
        await locker.execute("LOCK pillarbox.contents IN ACCESS EXCLUSIVE MODE")
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        yield lambda: eventually(lambda: locker.fetchval(query))
