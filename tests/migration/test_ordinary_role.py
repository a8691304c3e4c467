"""Pillarbox needs no superuser: the owner of a database can install and use it."""

from __future__ import annotations

from urllib.parse import urlsplit

import asyncpg
import psycopg

from pillarbox.store.database import Database
from pillarbox.store.migrations import migrate
from pillarbox.store.providers import list_classes


async def test_an_ordinary_role_installs_and_uses_it(
    empty_database_url: str, postgres_admin: psycopg.Connection
) -> None:
    name = urlsplit(empty_database_url).path[1:]
    role = f"owner_{name}"
    postgres_admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    postgres_admin.execute(f"ALTER DATABASE {name} OWNER TO {role}")
    url = empty_database_url.replace("postgres@", f"{role}:secret@")
    connection = await asyncpg.connect(url)
    try:
        assert not await connection.fetchval(
            "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
        )
        await migrate(connection)
        mails = '[{"sender": "a@x.example", "to": "b@x.example", "text": "hi"}]'
        assert len(await connection.fetch("SELECT pillarbox.enqueue_many($1::jsonb)", mails)) == 1
    finally:
        await connection.close()
    database = await Database.connect(url)
    assert "transactional" in await list_classes(database)
    await database.close()
    postgres_admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    postgres_admin.execute(f"DROP ROLE {role}")
    postgres_admin.execute(f"CREATE DATABASE {name}")  # the fixture drops it
