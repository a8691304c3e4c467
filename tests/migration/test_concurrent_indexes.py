"""Migrations outside a transaction: writes go on while an index is built; an interrupted build is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest
import pytest_asyncio
from tests.harness import eventually

import pillarbox.store.migrations as module
from pillarbox.errors import SchemaMismatch, StoreError
from pillarbox.store import lifecycle_schema
from pillarbox.store.migrations import (
    Migration,
    MigrationSeries,
    available,
    check_schema,
    concurrent,
    migrate,
)

LAST = available()[-1].version
BUILD = Migration(
    LAST + 1,
    "note_index",
    "-- outside a transaction\n"
    "-- A comment; with a semicolon.\n"
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS tenants_note ON pillarbox.tenants (default_sender)\n"
    "  WHERE default_sender IS NOT NULL;\n"
    "DROP INDEX CONCURRENTLY IF EXISTS pillarbox.tenants_old;\n",
)
AFTER = Migration(LAST + 2, "after", "ALTER TABLE pillarbox.tenants ADD COLUMN note text")
ADD = "INSERT INTO pillarbox.tenants (name) VALUES ($1)"
WAITING = """SELECT pid FROM pg_stat_activity WHERE datname = current_database()
  AND query LIKE 'CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'"""
LOCKS = """SELECT DISTINCT mode FROM pg_locks
  WHERE pid = $1 AND locktype = 'relation' AND relation = 'pillarbox.tenants'::regclass"""
INDEX = "SELECT indexrelid::int8, indisvalid FROM pg_index WHERE indexrelid = to_regclass('pillarbox.tenants_note')"
Connect = Callable[[], Awaitable[asyncpg.Connection]]


@pytest_asyncio.fixture
async def connect(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connect]:
    """Connections to a database that lacks the two migrations."""
    known = [*available(), BUILD, AFTER]
    monkeypatch.setattr(module, "available", lambda: known)
    made = []

    async def connect() -> asyncpg.Connection:
        made.append(await asyncpg.connect(database_url))
        return made[-1]

    yield connect
    for connection in made:
        connection.terminate()


@asynccontextmanager
async def held_back(connect: Connect) -> AsyncIterator[asyncpg.Connection]:
    """A transaction that has written to the table and is not over: a build waits for it."""
    connection = await connect()
    async with connection.transaction():
        await connection.execute(ADD, "open")
        yield connection


async def is_building(observer: asyncpg.Connection) -> int:
    return int(await eventually(lambda: observer.fetchval(WAITING), 60))


async def test_writes_go_on_while_an_index_is_built(connect: Connect) -> None:
    migrator, observer = await connect(), await connect()
    await observer.execute("CREATE INDEX tenants_old ON pillarbox.tenants (created_at)")
    async with held_back(connect):
        task = asyncio.create_task(migrate(migrator))
        builder = await is_building(observer)
        modes = {row["mode"] for row in await observer.fetch(LOCKS, builder)}
        await observer.execute("SET lock_timeout = '60s'")
        await observer.execute(
            ADD, "meanwhile"
        )  # a lock against writes would let this wait for ever
        assert not task.done()
        with pytest.raises(SchemaMismatch, match="lacks 2"):
            await check_schema(observer)
    assert modes == {"ShareUpdateExclusiveLock"}
    assert await asyncio.wait_for(task, 120) == [BUILD, AFTER]
    assert (await observer.fetchrow(INDEX))["indisvalid"]
    assert await observer.fetchval("SELECT to_regclass('pillarbox.tenants_old')") is None
    await check_schema(observer)
    held = await observer.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
    assert held == 0


async def test_a_killed_build_is_made_again(connect: Connect) -> None:
    migrator, observer = await connect(), await connect()
    async with held_back(connect):
        task = asyncio.create_task(migrate(migrator))
        await observer.execute("SELECT pg_terminate_backend($1)", await is_building(observer))
        with pytest.raises((asyncpg.PostgresError, OSError, asyncpg.InterfaceError)):
            await asyncio.wait_for(task, 120)
    left = await eventually(lambda: observer.fetchrow(INDEX), 60)
    assert not left["indisvalid"]
    with pytest.raises(SchemaMismatch, match="lacks 2"):
        await check_schema(observer)
    assert await migrate(await connect()) == [BUILD, AFTER]
    made = await observer.fetchrow(INDEX)
    assert made["indisvalid"]
    assert made["indexrelid"] != left["indexrelid"]


async def test_a_build_outlives_its_client_and_is_not_made_twice(connect: Connect) -> None:
    """PostgreSQL notices only at the end of a statement that its client is gone; the next migrator waits for it."""
    migrator, observer = await connect(), await connect()
    async with held_back(connect):
        task = asyncio.create_task(migrate(migrator))
        await is_building(observer)
        migrator.terminate()
        with pytest.raises((asyncpg.PostgresError, OSError, asyncpg.InterfaceError)):
            await asyncio.wait_for(task, 120)
        begun = await observer.fetchrow(INDEX)
        again = asyncio.create_task(migrate(await connect()))
        await asyncio.sleep(3 * concurrent.ASK_EVERY)
        assert not again.done()
    assert await asyncio.wait_for(again, 120) == [BUILD, AFTER]
    made = await observer.fetchrow(INDEX)
    assert (made["indexrelid"], made["indisvalid"]) == (begun["indexrelid"], True)


async def test_several_migrators_at_once(connect: Connect) -> None:
    observer = await connect()
    migrators = [await connect() for _ in range(4)]
    async with held_back(connect):
        tasks = [asyncio.create_task(migrate(one)) for one in migrators]
        await is_building(observer)
    applied = await asyncio.wait_for(asyncio.gather(*tasks), 120)
    assert sorted(one.version for some in applied for one in some) == [BUILD.version, AFTER.version]
    for one in migrators:
        await check_schema(one)
        assert await one.fetchval("SHOW statement_timeout") == "0"


async def test_limits_of_the_session_do_not_end_a_build(connect: Connect) -> None:
    migrator, observer = await connect(), await connect()
    await observer.execute("SELECT set_config('statement_timeout', '0', false)")
    async with held_back(connect):
        await migrator.execute("SET statement_timeout = '1s'")
        task = asyncio.create_task(migrate(migrator))
        await is_building(observer)
        await observer.execute("SELECT pg_sleep(1.2)")
        assert not task.done()
    assert await asyncio.wait_for(task, 120) == [BUILD, AFTER]


async def test_in_a_schema_of_another_name(database_url: str, connect: Connect) -> None:
    sql = "-- outside a transaction\nCREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS a_name ON {schema}.accounts (name);\n"
    known = lifecycle_schema.available()
    step = Migration(known[-1].version + 1, "name", sql)
    series = MigrationSeries('"people"', "accounts", "pillarbox migrate", lambda: [*known, step])
    connection = await connect()
    assert (await series.migrate(connection))[-1] == step
    assert await connection.fetchval("SELECT to_regclass('people.a_name')") is not None


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE INDEX one ON pillarbox.tenants (name)",
        "CREATE INDEX CONCURRENTLY one ON pillarbox.tenants (name)",
        "CREATE INDEX CONCURRENTLY IF NOT EXISTS one ON tenants (name)",
        "DROP INDEX CONCURRENTLY pillarbox.one",
        "UPDATE pillarbox.tenants SET name = name",
    ],
)
def test_only_what_can_be_repeated_is_allowed(sql: str) -> None:
    with pytest.raises(StoreError, match="outside a transaction"):
        concurrent.parse(f"-- outside a transaction\n{sql};\n")


def test_all_of_ours_can_be_repeated() -> None:
    for one in (*available(), *lifecycle_schema.available()):
        if one.outside_transaction:
            assert concurrent.parse(one.sql), one.name


async def test_a_pooler_that_changed_the_session_is_noticed(connect: Connect) -> None:
    connection = await connect()
    with pytest.raises(StoreError, match="direct connection"):
        async with concurrent.exclusive(connection):
            await connection.execute(
                "SELECT pg_advisory_unlock_all()"
            )  # as in a session that never had the lock
