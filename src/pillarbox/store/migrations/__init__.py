"""Forward-only migrations: numbered SQL files, each in its own transaction, under one lock."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

import asyncpg

from pillarbox.errors import SchemaMismatch, StoreError

# PostgreSQL 14 is the oldest that still gets fixes and knows lz4 TOAST compression.
OLDEST_SERVER = 140000
# Any number will do, as long as it is ours: "pillarbx" in ASCII.
LOCK = 0x70696C6C61726278


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def available() -> list[Migration]:
    """Every migration this program knows, in order."""
    files = sorted(f.name for f in resources.files(__name__).iterdir() if f.name.endswith(".sql"))
    return [_read(file) for file in files]


def _read(file: str) -> Migration:
    number, _, name = file.removesuffix(".sql").partition("_")
    return Migration(int(number), name, resources.files(__name__).joinpath(file).read_text("utf-8"))


async def migrate(connection: asyncpg.Connection, to: int | None = None) -> list[Migration]:
    """Bring the schema up to date (or up to version `to`); returns what was applied. Safe to run concurrently."""
    check_server(connection)
    applied = []
    while (step := await _apply_next(connection, to)) is not None:
        applied.append(step)
    return applied


async def _apply_next(connection: asyncpg.Connection, to: int | None) -> Migration | None:
    async with connection.transaction():
        # Released at the end of the transaction, so it also works through a transaction pooler.
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        await connection.execute(
            "CREATE SCHEMA IF NOT EXISTS pillarbox;"
            "CREATE TABLE IF NOT EXISTS pillarbox.migrations (version integer PRIMARY KEY, name text NOT NULL,"
            " checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        done = await _applied(connection)
        _compare(done)
        step = next((m for m in available() if m.version not in done and (to is None or m.version <= to)), None)
        if step is not None:
            await connection.execute(step.sql)
            await connection.execute(
                "INSERT INTO pillarbox.migrations (version, name, checksum) VALUES ($1, $2, $3)",
                step.version, step.name, step.checksum,
            )  # fmt: skip
        return step


async def check_schema(connection: asyncpg.Connection) -> None:
    """Raise SchemaMismatch unless the schema is the one this program needs."""
    check_server(connection)
    if await connection.fetchval("SELECT to_regclass('pillarbox.migrations')") is None:
        raise SchemaMismatch("the database has no Pillarbox schema yet: run `pillarbox migrate`")
    done = await _applied(connection)
    _compare(done)
    missing = [m for m in available() if m.version not in done]
    if missing:
        raise SchemaMismatch(f"the schema lacks {len(missing)} migration(s): run `pillarbox migrate`")


def check_server(connection: asyncpg.Connection) -> None:
    version = connection.get_server_version()
    if version.major * 10000 < OLDEST_SERVER:
        raise StoreError(f"PostgreSQL {version.major} is too old: Pillarbox needs 14 or newer")


async def _applied(connection: asyncpg.Connection) -> dict[int, str]:
    rows = await connection.fetch("SELECT version, checksum FROM pillarbox.migrations")
    return {row["version"]: row["checksum"] for row in rows}


def _compare(done: dict[int, str]) -> None:
    known = {m.version: m for m in available()}
    for version, checksum in done.items():
        if version not in known:
            raise SchemaMismatch(
                f"the schema has migration {version}, which this program does not know: upgrade Pillarbox"
            )
        if known[version].checksum != checksum:
            raise SchemaMismatch(f"migration {version} in the database differs from this program's")
