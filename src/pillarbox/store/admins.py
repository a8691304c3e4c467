"""Pillarbox's own administrators at rest, with their sessions and recovery codes: hashes, never secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.errors import NotFound, NotPossible
from pillarbox.model.access import Principal, Scope
from pillarbox.store import sql
from pillarbox.store.access import SECRET_LENGTH, digest, new_secret

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database

QUERIES = sql.load("admins")
SESSION_PREFIX = "pbs_"
_session = re.compile(rf"{SESSION_PREFIX}[A-Za-z0-9]{{{SECRET_LENGTH}}}").fullmatch
_ADMIN = frozenset({Scope.ADMIN})


@dataclass(frozen=True, slots=True)
class Admin:
    """An administrator as one may be shown: without the password."""

    id: int
    email: str
    name: str | None
    created_at: datetime
    disabled_at: datetime | None
    password_changed_at: datetime
    last_login_at: datetime | None


@dataclass(frozen=True, slots=True)
class AdminListItem(Admin):
    """An administrator in a list: with how many sessions are open and how many recovery codes are left."""

    sessions: int
    recovery_codes: int


class AdminPassword(NamedTuple):
    """What a given password is compared with."""

    id: int
    email: str
    name: str | None
    password: str  # Argon2id
    disabled: bool

    def __repr__(self) -> str:
        return f"AdminPassword(id={self.id})"


class LockedAdmin(NamedTuple):
    """An administrator who stays as they are until the transaction ends."""

    id: int
    email: str
    name: str | None


async def add(database: Database, email: str, name: str | None, password: str) -> Admin:
    """Add an administrator with a hashed password; NotPossible when the address is taken."""
    row = await database.fetchrow(QUERIES["add_admin"], email, name, password)
    if row is None:
        raise NotPossible(
            "there is an administrator with this address already: see `pillarbox admin list`"
        )
    return Admin(*row)


async def list_all(database: Database) -> list[AdminListItem]:
    return [AdminListItem(*row) for row in await database.fetch(QUERIES["list_admins"])]


async def get(database: Database, email: str) -> Admin:
    """The administrator with this address, or NotFound."""
    row = await database.fetchrow(QUERIES["find_admin"], email)
    if row is None:
        raise NotFound("there is no administrator with this address: see `pillarbox admin list`")
    return Admin(*row)


async def password_of(database: Database, email: str) -> AdminPassword | None:
    """The administrator with this address, and what is kept of the password."""
    row = await database.fetchrow(QUERIES["password"], email)
    return None if row is None else AdminPassword(*row)


async def hold(
    connection: asyncpg.Connection,
    admin: int,
    *,
    password: str | None = None,
    since: datetime | None = None,
) -> LockedAdmin | None:
    """Keep an administrator as they are until the transaction ends; None when they are not (any more) as given."""
    row = await connection.fetchrow(QUERIES["hold_admin"], admin, password, since)
    return None if row is None else LockedAdmin(*row)


async def change_password(connection: asyncpg.Connection, admin: int, password: str) -> None:
    """Keep another hashed password, and end all sessions."""
    await connection.execute(QUERIES["change_password"], admin, password)
    await connection.execute(QUERIES["end_sessions"], admin)


async def disable(connection: asyncpg.Connection, admin: int) -> None:
    """Let an administrator in no more, and end all sessions."""
    await connection.execute(QUERIES["disable_admin"], admin)
    await connection.execute(QUERIES["end_sessions"], admin)


async def enable(database: Database, admin: int) -> None:
    """Let an administrator in again."""
    await database.execute(QUERIES["enable_admin"], admin)


def is_session(token: str) -> bool:
    """Whether it has the form of what we hand out."""
    return bool(_session(token))


def new_session() -> str:
    """A new session's secret, of 256 random bits."""
    return SESSION_PREFIX + new_secret()


async def add_session(
    connection: asyncpg.Connection, secret: str, admin: int, lifetime: timedelta
) -> datetime:
    """Begin a session; returns when it ends by itself."""
    ends: datetime = await connection.fetchval(
        QUERIES["add_session"], digest(secret), admin, lifetime
    )
    return ends


async def end_session(database: Database, secret: str) -> None:
    """End a session, at once."""
    await database.execute(QUERIES["end_session"], digest(secret))


async def find_sessions(database: Database, tokens: Sequence[str]) -> list[Principal | None]:
    """Whose sessions these are, in one statement; None for what is no session in force."""
    digests = [digest(token) for token in tokens]
    rows = {row["id"]: row for row in await database.fetch(QUERIES["find_sessions"], digests)}
    return [_principal(rows.get(one)) for one in digests]


def _principal(row: asyncpg.Record | None) -> Principal | None:
    return None if row is None else Principal("session", row["name"], None, _ADMIN, id=row["admin"])


async def replace_recovery_codes(
    connection: asyncpg.Connection, admin: int, codes: Sequence[str]
) -> None:
    """Keep new recovery codes; the old ones are void."""
    await connection.execute(QUERIES["drop_recovery_codes"], admin)
    await connection.execute(QUERIES["add_recovery_codes"], admin, [digest(code) for code in codes])


async def use_recovery_code(connection: asyncpg.Connection, admin: int, code: str) -> bool:
    """Use a recovery code up; false if it is none, or was used before."""
    return await connection.fetchval(QUERIES["use_recovery_code"], admin, digest(code)) is not None


async def purge_sessions(database: Database, batch: int) -> int:
    """Drop some sessions that are over; returns how many."""
    return await database.execute(QUERIES["purge_sessions"], batch)
