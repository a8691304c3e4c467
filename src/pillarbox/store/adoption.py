"""Adopts a database of the original collector (tetsuo/mailroom): its tables and rows stay in place.

The tables are altered to what the first migration of a lifecycle schema creates, and the rest of
that migration is applied beside them. The result is a lifecycle schema like any other; a test
compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import asyncpg

from pillarbox.errors import NotPossible
from pillarbox.store import sql
from pillarbox.store.lifecycle_schema import available, is_installed, quoted, series
from pillarbox.store.migrations import LOCK, Migration

SQL = sql.load("adoption")
# The columns by which the original is recognised.
ORIGINAL = {
    "accounts": {
        "id", "email", "status", "login", "created_at", "status_changed_at", "activated_at",
        "suspended_at", "unsuspended_at",
    },
    "tokens": {
        "id", "action", "secret", "code", "account", "expires_at", "consumed_at", "created_at",
    },
    "jobs": {"job_type", "last_seq"},
}  # fmt: skip
_FUNCTIONS = {
    "trg_before_account_insert", "trg_before_account_status_change",
    "trg_after_token_consumed", "trg_after_token_inserted",
}  # fmt: skip
_TYPES = {"account_status", "token_action", "job_type"}
# The columns that are added. One that the application has added could mean something else.
_ADDED = {
    "accounts": {"portal", "locale", "name", "data"},
    "tokens": {"data", "wrong_codes", "hook_until"},
}
# A statement ends at a semicolon outside comments, strings and bodies of functions.
_PIECE = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\$\$.*?\$\$|;|[^;'$-]+|.", re.DOTALL)
_CREATES = re.compile(r"CREATE (TYPE|TABLE|INDEX|VIEW|FUNCTION) (?:\{schema\}\.)?(\w+)")
_ENUM = re.compile(r"CREATE TYPE \{schema\}\.token_action AS ENUM \((.*)\)", re.DOTALL)


async def adopt(connection: asyncpg.Connection, schema: str) -> list[Migration]:
    """Make the schema of an original collector a lifecycle schema; returns the applied migrations.

    The tables are locked and rewritten. NotPossible if they are not the original's, or a needed
    name is taken; then nothing was changed. A schema that was adopted before is upgraded.
    """
    if await is_installed(connection, schema):
        return await series(schema).migrate(connection)
    first = available()[0]
    try:
        await _check(connection, schema)
        # Committed first: PostgreSQL cannot use a new enum value in the transaction that adds it.
        for value in _actions(first.sql):
            await connection.execute(
                f"ALTER TYPE {quoted(schema)}.token_action ADD VALUE IF NOT EXISTS '{value}'"
            )
        async with connection.transaction():
            await _take_over(connection, schema, first)
    except asyncpg.PostgresError as error:
        detail = f" ({error.detail})" if getattr(error, "detail", None) else ""
        raise NotPossible(
            f"the tables of schema {schema} were not changed: {error}{detail}"
        ) from None
    return [first, *await series(schema).migrate(connection)]


async def _check(connection: asyncpg.Connection, schema: str) -> None:
    """Raise NotPossible unless the original's tables exist and every needed name is free."""
    found: dict[str, set[str]] = {}
    for row in await connection.fetch(*SQL.shape(schema=schema)):
        found.setdefault(row["table"], set()).add(row["column"])
    for table, columns in ORIGINAL.items():
        missing = sorted(columns - found.get(table, set()))
        if missing:
            raise NotPossible(
                f"schema {schema} is not one of the original collector: {table}.{missing[0]} is"
                " missing; `migrate --with lifecycle` without --adopt makes a new schema"
            )
    needed = {"migrations"}
    for migration in available():
        needed |= {name for kind, name in _created(migration.sql) if kind != "INDEX"}
    taken = (needed - set(ORIGINAL) - _FUNCTIONS - _TYPES) & await _names(connection, schema)
    for table, added in _ADDED.items():
        taken |= {f"{table}.{column}" for column in added & found[table]}
    if taken:
        raise NotPossible(
            f"schema {schema} has names that Pillarbox needs: {', '.join(sorted(taken))}; rename"
            " them, or move accounts, tokens and jobs to a schema of their own"
            " (ALTER TABLE … SET SCHEMA)"
        )


async def _names(connection: asyncpg.Connection, schema: str) -> set[str]:
    """The names of everything in the schema that could collide."""
    return {row["name"] for row in await connection.fetch(*SQL.names(schema=schema))}


async def _take_over(connection: asyncpg.Connection, schema: str, first: Migration) -> None:
    name, migrations = quoted(schema), series(schema)
    await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
    await migrations.prepare(connection)
    await connection.execute(SQL.alter.text.replace("{schema}", name))
    existing = await _names(connection, schema)
    for statement in _statements(first.sql):
        if not _is_there(statement, existing):
            await connection.execute(statement.replace("{schema}", name))
    await connection.execute(SQL.fill.text.replace("{schema}", name))
    await migrations.record(connection, first)


def _is_there(statement: str, names: set[str]) -> bool:
    """Whether the original has what this statement creates."""
    if statement.startswith("INSERT INTO {schema}.jobs"):
        return True
    match = _CREATES.match(statement)
    if match is None:
        return False
    kind, name = match.groups()
    if kind == "TYPE":
        return name in _TYPES
    return kind in ("TABLE", "INDEX") and name in names


def _created(text: str) -> Iterator[tuple[str, str]]:
    """The kinds and names of what a migration creates."""
    for statement in _statements(text):
        if match := _CREATES.match(statement):
            yield match[1], match[2]


def _actions(text: str) -> list[str]:
    """The values of token_action that the first migration creates."""
    for statement in _statements(text):
        match = _ENUM.match(statement)
        if match:
            return re.findall(r"'(\w+)'", match[1])
    raise AssertionError("the first migration creates no token_action")


def _statements(text: str) -> Iterator[str]:
    """The statements of a migration, without the comments between them."""
    statement = ""
    for match in _PIECE.finditer(text):
        piece = match[0]
        if piece == ";":
            yield statement.strip()
            statement = ""
        elif not piece.startswith("--"):
            statement += piece
    if statement.strip():
        yield statement.strip()
