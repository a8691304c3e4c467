"""Enqueue mails in the caller's transaction: if it rolls back, no mail is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, cast, overload
from uuid import UUID

from pillarbox.accept.checks import check
from pillarbox.accept.drivers import Driver, driver_of, translated
from pillarbox.accept.mail import Mail
from pillarbox.accept.statements import call_for, calls_for
from pillarbox.errors import InvalidMail, NotAllowed


class AsyncConnection(Protocol):
    """A connection or session whose methods are awaited: of asyncpg, psycopg or SQLAlchemy."""

    def close(self) -> Coroutine[Any, Any, None]: ...


class SyncConnection(Protocol):
    """A connection or session that blocks: of psycopg or SQLAlchemy."""

    def close(self) -> None: ...


@overload
def enqueue(connection: AsyncConnection, mail: Mail) -> Awaitable[UUID]: ...
@overload
def enqueue(connection: SyncConnection, mail: Mail) -> UUID: ...
def enqueue(connection: Any, mail: Mail) -> UUID | Awaitable[UUID]:
    """Enqueue a mail in the connection's transaction; returns its id.

    It never commits or rolls back. With an asynchronous connection the result is awaited. A mail
    that breaks a rule raises InvalidMail, almost always before the database hears of it, so that
    the transaction goes on.
    """
    driver = driver_of(connection)
    if driver.is_async:
        return _enqueue_async(driver, connection, mail)
    return _enqueue(driver, connection, mail)


@overload
def enqueue_many(connection: AsyncConnection, mails: Iterable[Mail]) -> Awaitable[list[UUID]]: ...
@overload
def enqueue_many(connection: SyncConnection, mails: Iterable[Mail]) -> list[UUID]: ...
def enqueue_many(connection: Any, mails: Iterable[Mail]) -> list[UUID] | Awaitable[list[UUID]]:
    """Enqueue mails, all or none, in the connection's transaction; returns their ids in order.

    An InvalidMail says in `position` which mail is at fault, counted from 0.
    """
    driver = driver_of(connection)
    if driver.is_async:
        return _enqueue_many_async(driver, connection, mails)
    return _enqueue_many(driver, connection, mails)


def _enqueue(driver: Driver, connection: Any, mail: Mail) -> UUID:
    check(mail)
    try:
        return cast(list[UUID], driver.run(connection, call_for(mail)))[0]
    except Exception as error:
        _raise_ours(error)
        raise


async def _enqueue_async(driver: Driver, connection: Any, mail: Mail) -> UUID:
    check(mail)
    try:
        return (await cast(Awaitable[list[UUID]], driver.run(connection, call_for(mail))))[0]
    except Exception as error:
        _raise_ours(error)
        raise


def _enqueue_many(driver: Driver, connection: Any, mails: Iterable[Mail]) -> list[UUID]:
    checked = _checked(mails)
    ids: list[UUID] = []
    # Where each statement commits by itself only a single one is all or nothing.
    for first, call in calls_for(checked, in_one=cast(bool, driver.commits_itself(connection))):
        try:
            ids += cast(list[UUID], driver.run(connection, call))
        except Exception as error:
            _raise_ours(error, first)
            raise
    return ids


async def _enqueue_many_async(driver: Driver, connection: Any, mails: Iterable[Mail]) -> list[UUID]:
    checked = _checked(mails)
    ids: list[UUID] = []
    for first, call in calls_for(
        checked, in_one=await cast(Awaitable[bool], driver.commits_itself(connection))
    ):
        try:
            ids += await cast(Awaitable[list[UUID]], driver.run(connection, call))
        except Exception as error:
            _raise_ours(error, first)
            raise
    return ids


def _checked(mails: Iterable[Mail]) -> Sequence[Mail]:
    """The mails, each checked before the first is sent."""
    checked = []
    for position, mail in enumerate(mails):
        try:
            check(mail)
        except InvalidMail as error:
            _place(error, position)
            raise
        checked.append(mail)
    return checked


def _raise_ours(foreign: Exception, first: int = 0) -> None:
    """Raise a PillarboxError if the database refused a mail; `first` is the call's first mail."""
    found = translated(foreign)
    if found is not None:
        error, position = found
        if position is not None:
            _place(error, first + position)
        raise error from foreign


def _place(error: InvalidMail | NotAllowed, position: int) -> None:
    """Say which of several mails is at fault."""
    error.position = position
    error.args = (f"mails[{position}].{error}",)
