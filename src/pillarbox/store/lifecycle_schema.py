"""The schema of accounts and tokens: installed on request, with a name that the user chooses."""

from __future__ import annotations

import re

import asyncpg

from pillarbox.errors import SettingsError
from pillarbox.store.database import Db
from pillarbox.store.migrations import Migration, MigrationSeries, read_all

# Names that `lifecycle_schema` may have: a safe part of PostgreSQL's rules.
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# Pillarbox's own, and PostgreSQL's.
_TAKEN = re.compile(r"pillarbox|information_schema|pg_.*")
# Reads the catalog: the database may have another schema of this name without USAGE.
_INSTALLED = """
SELECT EXISTS (
  SELECT FROM pg_namespace n
  JOIN pg_class c ON c.relnamespace = n.oid JOIN pg_attribute a ON a.attrelid = c.oid
  WHERE n.nspname = $1 AND c.relname = 'migrations' AND a.attname = 'checksum'
    AND has_schema_privilege(n.oid, 'USAGE'))
"""


def quoted(schema: str) -> str:
    """The schema's name, quoted for SQL; SettingsError if it is not allowed."""
    if not _NAME.fullmatch(schema):
        raise SettingsError(
            f"lifecycle_schema: {schema!r} is no name of small letters, digits and _"
        )
    if _TAKEN.fullmatch(schema):
        raise SettingsError(
            f"lifecycle_schema: {schema!r} is reserved: choose another name, such as lifecycle"
        )
    return f'"{schema}"'


def available() -> list[Migration]:
    """Every migration of a lifecycle schema that this program knows, in order."""
    return read_all("pillarbox.store.lifecycle_migrations")


def series(schema: str) -> MigrationSeries:
    """The migrations of the lifecycle schema of this name."""
    command = "pillarbox migrate --with lifecycle"
    if schema != "lifecycle":
        command += f" --lifecycle-schema {schema}"
    return MigrationSeries(
        quoted(schema), f"schema of accounts and tokens ({schema})", command, available
    )


async def install(connection: asyncpg.Connection, schema: str) -> list[Migration]:
    """Create or upgrade the schema; returns what was applied. Safe to run concurrently."""
    return await series(schema).migrate(connection)


async def upgrade_if_installed(connection: asyncpg.Connection, schema: str) -> list[Migration]:
    """Upgrade the schema if it is installed; returns what was applied."""
    if not await is_installed(connection, schema):
        return []
    return await install(connection, schema)


async def check(connection: asyncpg.Connection, schema: str) -> None:
    """Raise SchemaMismatch unless the schema is the one this program needs."""
    await series(schema).check(connection)


async def check_if_installed(connection: asyncpg.Connection, schema: str) -> None:
    """Raise SchemaMismatch if the schema is installed and not the one this program needs."""
    if await is_installed(connection, schema):
        await check(connection, schema)


async def is_installed(db: Db, schema: str) -> bool:
    """Whether Pillarbox installed a schema of this name, in any version."""
    quoted(schema)
    return bool(await db.fetchval(_INSTALLED, schema))
