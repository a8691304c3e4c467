"""The connection to PostgreSQL: a pool, and foreign errors turned into ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg

from pillarbox.errors import StoreBug, StoreDataError, StoreError, WrongDatabase

# The pool tells of every failed reconnection with a traceback; our loops say it once, in words.
logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)
# Everything that asyncpg and the network raise.
FOREIGN_ERRORS = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # how a connection cut at a bad moment shows itself
    asyncpg.PostgresError,
)
# SQLSTATE classes that prove a value of the statement to be the cause: cardinality violation, data
# exception, integrity constraint violation, program limit exceeded (such as a value too long for an
# index).
DATA_CLASSES = ("21", "22", "23", "54")
# SQLSTATEs of class 42 that do not prove the statement wrong: missing privileges can be granted,
# and a prepared statement that exists already belongs to the connection (behind a pooler).
NO_BUG = ("42501", "42P05")
INVALID_SCHEMA_NAME = "3F000"
# The class that the SQL functions of Pillarbox raise with; their callers turn these into errors of
# their own.
OWN_CLASS = "PB"
# What every session begins with, unless a pooler in transaction mode is between. None of our
# statements is worth compiling; PostgreSQL decides by an estimate, which old statistics can make
# far too high.
SESSION = {"jit": "off"}


@contextmanager
def translated() -> Iterator[None]:
    """Turn foreign errors into StoreError; errors that the SQL functions of Pillarbox raise pass unchanged."""
    try:
        yield
    except asyncpg.PostgresError as error:
        sqlstate = error.sqlstate or ""
        if sqlstate.startswith(OWN_CLASS):
            raise
        refusal = _refusal(error, sqlstate)
        # The cause of a data error quotes the value, and would be logged with it.
        raise refusal from (None if isinstance(refusal, StoreDataError) else error)
    except FOREIGN_ERRORS as error:
        if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
            raise _invalid_input(error) from None
        raise StoreError(f"PostgreSQL: {type(error).__name__}: {error}".rstrip(": ")) from error


def _refusal(error: asyncpg.PostgresError, sqlstate: str) -> StoreError:
    """The server's error as one of ours, without DETAIL; data errors without their message too: both quote values."""
    name = type(error).__name__
    if sqlstate[:2] in DATA_CLASSES:
        return _data_error(name, sqlstate, getattr(error, "constraint_name", None))
    text = f"PostgreSQL: {name}: {error.args[0] if error.args else ''}".rstrip(": ")
    if sqlstate == INVALID_SCHEMA_NAME or (sqlstate.startswith("42") and sqlstate not in NO_BUG):
        return StoreBug(text, sqlstate)
    return StoreError(text, sqlstate or None)


def _invalid_input(error: asyncpg.InterfaceError) -> StoreError:
    """What asyncpg raises before it asks the server: a value that it cannot encode, or a wrong address."""
    if isinstance(error, asyncpg.ClientConfigurationError):
        return WrongDatabase(f"PostgreSQL: {error.args[0]}")
    return _data_error(type(error).__name__, "22000", None)


def _data_error(name: str, sqlstate: str, constraint: str | None) -> StoreDataError:
    where = f", constraint {constraint}" if constraint else ""
    return StoreDataError(
        f"PostgreSQL: {name}: refused a value (SQLSTATE {sqlstate}{where})", sqlstate, constraint
    )


async def _keep(connection: asyncpg.Connection) -> None:
    """Leave a connection as it is: our statements leave nothing behind that asyncpg's reset query would clear."""


def _starting(settings: Mapping[str, str]) -> Callable[[asyncpg.Connection], Awaitable[None]]:
    """What begins a session with these settings. They are not startup parameters: PgBouncer refuses those."""
    statements = "; ".join(f"SET {name} = {value}" for name, value in settings.items())

    async def start(connection: asyncpg.Connection) -> None:
        await connection.execute(statements)

    return start


class Database:
    """A pool of connections. Each method is one statement in its own short transaction."""

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
        """Open the pool. Without a statement cache it also works through a pooler in transaction mode."""
        with translated():
            pool = await asyncpg.create_pool(
                url,
                min_size=least,
                max_size=most,
                command_timeout=60,  # every statement is short; one that is not has met a lock or a dead network
                max_inactive_connection_lifetime=300,
                statement_cache_size=100 if statement_cache else 0,
                init=_starting(session)
                if statement_cache
                else None,  # a pooler would give them to other clients
                reset=_keep,
            )
        return cls(pool, url, statement_cache)

    async def for_queue(self, most: int = 4) -> Database:
        """A second pool on the same database, for the few statements of a queue, made over and over.

        They are planned once: their plans do not depend on their arguments, and planning a claim
        costs as much as a small claim itself. A plan made while the queue was empty is still used
        when it is long, until PostgreSQL analyses the tables: it must not read them whole, which is
        what an empty table suggests.
        """
        session = SESSION | {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
        return await self.connect(
            self._url, least=0, most=most, statement_cache=self._statement_cache, session=session
        )

    @property
    def pool_use(self) -> tuple[int, int]:
        """Open connections, and those in use."""
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
        """Carry out a statement; returns how many rows it touched."""
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
        self, told: Mapping[str, Callable[[], None]]
    ) -> AsyncIterator[asyncpg.Connection]:
        """A connection of its own that tells of every notification whoever waits for its channel."""
        with translated():
            connection = await asyncpg.connect(self._url, statement_cache_size=0, timeout=30)
        try:
            with translated():
                for channel, one in told.items():
                    await connection.add_listener(channel, lambda *_, one=one: one())
            yield connection
        finally:
            connection.terminate()


# Who carries a statement out: the pool, by itself; or a connection, within its transaction.
Db = Database | asyncpg.Connection
