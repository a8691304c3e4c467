"""The upgrade from 0.1.0, where objects of the application depend on `pillarbox.enqueue`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from pillarbox.store.migrations import check_schema, migrate

RELEASED = 13  # the newest migration of version 0.1.0
CALL = "pillarbox.enqueue(sender => 'a@b.example', \"to\" => '{c@d.example}', text => 'x')"
FORMER = "SELECT to_regproc('pillarbox._enqueue_0_1') IS NOT NULL"
# PostgreSQL records that these depend on the function. Each has a statement that calls it.
DEPENDENTS = {
    "view": (f"CREATE VIEW shop.mailer AS SELECT {CALL} AS id", "SELECT id FROM shop.mailer"),
    "default": (
        f"CREATE TABLE shop.orders (number integer, mail uuid DEFAULT {CALL})",
        "INSERT INTO shop.orders (number) VALUES (1) RETURNING mail",
    ),
    "function": (
        f"CREATE FUNCTION shop.send() RETURNS uuid BEGIN ATOMIC SELECT {CALL}; END",
        "SELECT shop.send()",
    ),
}


@pytest_asyncio.fixture
async def released(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A database of 0.1.0 with a schema of the application."""
    connection = await asyncpg.connect(empty_database_url)
    await migrate(connection, RELEASED)
    await connection.execute("CREATE SCHEMA shop")
    yield connection
    await connection.close()


@pytest.mark.parametrize("kind", DEPENDENTS)
async def test_dependents_go_on_sending(released: asyncpg.Connection, kind: str) -> None:
    create, use = DEPENDENTS[kind]
    await released.execute(create)
    await migrate(released)
    await check_schema(released)
    by_dependent = await released.fetchval(use)
    by_name = await released.fetchval(f"SELECT {CALL}")
    rows = await released.fetch("SELECT id, text FROM pillarbox.messages JOIN pillarbox.contents ON message_id = id")  # fmt: skip
    assert {row["id"]: row["text"] for row in rows} == {by_dependent: "x", by_name: "x"}


async def test_every_field_of_0_1_0_arrives(released: asyncpg.Connection) -> None:
    """The former function hands its arguments on in their order."""
    await released.execute(
        "CREATE VIEW shop.mailer AS SELECT pillarbox.enqueue("
        " sender => 'a@b.example', \"to\" => '{c@d.example}', subject => 's', text => 't',"
        " html => 'h', cc => '{e@f.example}', bcc => '{g@h.example}', reply_to => '{r@s.example}',"
        " headers => '{\"X-A\": \"1\"}', class => 'bulk', kind => 'k', priority => 'urgent',"
        " max_attempts => 3, idempotency_key => 'i', tags => '{x,y}', metadata => '{\"m\": 1}',"
        ' attachments => \'[{"filename": "f", "content": "eA=="}]\') AS id'
    )
    before = await stored(released, await released.fetchval("SELECT id FROM shop.mailer"))
    await released.execute("DELETE FROM pillarbox.idempotency_keys")
    await migrate(released)
    after = await stored(released, await released.fetchval("SELECT id FROM shop.mailer"))
    assert after == before


async def stored(connection: asyncpg.Connection, message_id: object) -> list[object]:
    row = await connection.fetchrow(
        'SELECT sender, "to", cc, reply_to, subject, text, html, headers, class, kind, lane,'
        " max_attempts, tags, metadata, attachments, (SELECT array_agg(recipient ORDER BY n)"
        " FROM pillarbox.deliveries d WHERE d.message_id = m.id) AS recipients"
        " FROM pillarbox.messages m JOIN pillarbox.contents c ON c.message_id = m.id WHERE id = $1",
        message_id,
    )
    return list(row)


async def test_privileges_of_dependents_stay(released: asyncpg.Connection) -> None:
    role = f"shop_{released.get_server_pid()}"
    create, use = DEPENDENTS["view"]
    await released.execute(
        f"{create}; CREATE ROLE {role}; GRANT USAGE ON SCHEMA pillarbox, shop TO {role};"
        f"GRANT SELECT ON shop.mailer TO {role}; GRANT EXECUTE ON FUNCTION pillarbox.enqueue TO {role}"
    )
    await migrate(released)
    public = "SELECT has_function_privilege('public', 'pillarbox._enqueue_0_1'::regproc, 'EXECUTE')"
    assert not await released.fetchval(public)
    await released.execute(f"SET ROLE {role}")
    assert await released.fetchval(use)
    assert await released.fetchval(f"SELECT {CALL}")
    await released.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


async def test_without_dependents_nothing_is_kept(released: asyncpg.Connection) -> None:
    await released.execute(  # the text of a function like this is no dependency
        f"CREATE FUNCTION shop.send() RETURNS uuid LANGUAGE sql AS $$ SELECT {CALL} $$"
    )
    await migrate(released)
    assert not await released.fetchval(FORMER)
    assert await released.fetchval("SELECT shop.send()")


async def test_the_former_function_can_be_dropped_afterwards(
    released: asyncpg.Connection,
) -> None:
    create, _ = DEPENDENTS["view"]
    await released.execute(create)
    await migrate(released)
    assert await released.fetchval(FORMER)
    with pytest.raises(asyncpg.DependentObjectsStillExistError, match="_enqueue_0_1"):
        await released.execute("DROP FUNCTION pillarbox._enqueue_0_1")
    await released.execute(create.replace("CREATE VIEW", "CREATE OR REPLACE VIEW"))
    await released.execute("DROP FUNCTION pillarbox._enqueue_0_1")
