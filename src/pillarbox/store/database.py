"""The connection to PostgreSQL: a pool, and foreign errors turned into ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg

from pillarbox.errors import StoreError

# The pool tells of every failed reconnection with a traceback; our loops say it once, in words.
logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)
# What an absent, stopping or overloaded server raises; the statement may or may not have been carried out.
AWAY = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # how a connection cut at a bad moment shows itself
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InsufficientResourcesError,
)
# PostgreSQL aborted the statement for its own reasons; it can simply be made again.
TRY_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)


@contextmanager
def translated() -> Any:
    """Turn what PostgreSQL's absence raises into StoreError."""
    try:
        yield
    except (*AWAY, *TRY_AGAIN) as error:
        raise StoreError(f"PostgreSQL: {type(error).__name__}: {error}".rstrip(": ")) from error


async def _keep(connection: asyncpg.Connection) -> None:
    """Leave a connection as it is: our statements leave nothing behind that asyncpg's reset query would clear."""


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
        server_settings: dict[str, str] | None = None,
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
                server_settings=server_settings if statement_cache else None,  # a pooler would refuse them
                reset=_keep,
            )
        return cls(pool, url, statement_cache)

    async def for_queue(self, most: int = 4) -> Database:
        """A second pool on the same database, for the few statements of a queue, made over and over.

        They are planned once: their plans do not depend on their arguments, and planning a claim costs as much as a
        small claim itself.
        """
        settings = {"plan_cache_mode": "force_generic_plan"}
        return await self.connect(
            self._url, least=0, most=most, statement_cache=self._statement_cache, server_settings=settings
        )

    @property
    def pool_use(self) -> tuple[int, int]:
        """Open connections, and those in use."""
        size = self.pool.get_size()
        return size, size - self.pool.get_idle_size()

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self.pool.close(), 5)
        except (TimeoutError, *AWAY):
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
    async def listening(self, told: Mapping[str, Callable[[], None]]) -> AsyncIterator[asyncpg.Connection]:
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
