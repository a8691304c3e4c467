"""A database of the original collector is taken over: its rows stay, and it is a lifecycle schema like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from tests.integration.cli.cli_helpers import Cli
from tests.integration.lifecycle.collector_helpers import collector

from pillarbox.errors import NotPossible
from pillarbox.store.adoption import adopt
from pillarbox.store.lifecycle_schema import available, check, install

ORIGINAL = (Path(__file__).parent / "original_collector.sql").read_text("utf-8")
# Stands in for pgcrypto's, which is not in every PostgreSQL that is under test.
RANDOM = """CREATE FUNCTION gen_random_bytes(count integer) RETURNS bytea LANGUAGE sql VOLATILE AS
  'SELECT substr(sha256(uuid_send(gen_random_uuid())), 1, count)'"""
VERSIONS = [one.version for one in available()]


@pytest_asyncio.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def make_original(connection: asyncpg.Connection, schema: str) -> None:
    """The original's schema, with people and tokens in every state; the collector has got to token 3."""
    await connection.execute(
        f"CREATE SCHEMA IF NOT EXISTS {schema}; SET search_path = {schema}, public"
    )
    await connection.execute(RANDOM)
    await connection.execute(ORIGINAL)
    await connection.execute(
        "INSERT INTO accounts (email, login) SELECT 'u' || n || '@mail.example', 'u' || n FROM generate_series(1, 5) n"
    )  # tokens 1 to 5
    await connection.execute(
        "UPDATE tokens SET consumed_at = extract(epoch FROM now()) WHERE account = 1"
    )
    await connection.execute(
        "INSERT INTO tokens (account, action) VALUES (1, 'password_recovery')"
    )  # token 6
    await connection.execute("UPDATE tokens SET expires_at = 1700000000 WHERE id = 4")
    await connection.execute("UPDATE jobs SET last_seq = 3")
    await connection.execute(
        "CREATE TABLE orders (id serial PRIMARY KEY, account bigint REFERENCES accounts (id))"
    )
    await connection.execute("INSERT INTO orders (account) VALUES (2)")


async def rows_of(connection: asyncpg.Connection, schema: str, table: str) -> list[dict[str, Any]]:
    return [
        dict(row) for row in await connection.fetch(f"SELECT * FROM {schema}.{table} ORDER BY 1")
    ]


async def described(connection: asyncpg.Connection, schema: str) -> dict[str, Any]:
    """Everything in a schema that the migrations make, without its name."""
    await connection.execute("SET search_path = pg_catalog")
    queries = {
        "columns": "SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' '"
        " || a.attnotnull || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '') FROM pg_class c"
        " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
        " LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum"
        " WHERE c.relnamespace = $1::regnamespace AND c.relkind IN ('r', 'v')",
        "constraints": "SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)"
        " FROM pg_constraint WHERE connamespace = $1::regnamespace AND contype <> 'n'",
        "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = $1",
        "triggers": "SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " WHERE c.relnamespace = $1::regnamespace AND NOT t.tgisinternal",
        "functions": "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = $1::regnamespace",
        "views": "SELECT definition FROM pg_views WHERE schemaname = $1",
        "enums": "SELECT t.typname || ' ' || e.enumlabel FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid"
        " WHERE t.typnamespace = $1::regnamespace",
    }
    found: dict[str, Any] = {}
    for name, query in queries.items():
        texts = [row[0] for row in await connection.fetch(query, schema)]
        found[name] = {text.replace(f'"{schema}".', "").replace(f"{schema}.", "") for text in texts}
    for table in ("actions", "migrations"):
        columns = "version, checksum" if table == "migrations" else "*"
        rows = await connection.fetch(f"SELECT {columns} FROM {schema}.{table}")
        found[table] = {tuple(map(str, row)) for row in rows}
    return found


@pytest.mark.parametrize("schema", ["public", "mailroom"])
async def test_its_rows_stay(connection: asyncpg.Connection, schema: str) -> None:
    await make_original(connection, schema)
    before = {
        table: await rows_of(connection, schema, table)
        for table in ("accounts", "tokens", "jobs", "orders")
    }
    assert [one.version for one in await adopt(connection, schema)] == VERSIONS
    for table, rows in before.items():
        now = await rows_of(connection, schema, table)
        assert [{name: row[name] for name in rows[0]} for row in now] == rows
    await check(connection, schema)
    assert await adopt(connection, schema) == []  # once is enough


