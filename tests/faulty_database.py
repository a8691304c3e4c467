"""A Database whose statements can be made to fail with real errors of PostgreSQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from pillarbox.store.database import Database, translated


def postgres_error(sqlstate: str) -> asyncpg.PostgresError:
    """What asyncpg raises for this SQLSTATE."""
    return asyncpg.PostgresError.new({"S": "ERROR", "C": sqlstate, "M": "injected"})


class FaultyDatabase(Database):
    """Every statement, transaction and listening connection asks `fault` first; it may return an error to raise."""

    fault: Callable[[str], Exception | None] = staticmethod(lambda statement: None)

    def _fail(self, statement: str) -> None:
        error = type(self).fault(statement)
        if error is not None:
            with translated():
                raise error

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        self._fail(query)
        return await super().fetch(query, *arguments)

    async def fetchrow(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        self._fail(query)
        return await super().fetchrow(query, *arguments)

    async def fetchval(self, query: str, *arguments: Any) -> Any:
        self._fail(query)
        return await super().fetchval(query, *arguments)

    async def execute(self, query: str, *arguments: Any) -> int:
        self._fail(query)
        return await super().execute(query, *arguments)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        self._fail("connection")
        async with super().connection() as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection]:
        self._fail("transaction")
        async with super().transaction() as connection:
            yield connection

    @asynccontextmanager
    async def listening(
        self, told: Mapping[str, Callable[[], None]]
    ) -> AsyncIterator[asyncpg.Connection]:
        self._fail("listen " + " ".join(sorted(told)))
        async with super().listening(told) as connection:
            yield connection


class EachStatementFails:
    """Makes each different statement fail so many times before it is carried out."""

    def __init__(self, sqlstate: str, times: int) -> None:
        self.sqlstate = sqlstate
        self._times = times
        self._failed: Counter[str] = Counter()

    def __call__(self, statement: str) -> Exception | None:
        if self._failed[statement] >= self._times:
            return None
        self._failed[statement] += 1
        return postgres_error(self.sqlstate)


class StatementFails:
    """Makes the statements that contain a text fail, as long as `active`."""

    def __init__(self, text: str, sqlstate: str) -> None:
        self.text, self.sqlstate = text, sqlstate
        self.active = True
        self.failures = 0

    def __call__(self, statement: str) -> Exception | None:
        if not self.active or self.text not in statement:
            return None
        self.failures += 1
        return postgres_error(self.sqlstate)
