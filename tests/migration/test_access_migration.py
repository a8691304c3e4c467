"""The migration to tenants' settings, keys and logins: from a schema in use, with its data and its roles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
import pytest_asyncio
from tests import PATIENCE

from pillarbox.model.access import Order
from pillarbox.store import access, tenants
from pillarbox.store.database import Database
from pillarbox.store.migrations import migrate

BEFORE, ACCESS = 4, 5
NEW_TABLES = ("api_keys", "smtp_logins", "retention_walks")
ENQUEUE = "SELECT pillarbox.enqueue(sender => 'a@x.example', \"to\" => '{b@x.example}', text => 'hi', tenant => $1)"


@pytest_asyncio.fixture
async def used(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to an installation of the version before, with tenants and mails."""
    connection = await asyncpg.connect(empty_database_url)
    await migrate(connection, to=BEFORE)
    await connection.execute(
        "INSERT INTO pillarbox.tenants (name, default_sender) VALUES ('shop', 'a@shop.example')"
    )
    for tenant in ("default", "shop", "shop"):
        await connection.fetchval(ENQUEUE, tenant)
    yield connection
    connection.terminate()


async def test_what_was_there_stays(used: asyncpg.Connection, empty_database_url: str) -> None:
    before = await used.fetch("SELECT * FROM pillarbox.deliveries ORDER BY seq")
    await migrate(used, to=ACCESS)
    assert before == await used.fetch("SELECT * FROM pillarbox.deliveries ORDER BY seq")
    await used.fetchval(ENQUEUE, "shop")
    await migrate(used)
    database = await Database.connect(empty_database_url)
    shop = await tenants.get_tenant(database, "shop")
    assert (shop.default_sender, shop.order, shop.default_class) == (
        "a@shop.example",
        Order.FIFO,
        "transactional",
    )
    assert (shop.max_recipients, shop.sender_domains, shop.content_retention) == (None, (), None)
    assert not await database.fetchval("SELECT bool_or(restricted) FROM pillarbox.tenants")
    assert await access.list_keys(database) == []
    await database.close()


async def test_no_large_table_is_rewritten(used: asyncpg.Connection) -> None:
    files = "SELECT relname, relfilenode FROM pg_class WHERE relname IN ('messages', 'contents', 'deliveries', 'attempts')"
    before = dict(await used.fetch(files))
    await migrate(used, to=ACCESS)
    assert before == dict(await used.fetch(files))


async def test_an_open_transaction_holds_up_the_migration_and_nobody_else(
    used: asyncpg.Connection, empty_database_url: str
) -> None:
    """Whoever enqueued reads the tenants until COMMIT; the migration waits its turn, again and again."""
    holder = await asyncpg.connect(empty_database_url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.fetchval(ENQUEUE, "shop")
    migration = asyncio.create_task(migrate(used, to=ACCESS))
    other = await asyncpg.connect(empty_database_url)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pillarbox.tenants'::regclass"
    while not await other.fetchval(waiting):
        await asyncio.sleep(0.01)
    for _ in range(3):
        await other.fetchval(ENQUEUE, "default")
    assert not migration.done()
    await transaction.commit()
    assert [one.version for one in await asyncio.wait_for(migration, PATIENCE)] == [ACCESS]
    assert await other.fetchval("SELECT count(*) FROM pillarbox.messages") == 3 + 1 + 3
    await holder.close()
    await other.close()


async def test_a_role_that_may_enqueue_reads_none_of_it(
    used: asyncpg.Connection, empty_database_url: str, postgres_admin: psycopg.Connection
) -> None:
    role = f"app_{urlsplit(empty_database_url).path[1:]}"
    postgres_admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
    await used.execute(f"GRANT USAGE ON SCHEMA pillarbox TO {role}")
    await used.execute(
        f"GRANT EXECUTE ON FUNCTION pillarbox.enqueue, pillarbox.enqueue_many TO {role}"
    )
    await migrate(used)
    application = await asyncpg.connect(empty_database_url, user=role, password=role)
    try:
        for table in (*NEW_TABLES, "tenants"):
            for statement in ("SELECT FROM", "DELETE FROM", "TRUNCATE"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await application.execute(f"{statement} pillarbox.{table}")
        for call in ("_domain('a@b')", "_check_tenant(1, 'a@b', 1, 1)"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await application.fetchval(f"SELECT pillarbox.{call}")
        await application.fetchval(ENQUEUE, "shop")
    finally:
        await application.close()
        await used.execute(f"DROP OWNED BY {role}")
        postgres_admin.execute(f"DROP ROLE {role}")