async def test_it_is_a_lifecycle_schema_like_any_other(connection: asyncpg.Connection) -> None:
    await make_original(connection, "mailroom")
    await adopt(connection, "mailroom")
    await connection.execute("DROP TABLE mailroom.orders; DROP FUNCTION mailroom.gen_random_bytes")
    await install(connection, "lifecycle")
    adopted, fresh = [await described(connection, schema) for schema in ("mailroom", "lifecycle")]
    for name, found in fresh.items():
        more = adopted[name] - found
        if name == "indexes":  # the original's own are left alone
            assert {one.split()[2] for one in more} == {
                "tokens_account_fkey",
                "jobs_last_seq_type_idx",
            }
        else:
            assert not more, name
        assert found <= adopted[name], name


async def test_tokens_are_where_the_cursor_says(connection: asyncpg.Connection) -> None:
    await make_original(connection, "mailroom")
    await adopt(connection, "mailroom")
    found = await connection.fetch("SELECT id, outcome FROM mailroom.token_log ORDER BY id")
    assert {row["id"]: row["outcome"] for row in found} == {
        1: "written", 2: "written", 3: "written", 4: "expired", 5: "waiting", 6: "waiting",
    }  # fmt: skip


async def test_what_waited_is_mailed_and_applications_go_on(
    connection: asyncpg.Connection, database_url: str
) -> None:
    await make_original(connection, "mailroom")
    cli = Cli(database_url)
    answer = await asyncio.to_thread(cli, "migrate", "--with", "lifecycle", "--adopt", "mailroom")
    assert "PILLARBOX_LIFECYCLE_SCHEMA=mailroom" in answer.err + answer.out
    await connection.execute(
        "INSERT INTO accounts (email, login) VALUES ('new@mail.example', 'new')"
    )
    await connection.execute("UPDATE accounts SET status = 'suspended' WHERE login = 'u2'")
    async with collector(database_url, lifecycle_schema="mailroom") as (_, one):
        await one.run_once(asyncio.Event())
    rows = await connection.fetch("SELECT recipient FROM pillarbox.deliveries ORDER BY 1")
    assert [row["recipient"] for row in rows] == [
        "new@mail.example",
        "u1@mail.example",
        "u5@mail.example",
    ]


async def test_another_schema_is_refused_and_left_alone(connection: asyncpg.Connection) -> None:
    await connection.execute("CREATE SCHEMA other; CREATE TABLE other.accounts (id bigint)")
    for schema in ("other", "nowhere"):
        with pytest.raises(NotPossible, match="not one of the original collector: accounts"):
            await adopt(connection, schema)
    assert await connection.fetchval("SELECT to_regnamespace('nowhere')") is None
    assert await connection.fetchval("SELECT to_regclass('other.migrations')") is None


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE TABLE actions (id integer)", "names that Pillarbox needs: actions"),
        ("CREATE TABLE migrations (id integer)", "names that Pillarbox needs: migrations"),
        (
            "ALTER TABLE accounts ADD COLUMN name integer",
            r"names that Pillarbox needs: accounts\.name",
        ),
        (
            "CREATE VIEW young AS SELECT created_at FROM accounts",
            "were not changed: .*used by a view",
        ),
    ],
)
async def test_what_is_in_the_way_is_named(
    connection: asyncpg.Connection, statement: str, said: str
) -> None:
    await make_original(connection, "mailroom")
    await connection.execute(statement)
    with pytest.raises(NotPossible, match=said):
        await adopt(connection, "mailroom")
    assert await connection.fetchval("SELECT to_regclass('mailroom.waiting')") is None
    await connection.execute(
        "INSERT INTO accounts (email, login) VALUES ('x@mail.example', 'x')"
    )  # it works as before
    assert await connection.fetchval("SELECT count(*) FROM tokens") == 7


def test_options_that_contradict_each_other(database_url: str) -> None:
    cli = Cli(database_url)
    assert "needs --with lifecycle" in cli("migrate", "--adopt", "mailroom", code=2).err
    given = (
        "migrate",
        "--with",
        "lifecycle",
        "--adopt",
        "mailroom",
        "--lifecycle-schema",
        "people",
    )
    assert "the same name" in " ".join(cli(*given, code=2).err.split())
