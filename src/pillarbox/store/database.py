"""The pool of connections to PostgreSQL, and the mapping of its errors to Pillarbox's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg

from pillarbox.errors import StoreBug, StoreDataError, StoreError, WrongDatabase

# The pool logs every failed reconnection with a traceback; the loops of Pillarbox log it once.
logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)
# All errors that asyncpg and the network raise.
FOREIGN_ERRORS = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that was cut at a bad moment
    asyncpg.PostgresError,
)
# SQLSTATE classes that are caused by a value of the statement: cardinality violation, data
# exception, integrity constraint violation, program limit exceeded (a value too long for an index).
DATA_CLASSES = ("21", "22", "23", "54")
# SQLSTATEs of class 42 that are not caused by a wrong statement: missing privileges can be granted,
# and a prepared statement that exists already is the connection's (behind a pooler).
NO_BUG = ("42501", "42P05")
INVALID_SCHEMA_NAME = "3F000"
# The SQLSTATE class of errors that Pillarbox's SQL functions raise; their callers map them.
OWN_CLASS = "PB"
# Settings of every session, unless a pooler in transaction mode is between. JIT compilation never
# pays for these statements; PostgreSQL decides by an estimate, which old statistics make too high.
SESSION = {"jit": "off"}


@contextmanager
def translated() -> Iterator[None]:
    """Map errors to StoreError; errors that Pillarbox's SQL functions raise pass unchanged."""
    try:
        yield
    except asyncpg.PostgresError as error:
        sqlstate = error.sqlstate or ""
        if sqlstate.startswith(OWN_CLASS):
            raise
        mapped = _mapped(error, sqlstate)
        if isinstance(mapped, StoreDataError):
            raise mapped from None  # the cause quotes the value, and would be logged with it
        raise mapped from error
    except FOREIGN_ERRORS as error:
        if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
            raise _invalid_input(error) from None
        raise StoreError(f"PostgreSQL: {type(error).__name__}: {error}".rstrip(": ")) from error


def _mapped(error: asyncpg.PostgresError, sqlstate: str) -> StoreError:
    """The server's error without DETAIL, which quotes values; data errors without their message."""
    name = type(error).__name__
    if sqlstate[:2] in DATA_CLASSES:
        return _data_error(name, sqlstate, getattr(error, "constraint_name", None))
    message = error.args[0] if error.args else ""
    text = f"PostgreSQL: {name}: {message}".rstrip(": ")
    is_wrong_statement = sqlstate.startswith("42") and sqlstate not in NO_BUG
    if sqlstate == INVALID_SCHEMA_NAME or is_wrong_statement:
        return StoreBug(text, sqlstate)
    return StoreError(text, sqlstate or None)


def _invalid_input(error: asyncpg.InterfaceError) -> StoreError:
    """An error that asyncpg raises itself: a value that it cannot encode, or a wrong address."""
    if isinstance(error, asyncpg.ClientConfigurationError):
        return WrongDatabase(f"PostgreSQL: {error.args[0]}")
    return _data_error(type(error).__name__, "22000", None)


def _data_error(name: str, sqlstate: str, constraint: str | None) -> StoreDataError:
    where = f", constraint {constraint}" if constraint else ""
    return StoreDataError(
        f"PostgreSQL: {name}: refused a value (SQLSTATE {sqlstate}{where})", sqlstate, constraint
    )


async def _keep(connection: asyncpg.Connection) -> None:
    """Do not reset a connection: the statements leave nothing that a reset would clear."""


def _starting(settings: Mapping[str, str]) -> Callable[[asyncpg.Connection], Awaitable[None]]:
    """Applies settings to a new session. PgBouncer refuses them as startup parameters."""
    statements = "; ".join(f"SET {name} = {value}" for name, value in settings.items())

    async def start(connection: asyncpg.Connection) -> None:
        await connection.execute(statements)

    return start


class Database:
    """A pool of connections; each method runs one statement in its own short transaction."""

    def __init__(self, pool: asyncpg.Pool, url: str, statement_cache: bool) -> None:
        self.pool = pool
        self._url = url
        self._statement_cache = statement_cache

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        least: int = 1,
        most: int = 8,
        statement_cache: bool = True,
        session: Mapping[str, str] = SESSION,
    ) -> Database:
        """Open the pool; a pooler in transaction mode needs `statement_cache` false."""
        start = None
        if statement_cache:  # a pooler would give the settings to other clients
            start = _starting(session)
        with translated():
            pool = await asyncpg.create_pool(
                url,
                min_size=least,
                max_size=most,
                command_timeout=60,  # a longer statement waits for a lock or a dead network
                max_inactive_connection_lifetime=300,
                statement_cache_size=100 if statement_cache else 0,
                init=start,
                reset=_keep,
            )
        return cls(pool, url, statement_cache)

    async def for_queue(self, most: int = 4) -> Database:
        """A second pool on the same database, for the few frequent statements of a queue.

        They are planned once: their plans do not depend on their arguments, and planning a claim
        costs as much as a small claim. A plan that was made while the queue was empty is still
        used when it is long, until PostgreSQL analyses the tables; so it must not scan them.
        """
        session = SESSION | {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
        return await self.connect(
            self._url, least=0, most=most, statement_cache=self._statement_cache, session=session
        )

    @property
    def pool_use(self) -> tuple[int, int]:
        """The numbers of open connections and of those in use."""
        size = self.pool.get_size()
        return size, size - self.pool.get_idle_size()

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self.pool.close(), 5)
        except FOREIGN_ERRORS:
            self.pool.terminate()

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        with translated():
            return await self.pool.fetch(query, *arguments)  # type: ignore[no-any-return]

    async def fetchrow(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        with translated():
            return await self.pool.fetchrow(query, *arguments)

    async def fetchval(self, query: str, *arguments: Any) -> Any:
        with translated():
            return await self.pool.fetchval(query, *arguments)

    async def execute(self, query: str, *arguments: Any) -> int:
        """Execute a statement; returns how many rows it touched."""
        with translated():
            tag = await self.pool.execute(query, *arguments)
        count = tag.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        with translated():
            async with self.pool.acquire() as connection:
                yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection]:
        with translated():
            async with self.pool.acquire() as connection, connection.transaction():
                yield connection

    @asynccontextmanager
    async def listening(
        self, listeners: Mapping[str, Callable[[], None]]
    ) -> AsyncIterator[asyncpg.Connection]:
        """A separate connection that calls the listener of a channel at each notification."""
        with translated():
            connection = await asyncpg.connect(self._url, statement_cache_size=0, timeout=30)
        try:
            with translated():
                for channel, notify in listeners.items():
                    await connection.add_listener(channel, lambda *_, notify=notify: notify())
            yield connection
        finally:
            connection.terminate()


# Runs statements: the pool, each by itself, or a connection, within its transaction.
Db = Database | asyncpg.Connection
