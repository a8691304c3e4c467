"""Takes over a database of the original collector (tetsuo/mailroom): its tables stay where they are, with their rows.

The tables are changed to what the first migration of a lifecycle schema makes, and the rest of that
migration is applied beside them; from then on it is a lifecycle schema like any other. A test
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

QUERIES = sql.load("adoption")
# What the original has: by these columns it is recognised.
ORIGINAL = {
    "accounts": {
        "id", "email", "status", "login", "created_at", "status_changed_at", "activated_at", "suspended_at",
        "unsuspended_at",
    },
    "tokens": {"id", "action", "secret", "code", "account", "expires_at", "consumed_at", "created_at"},
    "jobs": {"job_type", "last_seq"},
}  # fmt: skip
_FUNCTIONS = {
    "trg_before_account_insert", "trg_before_account_status_change", "trg_after_token_consumed",
    "trg_after_token_inserted",
}  # fmt: skip
_TYPES = {"account_status", "token_action", "job_type"}
# The columns that are added; one that the application added itself could mean something else.
_ADDED = {
    "accounts": {"portal", "locale", "name", "data"},
    "tokens": {"data", "wrong_codes", "hook_until"},
}
# A statement of a migration ends at a semicolon that is in no comment, text or body of a function.
_PIECE = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\$\$.*?\$\$|;|[^;'$-]+|.", re.DOTALL)
_CREATES = re.compile(r"CREATE (TYPE|TABLE|INDEX|VIEW|FUNCTION) (?:\{schema\}\.)?(\w+)")
_ENUM = re.compile(r"CREATE TYPE \{schema\}\.token_action AS ENUM \((.*)\)", re.DOTALL)


async def adopt(connection: asyncpg.Connection, schema: str) -> list[Migration]:
    """Make the schema of an original collector a lifecycle schema; returns what was applied.

    Its tables are locked meanwhile, and written anew. NotPossible if they are not the original's,
    or something else has a name that is needed; then they are as they were. A schema that was
    adopted before is brought up to date.
    """
    if not await is_installed(connection, schema):
        first, *_ = available()
        try:
            await _check(connection, schema)
            # Committed first: PostgreSQL uses no new value of an enum in the transaction that added
            # it.
            for value in _actions(first.sql):
                await connection.execute(
                    f"ALTER TYPE {quoted(schema)}.token_action ADD VALUE IF NOT EXISTS '{value}'"
                )
            async with connection.transaction():
                await _take_over(connection, schema, first)
        except asyncpg.PostgresError as error:
            detail = f" ({error.detail})" if getattr(error, "detail", None) else ""
            raise NotPossible(
                f"the tables of schema {schema} stay as they were: {error}{detail}"
            ) from None
        return [first, *await series(schema).migrate(connection)]
    return await series(schema).migrate(connection)


async def _check(connection: asyncpg.Connection, schema: str) -> None:
    """Raise NotPossible unless there are the original's tables, and nothing that is in the way."""
    found: dict[str, set[str]] = {}
    for row in await connection.fetch(QUERIES["shape"], schema):
        found.setdefault(row["table"], set()).add(row["column"])
    for table, columns in ORIGINAL.items():
        if missing := sorted(columns - found.get(table, set())):
            raise NotPossible(
                f"schema {schema} is not one of the original collector: {table}.{missing[0]} is missing;"
                " `migrate --with lifecycle` without --adopt makes a new schema"
            )
    names = {row["name"] for row in await connection.fetch(QUERIES["names"], schema)}
    wanted = {"migrations"} | {
        name for one in available() for kind, name in _created(one.sql) if kind != "INDEX"
    }
    taken = (wanted - set(ORIGINAL) - _FUNCTIONS - _TYPES) & names
    taken |= {
        f"{table}.{column}" for table, added in _ADDED.items() for column in added & found[table]
    }
    if taken:
        raise NotPossible(
            f"schema {schema} has names that Pillarbox needs: {', '.join(sorted(taken))}; rename them, or move"
            " accounts, tokens and jobs to a schema of their own (ALTER TABLE … SET SCHEMA)"
        )


async def _take_over(connection: asyncpg.Connection, schema: str, first: Migration) -> None:
    place, done = quoted(schema), series(schema)
    await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
    await done.prepare(connection)
    await connection.execute(QUERIES["alter"].replace("{schema}", place))
    names = {row["name"] for row in await connection.fetch(QUERIES["names"], schema)}
    for statement in _statements(first.sql):
        if not _is_there(statement, names):
            await connection.execute(statement.replace("{schema}", place))
    await connection.execute(QUERIES["fill"].replace("{schema}", place))
    await done.record(connection, first)


def _is_there(statement: str, names: set[str]) -> bool:
    """Whether the original has made what this statement makes."""
    if statement.startswith("INSERT INTO {schema}.jobs"):
        return True
    match = _CREATES.match(statement)
    if match is None:
        return False
    kind, name = match.groups()
    return name in _TYPES if kind == "TYPE" else kind in ("TABLE", "INDEX") and name in names


def _created(text: str) -> Iterator[tuple[str, str]]:
    """What the statements of a migration create: kind, name."""
    for statement in _statements(text):
        if match := _CREATES.match(statement):
            yield match[1], match[2]


def _actions(text: str) -> list[str]:
    """The values of token_action that the first migration makes."""
    found = next(match for one in _statements(text) if (match := _ENUM.match(one)))
    return re.findall(r"'(\w+)'", found[1])


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
