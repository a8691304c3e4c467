"""Migrations: forward only, from any earlier version, safe to run twice and at once."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from pillarbox.errors import SchemaMismatch
from pillarbox.store.migrations import available, check_schema, migrate

VERSIONS = [migration.version for migration in available()]


def test_versions_are_unique_and_in_order() -> None:
    assert sorted(set(VERSIONS)) == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
async def test_from_every_version_to_the_newest(empty_database_url: str, version: int) -> None:
    """Stop halfway, then go on: what was there stays, and the schema is the newest."""
    connection = await asyncpg.connect(empty_database_url)
    first = await migrate(connection, to=version)
    await connection.execute("INSERT INTO pillarbox.tenants (name) VALUES ('kept')")
    if version < VERSIONS[-1]:
        with pytest.raises(SchemaMismatch, match="pillarbox migrate"):
            await check_schema(connection)
    rest = await migrate(connection)
    assert [m.version for m in first + rest] == VERSIONS
    await check_schema(connection)
    assert (
        await connection.fetchval("SELECT count(*) FROM pillarbox.tenants WHERE name = 'kept'") == 1
    )
    await connection.close()


async def test_twice_does_nothing(empty_database_url: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    assert len(await migrate(connection)) == len(VERSIONS)
    assert await migrate(connection) == []
    await connection.close()


async def test_at_once_from_several_processes(empty_database_url: str) -> None:
    connections = [await asyncpg.connect(empty_database_url) for _ in range(4)]
    applied = await asyncio.gather(*(migrate(connection) for connection in connections))
    assert sorted(m.version for some in applied for m in some) == VERSIONS
    for connection in connections:
        await check_schema(connection)
        await connection.close()


async def test_an_empty_database_says_what_to_do(empty_database_url: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    with pytest.raises(SchemaMismatch, match="run `pillarbox migrate`"):
        await check_schema(connection)
    await connection.close()


async def test_a_newer_schema_is_refused(empty_database_url: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    await migrate(connection)
    await connection.execute(
        "INSERT INTO pillarbox.migrations (version, name, checksum) VALUES (9999, 'later', 'x')"
    )
    for call in (check_schema, migrate):
        with pytest.raises(SchemaMismatch, match="upgrade Pillarbox"):
            await call(connection)
    await connection.close()


async def test_a_changed_migration_is_refused(empty_database_url: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    await migrate(connection)
    await connection.execute("UPDATE pillarbox.migrations SET checksum = 'other' WHERE version = 1")
    with pytest.raises(SchemaMismatch, match="differs"):
        await migrate(connection)
    await connection.close()


async def test_a_failing_migration_leaves_nothing_behind(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pillarbox.store.migrations as module

    broken = [
        *available(),
        module.Migration(VERSIONS[-1] + 1, "broken", "CREATE TABLE pillarbox.half (); SELECT 1/0"),
    ]
    monkeypatch.setattr(module, "available", lambda: broken)
    connection = await asyncpg.connect(empty_database_url)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(connection)
    assert await connection.fetchval("SELECT to_regclass('pillarbox.half')") is None
    assert (
        await connection.fetchval("SELECT max(version) FROM pillarbox.migrations") == VERSIONS[-1]
    )
    await connection.close()
