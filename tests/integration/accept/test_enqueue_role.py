"""An application's role: what `pillarbox grant --app` gives is enough to enqueue, and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from pillarbox import Mail, enqueue, enqueue_many
from tests import PATIENCE

MAIL = Mail(sender="shop@example.com", to="user@example.net", text="A body")


@pytest_asyncio.fixture
async def application(
    connection: asyncpg.Connection, database_url: str
) -> AsyncIterator[asyncpg.Connection]:
    """A connection whose role may do what `pillarbox grant --app` grants."""
    await connection.execute("CREATE ROLE app LOGIN NOSUPERUSER PASSWORD 'app'")
    await connection.execute("GRANT USAGE ON SCHEMA pillarbox TO app")
    await connection.execute(
        "GRANT EXECUTE ON FUNCTION pillarbox.enqueue, pillarbox.enqueue_many TO app"
    )
    application = await asyncpg.connect(database_url, user="app", password="app")
    yield application
    await application.close()
    await connection.execute("DROP OWNED BY app")
    await connection.execute("DROP ROLE app")


async def test_it_can_enqueue(
    application: asyncpg.Connection, connection: asyncpg.Connection
) -> None:
    heard = asyncio.Event()
    await connection.add_listener("pillarbox_wake", lambda *_: heard.set())
    await enqueue(application, MAIL)
    await asyncio.wait_for(heard.wait(), PATIENCE)
    async with application.transaction():
        await enqueue_many(application, [MAIL, MAIL])
    assert await connection.fetchval("SELECT count(*) FROM pillarbox.messages") == 3


async def test_it_can_read_nothing(
    application: asyncpg.Connection, connection: asyncpg.Connection
) -> None:
    relations = await connection.fetch(
        "SELECT relname, relkind FROM pg_class WHERE relnamespace = 'pillarbox'::regnamespace"
        " AND relkind IN ('r', 'v', 'm', 'S', 'p')"
    )
    assert {"messages", "contents", "providers", "delivery_logs", "message_seq"} <= {
        r["relname"] for r in relations
    }
    for relation in relations:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await application.fetch(f"SELECT * FROM pillarbox.{relation['relname']}")


async def test_it_can_write_nothing_directly(
    application: asyncpg.Connection, connection: asyncpg.Connection
) -> None:
    tables = await connection.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pillarbox'::regnamespace AND relkind = 'r'"
    )
    for (table,) in tables:
        for statement in (
            f"INSERT INTO pillarbox.{table} DEFAULT VALUES",
            f"DELETE FROM pillarbox.{table}",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await application.execute(statement)


async def test_it_can_call_no_other_function(
    connection: asyncpg.Connection, application: asyncpg.Connection
) -> None:
    callable_ = await connection.fetch(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'pillarbox'::regnamespace"
        " AND has_function_privilege('app', oid, 'EXECUTE') ORDER BY 1"
    )
    assert [name for (name,) in callable_] == ["enqueue", "enqueue_many"]
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await application.fetch("SELECT pillarbox._new_id()")


async def test_its_search_path_cannot_reach_into_the_function(
    application: asyncpg.Connection,
) -> None:
    await application.execute(
        "CREATE TEMP TABLE tenants (id int, name text, default_sender text);"
        "CREATE FUNCTION pg_temp.octet_length(text) RETURNS int LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;"
        "SET search_path = pg_temp, pg_catalog"
    )
    await enqueue(application, MAIL)
    await enqueue_many(application, [MAIL])
