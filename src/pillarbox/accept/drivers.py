"""Runs SQL calls on connections of each supported library, which is imported only if used."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

from pillarbox.accept.statements import ARGUMENT_TYPES, SqlCall
from pillarbox.errors import IdempotencyConflict, InvalidMail, NotAllowed, UnknownName

SUPPORTED = (
    "asyncpg (Connection, or one acquired from a pool), psycopg 3 (Connection, AsyncConnection) "
    "and SQLAlchemy 2 (Connection, Session, AsyncConnection, AsyncSession)"
)
_ERRORS: dict[str, type[InvalidMail | NotAllowed]] = {
    "PB400": InvalidMail, "PB403": NotAllowed, "PB404": UnknownName, "PB409": IdempotencyConflict,
}  # fmt: skip
_position = re.compile(r"mails\[(\d+)\]\.").match


@dataclass(frozen=True, slots=True)
class Driver:
    """How to carry out a call, and whether each statement commits by itself."""

    is_async: bool
    run: Callable[[Any, SqlCall], list[UUID]] | Callable[[Any, SqlCall], Awaitable[list[UUID]]]
    commits_itself: Callable[[Any], bool] | Callable[[Any], Awaitable[bool]]


async def _run_asyncpg(connection: Any, call: SqlCall) -> list[UUID]:
    return [_uuid(row[0]) for row in await connection.fetch(call.statement("$"), *call.values)]


async def _asyncpg_commits_itself(connection: Any) -> bool:
    return not connection.is_in_transaction()


# A cursor of our own: the connection's may give rows as dicts, or want other placeholders.
def _run_psycopg(connection: Any, call: SqlCall) -> list[UUID]:
    import psycopg

    with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
        cursor.execute(call.statement("%s").encode(), call.values)
        return [_uuid(row[0]) for row in cursor.fetchall()]


async def _run_psycopg_async(connection: Any, call: SqlCall) -> list[UUID]:
    import psycopg

    async with psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
        await cursor.execute(call.statement("%s").encode(), call.values)
        return [_uuid(row[0]) for row in await cursor.fetchall()]


def _psycopg_commits_itself(connection: Any) -> bool:
    return bool(connection.autocommit and connection.info.transaction_status == 0)  # libpq's IDLE


async def _psycopg_async_commits_itself(connection: Any) -> bool:
    return _psycopg_commits_itself(connection)


def _run_sqlalchemy(connection: Any, call: SqlCall) -> list[UUID]:
    rows = connection.execute(
        _clause(call.function, call.names), dict(zip(call.names, call.values, strict=True))
    )
    return [_uuid(row[0]) for row in rows]


async def _run_sqlalchemy_async(connection: Any, call: SqlCall) -> list[UUID]:
    rows = await connection.execute(
        _clause(call.function, call.names), dict(zip(call.names, call.values, strict=True))
    )
    return [_uuid(row[0]) for row in rows]


@cache
def _clause(function: str, names: tuple[str, ...]) -> Any:
    """The statement with those types that SQLAlchemy would not guess, or would guess wrong."""
    from sqlalchemy import ARRAY, Integer, LargeBinary, Text, bindparam, text

    types: dict[str, Any] = {
        "integer": Integer,
        "bytea": LargeBinary,
        "bytea[]": ARRAY(LargeBinary),
        "text[]": ARRAY(Text),
    }
    clause = text(SqlCall(function, names, ()).statement(":"))
    return clause.bindparams(
        *(
            bindparam(name, type_=types.get(ARGUMENT_TYPES.get(name, "text"), Text))
            for name in names
        )
    )


def _sqlalchemy_commits_itself(connection: Any) -> bool:
    if hasattr(connection, "connection") and callable(connection.connection):  # a session
        connection = connection.connection()
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


async def _sqlalchemy_async_commits_itself(connection: Any) -> bool:
    run_sync = (
        getattr(connection, "run_sync", None) or connection().run_sync
    )  # async_scoped_session has none
    return bool(await run_sync(_sqlalchemy_commits_itself))


_ASYNCPG = Driver(True, _run_asyncpg, _asyncpg_commits_itself)
_SQLALCHEMY = Driver(False, _run_sqlalchemy, _sqlalchemy_commits_itself)
_SQLALCHEMY_ASYNC = Driver(True, _run_sqlalchemy_async, _sqlalchemy_async_commits_itself)
_DRIVERS = {
    ("asyncpg", "Connection"): _ASYNCPG,
    ("asyncpg", "PoolConnectionProxy"): _ASYNCPG,
    ("psycopg", "Connection"): Driver(False, _run_psycopg, _psycopg_commits_itself),
    ("psycopg", "AsyncConnection"): Driver(True, _run_psycopg_async, _psycopg_async_commits_itself),
    ("sqlalchemy", "Connection"): _SQLALCHEMY,
    ("sqlalchemy", "Session"): _SQLALCHEMY,
    ("sqlalchemy", "scoped_session"): _SQLALCHEMY,
    ("sqlalchemy", "AsyncConnection"): _SQLALCHEMY_ASYNC,
    ("sqlalchemy", "AsyncSession"): _SQLALCHEMY_ASYNC,
    ("sqlalchemy", "async_scoped_session"): _SQLALCHEMY_ASYNC,
}


_known: dict[type, Driver] = {}


def driver_of(connection: object) -> Driver:
    """The driver of a connection, known by where its type or a parent of it was defined."""
    return _known.get(type(connection)) or _driver_for(type(connection))


def _driver_for(type_: type) -> Driver:
    for parent in type_.__mro__:
        driver = _DRIVERS.get((parent.__module__.partition(".")[0], parent.__name__))
        if driver is not None:
            return _known.setdefault(type_, driver)
    raise TypeError(
        f"cannot enqueue on a {type_.__module__}.{type_.__qualname__}; supported are {SUPPORTED}"
    )


def _uuid(value: Any) -> UUID:
    if isinstance(value, UUID):
        return value
    return UUID(str(value))


def translated(error: BaseException) -> tuple[InvalidMail | NotAllowed, int | None] | None:
    """The PillarboxError in an error of a driver, and the position of the mail among several."""
    seen: BaseException | None = error
    while seen is not None:
        fields = _error_fields(seen)
        if fields is not None:
            state, code, field, message, hint, primary = fields
            position = _position(primary or "")
            kind = _ERRORS[state]
            return kind(code, field, message, hint or None), int(position[1]) if position else None
        seen = getattr(seen, "orig", None) or seen.__cause__  # SQLAlchemy wraps once or twice
    return None


def _error_fields(error: BaseException) -> tuple[Any, ...] | None:
    """State, code, field, message, hint and MESSAGE of an error of Pillarbox's SQL functions."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state not in _ERRORS:
        return None
    if hasattr(error, "constraint_name"):  # asyncpg
        names = ("constraint_name", "column_name", "detail", "hint", "message")
        return state, *(getattr(error, name, None) for name in names)
    if hasattr(error, "diag"):  # psycopg
        names = (
            "constraint_name",
            "column_name",
            "message_detail",
            "message_hint",
            "message_primary",
        )
        return state, *(getattr(error.diag, name, None) for name in names)
    return None
