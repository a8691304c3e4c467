"""The schema of accounts and tokens: installed on request, under any name, forward only, by an ordinary owner."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
import pytest_asyncio
from tests.integration.cli.cli_helpers import Cli
from tests.integration.lifecycle.lifecycle_helpers import add_account, add_token
from tests.places import short_directory

from pillarbox.app import open_app
from pillarbox.errors import SchemaMismatch, SettingsError, StoreError
from pillarbox.settings import load
from pillarbox.store import lifecycle_schema
from pillarbox.store.lifecycle import TokenStore
from pillarbox.store.lifecycle_schema import (
    available,
    check,
    install,
    is_installed,
    quoted,
    upgrade_if_installed,
)
from pillarbox.store.migrations import Migration, migrate

VERSIONS = [migration.version for migration in available()]


@pytest_asyncio.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


def test_versions_are_numbered_without_gaps() -> None:
    assert list(range(1, len(VERSIONS) + 1)) == VERSIONS


async def test_it_is_there_only_when_asked_for(connection: asyncpg.Connection) -> None:
    assert not await is_installed(connection, "lifecycle")
    assert await upgrade_if_installed(connection, "lifecycle") == []
    with pytest.raises(SchemaMismatch, match="run `pillarbox migrate --with lifecycle`"):
        await check(connection, "lifecycle")
    assert await connection.fetchval("SELECT to_regnamespace('lifecycle')") is None


async def test_twice_does_nothing(connection: asyncpg.Connection) -> None:
    assert [one.version for one in await install(connection, "lifecycle")] == VERSIONS
    assert await install(connection, "lifecycle") == []
    assert await upgrade_if_installed(connection, "lifecycle") == []
    assert await is_installed(connection, "lifecycle")
    await check(connection, "lifecycle")


async def test_at_once_from_several_processes(database_url: str) -> None:
    connections = [await asyncpg.connect(database_url) for _ in range(4)]
    applied = await asyncio.gather(*(install(one, "lifecycle") for one in connections))
    assert sorted(step.version for some in applied for step in some) == VERSIONS
    for one in connections:
        await check(one, "lifecycle")
        await one.close()


@pytest.mark.parametrize("schema", ["people", "user", "public", "_x1"])
async def test_under_another_name(connection: asyncpg.Connection, schema: str) -> None:
    """`user` is a word of SQL: every name is quoted."""
    await install(connection, schema)
    await check(connection, schema)
    number = await add_account(connection, schema=quoted(schema))
    found = await connection.fetch(f"SELECT account FROM {quoted(schema)}.tokens")
    assert [row["account"] for row in found] == [number]
    secret = await connection.fetchval(f"SELECT secret FROM {quoted(schema)}.tokens")
    assert (await TokenStore(schema).consume(connection, secret, "activation")).status == "active"
    assert not await is_installed(connection, "lifecycle")


async def test_two_beside_each_other(connection: asyncpg.Connection) -> None:
    for schema in ("one", "two"):
        await install(connection, schema)
        await add_account(connection, schema=schema)
    await connection.execute("INSERT INTO one.actions (name) VALUES ('newsletter')")
    assert await add_token(connection, 1, "newsletter", "one") == 2
    with pytest.raises(asyncpg.InvalidTextRepresentationError):
        await add_token(connection, 1, "newsletter", "two")


@pytest.mark.parametrize(
    "schema", ["pillarbox", "pg_catalog", "pg_people", "information_schema", 'x"; DROP', "A", ""]
)
async def test_names_that_cannot_be(connection: asyncpg.Connection, schema: str) -> None:
    for call in (install, upgrade_if_installed, check, is_installed):
        with pytest.raises(SettingsError, match="lifecycle_schema"):
            await call(connection, schema)
    with pytest.raises(SettingsError, match="lifecycle_schema"):
        TokenStore(schema)


async def test_a_schema_of_somebody_else_is_left_alone(connection: asyncpg.Connection) -> None:
    await connection.execute(
        "CREATE SCHEMA theirs; CREATE TABLE theirs.migrations (id int, migration text)"
    )
    with pytest.raises(StoreError, match="not Pillarbox's"):
        await install(connection, "theirs")
    await connection.execute("CREATE SCHEMA others; CREATE TABLE others.accounts (id int)")
    with pytest.raises(asyncpg.DuplicateTableError):
        await install(connection, "others")
    tables = await connection.fetch(
        "SELECT table_schema || '.' || table_name FROM information_schema.tables"
        " WHERE table_schema IN ('theirs', 'others')"
    )
    assert {row[0] for row in tables} == {"theirs.migrations", "others.accounts"}


async def test_an_upgrade_keeps_what_is_there(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await install(connection, "people")
    number = await add_account(connection, schema="people")
    more = Migration(
        VERSIONS[-1] + 1,
        "more",
        "ALTER TABLE {schema}.accounts ADD COLUMN nickname text DEFAULT '{x}'",
    )
    monkeypatch.setattr(lifecycle_schema, "available", lambda: [*available(), more])
    with pytest.raises(
        SchemaMismatch, match=r"lacks 1 .*migrate --with lifecycle --lifecycle-schema people"
    ):
        await check(connection, "people")
    assert await upgrade_if_installed(connection, "people") == [more]
    await check(connection, "people")
    row = await connection.fetchrow("SELECT id, nickname FROM people.accounts")
    assert tuple(row) == (number, "{x}")
    assert await connection.fetchval("SELECT count(*) FROM people.waiting") == 1


async def test_a_failing_migration_leaves_nothing_behind(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Migration(VERSIONS[-1] + 1, "broken", "CREATE TABLE {schema}.half (); SELECT 1/0")
    monkeypatch.setattr(lifecycle_schema, "available", lambda: [*available(), broken])
    with pytest.raises(asyncpg.DivisionByZeroError):
        await install(connection, "lifecycle")
    assert await connection.fetchval("SELECT to_regclass('lifecycle.half')") is None
    assert (
        await connection.fetchval("SELECT max(version) FROM lifecycle.migrations") == VERSIONS[-1]
    )


async def test_newer_and_changed_ones_are_refused(connection: asyncpg.Connection) -> None:
    await install(connection, "lifecycle")
    await connection.execute("UPDATE lifecycle.migrations SET checksum = 'other' WHERE version = 1")
    with pytest.raises(SchemaMismatch, match="differs"):
        await install(connection, "lifecycle")
    await connection.execute("UPDATE lifecycle.migrations SET version = 9998 + version")
    with pytest.raises(SchemaMismatch, match="upgrade Pillarbox"):
        await check(connection, "lifecycle")


@pytest.fixture
def roles(empty_database_url: str, postgres_admin: psycopg.Connection) -> Iterator[tuple[str, str]]:
    """The names of an owner of the database and of an application, both ordinary roles."""
    name = urlsplit(empty_database_url).path[1:]
    owner, application = f"owner_{name}", f"app_{name}"
    for role in (owner, application):
        postgres_admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
    postgres_admin.execute(f"ALTER DATABASE {name} OWNER TO {owner}")
    yield owner, application
    postgres_admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    for role in (owner, application):
        postgres_admin.execute(f"DROP ROLE {role}")
    postgres_admin.execute(f"CREATE DATABASE {name}")  # the fixture drops it


async def test_an_ordinary_role_installs_and_an_application_uses_it(
    empty_database_url: str, roles: tuple[str, str]
) -> None:
    """No superuser anywhere; the application needs what `grant` gives it, and sees no secret."""
    owner = await asyncpg.connect(empty_database_url, user=roles[0], password=roles[0])
    assert not await owner.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    await migrate(owner)
    await install(owner, "lifecycle")
    await owner.execute("INSERT INTO lifecycle.actions (name) VALUES ('newsletter')")
    assert len(await TokenStore("lifecycle").grant(owner, roles[1])) == 6
    assert await TokenStore("lifecycle").grant(owner, "nobody_here") == []
    application = await asyncpg.connect(empty_database_url, user=roles[1], password=roles[1])
    await _live(application)
    await _see_nothing_secret(application)
    await application.close()
    assert await owner.fetchval("SELECT count(*) FROM lifecycle.waiting") == 0
    await owner.close()


async def _live(application: asyncpg.Connection) -> None:
    """All that an application does with accounts and tokens."""
    await application.execute("SET search_path = lifecycle")
    number = await add_account(application)
    await application.execute(
        "UPDATE tokens SET consumed_at = extract(epoch FROM now()) WHERE account = $1 AND action = 'activation'",
        number,
    )
    assert (
        await application.fetchval("SELECT status FROM accounts WHERE id = $1", number) == "active"
    )
    await add_token(application, number, "newsletter")
    assert await application.fetchval("SELECT issue_token($1, 'password_recovery')", number) == 3
    with pytest.raises(asyncpg.PostgresError, match="no such token"):
        await application.fetchval("SELECT consume_token('\\x00', 'password_recovery', '00000')")
    await application.execute(
        "UPDATE accounts SET status = 'suspended', name = 'Ada' WHERE id = $1", number
    )
    assert await application.fetchval("SELECT count(*) FROM token_log") == 3
    assert await application.fetchval("SELECT last_seq FROM jobs") == 0
    await application.execute("DELETE FROM accounts WHERE id = $1", number)
    assert await application.fetchval("SELECT count(*) FROM tokens") == 0


async def _see_nothing_secret(application: asyncpg.Connection) -> None:
    await add_account(application, "bob")
    for statement in (
        "SELECT secret FROM tokens", "SELECT code FROM tokens", "SELECT * FROM tokens", "SELECT * FROM waiting",
        "SELECT * FROM collected", "UPDATE tokens SET secret = '\\x00'", "UPDATE tokens SET wrong_codes = 0",
        "UPDATE tokens SET account = 2", "INSERT INTO tokens (account, action, code) VALUES (2, 'invite', '1')",
        "INSERT INTO actions (name) VALUES ('x')", "UPDATE jobs SET last_seq = 1", "SELECT * FROM migrations",
    ):  # fmt: skip
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await application.execute(statement)
    await application.execute("DELETE FROM accounts")


# --- the commands


def test_migrate_installs_on_request_and_upgrades_from_then_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(database_url)
    assert cli.json("migrate") == []
    applied = cli.json("migrate", "--with", "lifecycle")
    assert applied == [
        {"schema": "lifecycle", "version": one.version, "name": one.name} for one in available()
    ]
    assert "up to date" in cli("migrate", "--with", "lifecycle").out
    more = Migration(
        VERSIONS[-1] + 1, "more", "ALTER TABLE {schema}.accounts ADD COLUMN nickname text"
    )
    monkeypatch.setattr(lifecycle_schema, "available", lambda: [*available(), more])
    assert "pillarbox migrate --with lifecycle" in cli("queue", "list", code=1).err
    assert cli("migrate").out == f"applied {more.version:04d} more in lifecycle\n"
    cli("queue", "list")


def test_migrate_under_another_name(database_url: str) -> None:
    cli = Cli(database_url)
    assert "in people" in cli("migrate", "--with", "lifecycle", "--lifecycle-schema", "people").out
    assert cli.sql("SELECT count(*) FROM people.accounts") == [(0,)]
    assert cli.sql("SELECT to_regnamespace('lifecycle')") == [(None,)]


def test_bad_requests_change_nothing(empty_database_url: str) -> None:
    cli = Cli(empty_database_url)
    assert "lifecycle" in cli("migrate", "--with", "everything", code=2).err
    wrong = cli("migrate", "--with", "lifecycle", "--lifecycle-schema", "pillarbox", code=1)
    assert "lifecycle_schema" in wrong.err
    assert cli.sql("SELECT to_regnamespace('pillarbox')") == [(None,)]


def test_grant_covers_the_schema_where_it_is_installed(database_url: str) -> None:
    cli = Cli(database_url)
    role = "app_" + urlsplit(database_url).path[1:]
    cli.sql(f"CREATE ROLE {role}")
    try:
        before = cli.json("grant", "--app", role)
        cli("migrate", "--with", "lifecycle")
        more = cli.json("grant", "--app", role)
        assert more[: len(before)] == before
        assert f'GRANT USAGE ON SCHEMA "lifecycle" TO {role}' in more
        assert cli.sql("SELECT has_table_privilege(%s, 'lifecycle.accounts', 'INSERT')", role) == [
            (True,)
        ]
        assert "no role" in cli("grant", "--app", "nobody here", code=1).err
    finally:
        cli.sql(f"DROP OWNED BY {role}")
        cli.sql(f"DROP ROLE {role}")


@pytest.fixture
def data() -> Iterator[Path]:
    directory = short_directory()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


async def test_up_with_its_own_database_installs_it(data: Path) -> None:
    settings = load(
        {}, overrides={"data_dir": str(data), "log_level": "error", "lifecycle_schema": "people"}
    )
    async with open_app(settings, start=True, migrating=True) as app:
        assert await app.database.fetchval("SELECT count(*) FROM people.accounts") == 0


async def test_up_on_a_named_database_leaves_it_to_the_owner(database_url: str) -> None:
    settings = load({}, overrides={"database_url": database_url, "log_level": "error"})
    async with open_app(settings, migrating=True) as app, app.database.connection() as connection:
        assert not await is_installed(connection, "lifecycle")
