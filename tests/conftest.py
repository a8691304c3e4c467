"""PostgreSQL for tests: one real server per test process, one migrated template, a fresh clone per test, made ahead."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import psycopg
import pytest
import pytest_asyncio
import uvloop
from hypothesis import settings

from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.migrations import migrate
from tests.places import short_directory, stopped_after_death
from tests.prepared import PreparedDatabases, drop, make

# Tests pull no plugs on this server, so it need not wait for the disk (those that do start their
# own); and autovacuum would visit the template just when it is cloned, which PostgreSQL refuses.
SERVER_OPTIONS = {
    "fsync": "off",
    "max_connections": "200",
    "autovacuum": "off",
    "max_wal_size": "128MB",
}
TEMPLATE = "pillarbox_template"
# How long an example may take depends on the machine, and no test may.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests of a module that says `ON_BOTH_LOOPS = True` run on asyncio's own loop and on uvloop, as users do."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if getattr(getattr(item, "module", None), "ON_BOTH_LOOPS", False):
        loops["uvloop"] = uvloop.new_event_loop
    return loops


def fast_place() -> str | None:
    """Memory, if there is plenty: tests spend most of their time on files of fresh databases. None: the usual place."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 6 * 2**30 else None


def server_binaries() -> Path | None:
    """The directory of other PostgreSQL programs to test with (such as Debian's), if asked for."""
    chosen = os.environ.get("TEST_POSTGRES_BIN")
    return Path(chosen) if chosen else None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """A running server, shared by the tests of this process."""
    directory = short_directory(fast_place())
    server = EmbeddedPostgres(directory / "data", server_binaries(), SERVER_OPTIONS)
    with stopped_after_death(directory):
        try:
            server.start()
            yield server
        finally:
            server.stop("immediate")
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_admin(postgres_server: EmbeddedPostgres) -> Iterator[psycopg.Connection]:
    """A superuser's connection, in autocommit, with the migrated template database made."""
    with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {TEMPLATE}")
        with ThreadPoolExecutor(
            1
        ) as thread:  # away from the event loop that pytest-asyncio keeps here
            thread.submit(asyncio.run, _migrate(postgres_server.url(TEMPLATE))).result()
        yield admin


async def _migrate(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await migrate(connection)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def prepared(
    postgres_server: EmbeddedPostgres, postgres_admin: psycopg.Connection
) -> Iterator[PreparedDatabases]:
    """Migrated databases, ready to be used once."""
    databases = PreparedDatabases(postgres_server.url(), TEMPLATE)
    yield databases
    databases.close()


@pytest.fixture
def empty_database_url(
    postgres_server: EmbeddedPostgres, postgres_admin: psycopg.Connection
) -> Iterator[str]:
    """The URL of a fresh database without our schema."""
    name = make(postgres_admin, "template0")
    yield postgres_server.url(name)
    drop(postgres_admin, name)


@pytest.fixture
def database_url(postgres_server: EmbeddedPostgres, prepared: PreparedDatabases) -> Iterator[str]:
    """The URL of a fresh, migrated database."""
    name = prepared.take()
    yield postgres_server.url(name)
    prepared.give_back(name)


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A pool on the test's database."""
    database = await Database.connect(database_url)
    yield database
    await database.close()


@pytest_asyncio.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """One asyncpg connection to the test's database."""
    connection = await asyncpg.connect(database_url)
    yield connection
    connection.terminate() if connection.is_in_transaction() else await connection.close()


@pytest_asyncio.fixture
async def stoppable() -> AsyncIterator[EmbeddedPostgres]:
    """A migrated server of the test's own, which it may stop."""
    directory = short_directory()
    server = EmbeddedPostgres(directory / "data", server_binaries(), {"fsync": "off"})
    with stopped_after_death(directory):
        try:
            await asyncio.to_thread(server.start)
            await _migrate(server.url())
            yield server
        finally:
            await asyncio.to_thread(server.stop, "immediate")
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
