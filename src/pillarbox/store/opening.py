"""Opens the configured or the embedded database, with retries while it is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from asyncpg import ClientConfigurationError

from pillarbox.errors import SettingsError, StoreError, WrongDatabase
from pillarbox.loops import backoff, wait
from pillarbox.setting_kinds import show_url
from pillarbox.settings import Settings
from pillarbox.store import lifecycle_schema
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.migrations import check_schema, migrate
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs

log = logs.get("pillarbox.store")
T = TypeVar("T")
# Pauses between connection attempts double from the first to the longest: a wrong password tried
# every second would fill the server's log.
CONNECT_PAUSE, LONGEST_CONNECT_PAUSE = 1.0, 10.0
# SQLSTATE of a database that does not exist.
NO_SUCH_DATABASE = "3D000"
# Seconds between checks of the embedded server: mails wait while it is down.
WATCH_INTERVAL = 1.0


@asynccontextmanager
async def open_database(
    settings: Settings, *, start: bool = False, patient: asyncio.Event | None = None
) -> AsyncIterator[Database]:
    """Connect to the database, whatever its schema.

    `start` starts the embedded server and stops it at the end. With `patient`, retry while the
    database is unavailable until that event is set, like a service that starts before its database.
    """
    server = None
    url = settings.database_url
    if url is None:
        server = _embedded(settings)
        if start:
            await asyncio.to_thread(server.start)
        url = running_url(settings)
    try:
        if patient:
            database = await _connect_patiently(settings, url, patient)
        else:
            database = await _connect(settings, url)
        try:
            yield database
        finally:
            await database.close()
    finally:
        if server and start:
            await asyncio.to_thread(server.stop)


def running_url(settings: Settings) -> str:
    """The URL of the database; the embedded server must be running."""
    if settings.database_url is not None:
        return settings.database_url
    server = _embedded(settings)
    if not server.running():
        raise StoreError(
            f"no database: nothing runs in {settings.data_dir}. Start it with `pillarbox up`, or"
            " name a database with --database-url or PILLARBOX_DATABASE_URL"
        )
    return server.url()


async def _connect(settings: Settings, url: str) -> Database:
    try:
        return await Database.connect(
            url,
            least=settings.pool_min,
            most=settings.pool_max,
            statement_cache=settings.statement_cache,
        )
    except ValueError:  # its text may quote a part of the password
        raise SettingsError(
            f"the database URL cannot be read: {show_url(url)}\n"
            "write postgresql://user:password@host:5432/name, with / as %2F, @ as %40, : as %3A,"
            " # as %23 and ? as %3F in the password"
        ) from None
    except StoreError as error:
        if isinstance(error.__cause__, ClientConfigurationError):
            raise SettingsError(
                f"the database URL is wrong: {show_url(url)}: {error.__cause__}"
            ) from None
        reason = str(error).removeprefix("PostgreSQL: ")
        raised = WrongDatabase if is_final(error) else StoreError
        raise raised(f"cannot connect to {show_url(url)}: {reason}", error.sqlstate) from error


async def _connect_patiently(settings: Settings, url: str, stop: asyncio.Event) -> Database:
    pauses = backoff(CONNECT_PAUSE, LONGEST_CONNECT_PAUSE)
    while True:
        try:
            return await _connect(settings, url)
        except StoreError as error:
            if stop.is_set() or not error.retryable:
                raise
            address = show_url(url).rpartition("@")[2]
            log.warning("waiting for the database", database=address, error=str(error.__cause__))
            await wait(stop, next(pauses))


def is_final(error: StoreError) -> bool:
    """Whether retrying cannot help: the database does not exist, or the URL is wrong.

    A refused login (class 28) or a missing privilege (42501) is retried: a service may start while
    a person changes the password.
    """
    return not error.retryable or error.sqlstate == NO_SUCH_DATABASE


async def patiently(call: Callable[[], Awaitable[T]], stop: asyncio.Event | None) -> T:
    """Make a call; with `stop`, retry while PostgreSQL is unavailable until that event is set."""
    pauses = backoff(CONNECT_PAUSE, LONGEST_CONNECT_PAUSE)
    while True:
        try:
            return await call()
        except StoreError as error:
            if stop is None or stop.is_set() or not error.retryable:
                raise
            log.warning("waiting for the database", error=str(error))
            await wait(stop, next(pauses))


async def keep_embedded_running(
    settings: Settings, supervisor: Supervisor, stop: asyncio.Event
) -> None:
    """Restart the embedded server, with backoff, if it ends before `stop` is set."""
    server = _embedded(settings)

    async def check() -> None:
        if server.running() or stop.is_set():
            return
        log.error(
            "the embedded PostgreSQL has ended; starting it again",
            log=str(server.data / "server.log"),
        )
        await asyncio.to_thread(server.start)
        log.info("the embedded PostgreSQL runs again")

    await supervisor.run_every("embedded PostgreSQL", WATCH_INTERVAL, check, stop)


def embedded_data(settings: Settings) -> Path:
    """The directory of the embedded server's data: see `service_account`."""
    return _embedded(settings).data


def shown_url(settings: Settings) -> str:
    """The URL of the database without its password, for people."""
    return show_url(settings.database_url or _embedded(settings).url())


async def prepare_schema(settings: Settings, database: Database, migrating: bool) -> None:
    """Check both schemas, or migrate them; the embedded database also gets the lifecycle schema."""
    schema = settings.lifecycle_schema
    async with database.connection() as connection:
        if not migrating:
            await check_schema(connection)
            await lifecycle_schema.check_if_installed(connection, schema)
            return
        await migrate(connection)
        if settings.database_url is None:
            await lifecycle_schema.install(connection, schema)
        else:
            await lifecycle_schema.upgrade_if_installed(connection, schema)


def _embedded(settings: Settings) -> EmbeddedPostgres:
    return EmbeddedPostgres(settings.data_dir / "postgres")
