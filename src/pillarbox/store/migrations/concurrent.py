"""Migrations outside a transaction: build indexes without blocking writes; resumable."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from pillarbox.errors import StoreError
from pillarbox.telemetry import logs

log = logs.get("pillarbox.store")
# The first line of a migration that runs outside a transaction.
MARK = "-- outside a transaction"
# Held by the building session. Not the lock of ordinary migrations: a process that waits for that
# one holds a snapshot, and CREATE INDEX CONCURRENTLY waits until all older snapshots are gone, so
# the two would wait for each other.
LOCK = 0x70696C6C61726279
# Seconds between tries of a waiting process: a waiting pg_advisory_lock() would hold a snapshot.
ASK_EVERY = 0.25
# Building an index on a large table may take hours; the pool's own limit is for short statements.
LONGEST_BUILD = 7 * 86400.0
_NAME = r'(?:"[^"]+"|\{schema\}|\w+)'
_CREATE = re.compile(
    r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY IF NOT EXISTS (?P<index>\w+)\s+"
    rf"ON (?P<schema>{_NAME})\.\w+\b.*",
    re.S,
)
_DROP = re.compile(rf"DROP INDEX CONCURRENTLY IF EXISTS {_NAME}\.\w+")


@dataclass(frozen=True, slots=True)
class IndexStatement:
    sql: str
    creates: str | None  # the index with its schema; None: the statement drops one


def parse(sql: str) -> list[IndexStatement]:
    """The statements of a migration outside a transaction; all can be repeated after a crash."""
    text = "\n".join(line.partition("--")[0] for line in sql.splitlines())
    statements = [statement.strip() for statement in text.split(";")]
    return [_parse_one(statement) for statement in statements if statement]


def _parse_one(sql: str) -> IndexStatement:
    created = _CREATE.fullmatch(sql)
    if created is not None:
        return IndexStatement(sql, f"{created['schema']}.{created['index']}")
    if _DROP.fullmatch(sql):
        return IndexStatement(sql, None)
    raise StoreError(
        f"a migration outside a transaction cannot hold {sql!r}: allowed are CREATE INDEX"
        " CONCURRENTLY IF NOT EXISTS … ON schema.table and DROP INDEX CONCURRENTLY IF EXISTS"
        " schema.index"
    )


@asynccontextmanager
async def exclusive(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """Hold the lock of migrations outside a transaction; statements have no time limit.

    The lock belongs to the session: a build that PostgreSQL continues after its client died still
    holds it.
    """
    waiting = False
    while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", LOCK):
        if not waiting:
            log.warning("another process builds indexes; waiting until it has finished")
            waiting = True
        await asyncio.sleep(ASK_EVERY)
    try:
        await connection.execute("SET statement_timeout = 0")
        await connection.execute("SET lock_timeout = 0")
        yield
    finally:
        if not connection.is_closed():
            await connection.execute("RESET statement_timeout")
            await connection.execute("RESET lock_timeout")
            await _unlock(connection)


async def _unlock(connection: asyncpg.Connection) -> None:
    if not await connection.fetchval("SELECT pg_advisory_unlock($1)", LOCK):
        raise StoreError(
            "a connection pooler changed the session while indexes were built: run the migration"
            " again on a direct connection to PostgreSQL (if it waits for a lock, a server"
            " connection of the pooler holds it: RECONNECT them)"
        )


async def run(connection: asyncpg.Connection, sql: str) -> None:
    """Run the statements of a migration, each by itself.

    Indexes that an interrupted run completed stay; one that it left invalid is built again.
    """
    for statement in parse(sql):
        if statement.creates is not None:
            await _drop_if_invalid(connection, statement.creates)
        await connection.execute(statement.sql, timeout=LONGEST_BUILD)


async def _drop_if_invalid(connection: asyncpg.Connection, index: str) -> None:
    valid = await connection.fetchval(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)", index
    )
    if valid is False:
        log.warning("dropping an index that an interrupted migration left incomplete", index=index)
        await connection.execute(
            f"DROP INDEX CONCURRENTLY IF EXISTS {index}", timeout=LONGEST_BUILD
        )
