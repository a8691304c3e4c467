"""Accounts and tokens for tests: the schema installed, and what several tests do in it."""

from __future__ import annotations

import re
from typing import Any

import asyncpg

from pillarbox.store import lifecycle_schema
from pillarbox.store.database import Database

SCHEMA = "lifecycle"
KEY = "deadbeef" * 8


async def install(database: Database, schema: str = SCHEMA) -> None:
    async with database.connection() as connection:
        await lifecycle_schema.install(connection, schema)


async def prepared(url: str, schema: str = SCHEMA) -> asyncpg.Connection:
    """A connection to a database with the schema of accounts and tokens, which is on its search path."""
    connection = await asyncpg.connect(url)
    await lifecycle_schema.install(connection, schema)
    await connection.execute(f"SET search_path = {schema}")
    return connection


async def add_account(
    db: Any, login: str = "ada", status: str = "provisioned", schema: str = SCHEMA
) -> int:
    """An account, whose address and login are made of one word."""
    return await db.fetchval(
        f"INSERT INTO {schema}.accounts (email, login, status)"
        f" VALUES ($1 || '@people.example', $1, $2::text::{schema}.account_status) RETURNING id",
        login,
        status,
    )


async def new_account(database: Database, schema: str = SCHEMA, **columns: Any) -> int:
    """An account with these columns, which are email and login at least."""
    places = ", ".join(f"${place}" for place in range(1, len(columns) + 1))
    query = f"INSERT INTO {schema}.accounts ({', '.join(columns)}) VALUES ({places}) RETURNING id"
    return int(await database.fetchval(query, *columns.values()))


async def add_token(
    db: Any, account: int, action: str = "password_recovery", schema: str = SCHEMA
) -> int:
    """A token, as an application inserts it."""
    return await db.fetchval(
        f"INSERT INTO {schema}.tokens (account, action) VALUES ($1, $2::text::{schema}.token_action) RETURNING id",
        account,
        action,
    )


async def expire(db: Any, token: int, schema: str = SCHEMA) -> None:
    """Let a token's time have passed a second ago."""
    await db.execute(
        f"UPDATE {schema}.tokens SET expires_at = extract(epoch FROM clock_timestamp()) - 1 WHERE id = $1",
        token,
    )


def wrong(code: str, by: int = 1) -> str:
    """Another code than this."""
    return f"{(int(code) + by) % 10 ** len(code):0{len(code)}}"


def code_in(text: str) -> str:
    """The code that stands alone in a line of a mail."""
    [found] = re.findall(r"^ *(\d{6})$", text, re.MULTILINE)
    return str(found)
