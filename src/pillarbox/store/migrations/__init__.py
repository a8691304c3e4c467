"""Forward-only migrations: numbered SQL files, each in its own transaction, under one lock.

The current text of functions, views and triggers is in `store/schema`, which says how to change it.

An index on a table that may be large must not block writes while it is built. Put it into a file of
its own whose first line is

    -- outside a transaction

and which contains only statements of these two forms, any number of them:

    CREATE INDEX CONCURRENTLY IF NOT EXISTS deliveries_example ON pillarbox.deliveries (example);
    DROP INDEX CONCURRENTLY IF EXISTS pillarbox.deliveries_example;

Columns and functions belong in an ordinary file before it. Each statement runs by itself, under a
lock of the session; the next run resumes one that was interrupted (see `concurrent.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

import asyncpg

from pillarbox.errors import SchemaMismatch, WrongDatabase
from pillarbox.store.database import Db
from pillarbox.store.migrations import concurrent

# PostgreSQL 14 is the oldest that still gets fixes and has lz4 TOAST compression.
OLDEST_SERVER = 140000
# The advisory lock of migrations: "pillarbx" in ASCII.
LOCK = 0x70696C6C61726278


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def outside_transaction(self) -> bool:
        return self.sql.startswith(concurrent.MARK)


@dataclass(frozen=True, slots=True)
class MigrationSeries:
    """The migrations of one schema: its quoted name, its title, and the command that migrates it.

    `{schema}` in their SQL stands for the name; the checksum is that of the text before.
    """

    schema: str
    title: str
    command: str
    available: Callable[[], list[Migration]]

    async def migrate(
        self, connection: asyncpg.Connection, to: int | None = None
    ) -> list[Migration]:
        """Migrate to the newest version or to `to`; returns what was applied."""
        check_server(connection)
        applied: list[Migration] = []
        while True:
            migration = await self._apply_next(connection, to)
            if migration is None:
                return applied
            is_applied = True
            if migration.outside_transaction:
                is_applied = await self._apply_outside_transaction(connection, migration)
            if is_applied:
                applied.append(migration)

    async def _apply_next(self, connection: asyncpg.Connection, to: int | None) -> Migration | None:
        """Apply and return the next migration; one outside a transaction is only returned."""
        async with connection.transaction():
            # Released at the end of the transaction, so it also works through a transaction pooler.
            await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            await self.prepare(connection)
            done = await self._applied(connection)
            self._compare(done)
            missing = [migration for migration in self.available() if migration.version not in done]
            if not missing or (to is not None and missing[0].version > to):
                return None
            migration = missing[0]
            if not migration.outside_transaction:
                await connection.execute(migration.sql.replace("{schema}", self.schema))
                await self.record(connection, migration)
            return migration

    async def prepare(self, connection: asyncpg.Connection) -> None:
        """Create the schema and its table of applied migrations if they do not exist."""
        await connection.execute(
            f"CREATE SCHEMA IF NOT EXISTS {self.schema};"
            f"CREATE TABLE IF NOT EXISTS {self.schema}.migrations (version integer PRIMARY KEY,"
            " name text NOT NULL, checksum text NOT NULL,"
            " applied_at timestamptz NOT NULL DEFAULT now())"
        )

    async def _apply_outside_transaction(
        self, connection: asyncpg.Connection, migration: Migration
    ) -> bool:
        """Apply a migration outside a transaction; false if another process did it meanwhile."""
        async with concurrent.exclusive(connection):
            if migration.version in await self._applied(connection):
                return False
            await concurrent.run(connection, migration.sql.replace("{schema}", self.schema))
            await self.record(connection, migration)
            return True

    async def record(self, connection: asyncpg.Connection, migration: Migration) -> None:
        """Record that a migration was applied."""
        table = f"{self.schema}.migrations"
        record = f"INSERT INTO {table} (version, name, checksum) VALUES ($1, $2, $3)"  # noqa: S608
        await connection.execute(record, migration.version, migration.name, migration.checksum)

    async def is_installed(self, db: Db) -> bool:
        """Whether any migration was ever applied."""
        return await db.fetchval("SELECT to_regclass($1)", f"{self.schema}.migrations") is not None

    async def check(self, connection: asyncpg.Connection) -> None:
        """Raise SchemaMismatch unless the schema is the one this program needs."""
        check_server(connection)
        if not await self.is_installed(connection):
            raise SchemaMismatch(f"the database has no {self.title} yet: run `{self.command}`")
        done = await self._applied(connection)
        self._compare(done)
        missing = [migration for migration in self.available() if migration.version not in done]
        if missing:
            raise SchemaMismatch(
                f"the schema lacks {len(missing)} migration(s): run `{self.command}`"
            )

    async def _applied(self, connection: asyncpg.Connection) -> dict[int, str]:
        try:
            query = f"SELECT version, checksum FROM {self.schema}.migrations"  # noqa: S608
            rows = await connection.fetch(query)
        except asyncpg.UndefinedColumnError:
            raise WrongDatabase(
                f"the table {self.schema}.migrations is not Pillarbox's: choose another schema"
            ) from None
        return {row["version"]: row["checksum"] for row in rows}

    def _compare(self, done: dict[int, str]) -> None:
        known = {migration.version: migration for migration in self.available()}
        for version, checksum in done.items():
            if version not in known:
                raise SchemaMismatch(
                    f"the schema has migration {version}, which this program does not know:"
                    " upgrade Pillarbox"
                )
            if known[version].checksum != checksum:
                raise SchemaMismatch(
                    f"migration {version} of the schema {self.schema} differs from this program's"
                )


def read_all(package: str) -> list[Migration]:
    """The migrations in a folder of files, in order."""
    files = sorted(f.name for f in resources.files(package).iterdir() if f.name.endswith(".sql"))
    return [_read(package, file) for file in files]


def _read(package: str, file: str) -> Migration:
    number, _, name = file.removesuffix(".sql").partition("_")
    return Migration(int(number), name, resources.files(package).joinpath(file).read_text("utf-8"))


def check_server(connection: asyncpg.Connection) -> None:
    version = connection.get_server_version()
    if version.major * 10000 < OLDEST_SERVER:
        raise WrongDatabase(f"PostgreSQL {version.major} is too old: Pillarbox needs 14 or newer")


def available() -> list[Migration]:
    """Every migration of Pillarbox's own schema that this program knows, in order."""
    return read_all(__name__)


# Called when needed, since tests replace `available`.
OWN = MigrationSeries("pillarbox", "Pillarbox schema", "pillarbox migrate", lambda: available())


async def migrate(connection: asyncpg.Connection, to: int | None = None) -> list[Migration]:
    """Migrate Pillarbox's own schema to the newest version or to `to`; returns what was applied."""
    return await OWN.migrate(connection, to)


async def check_schema(connection: asyncpg.Connection) -> None:
    """Raise SchemaMismatch unless Pillarbox's own schema is the one this program needs."""
    await OWN.check(connection)
