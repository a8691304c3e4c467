"""Stored administrators, their sessions and recovery codes: only hashes of secrets."""

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

SQL = sql.load("admins")
SESSION_PREFIX = "pbs_"
_session = re.compile(rf"{SESSION_PREFIX}[A-Za-z0-9]{{{SECRET_LENGTH}}}").fullmatch
_ADMIN = frozenset({Scope.ADMIN})


@dataclass(frozen=True, slots=True)
class Admin:
    """An administrator without the password."""

    id: int
    email: str
    name: str | None
    created_at: datetime
    disabled_at: datetime | None
    password_changed_at: datetime
    last_login_at: datetime | None


@dataclass(frozen=True, slots=True)
class AdminListItem(Admin):
    """An administrator with the number of open sessions and unused recovery codes."""

    sessions: int
    recovery_codes: int


class AdminPassword(NamedTuple):
    """An administrator with the stored hash of the password."""

    id: int
    email: str
    name: str | None
    password: str  # Argon2id
    disabled: bool

    def __repr__(self) -> str:
        return f"AdminPassword(id={self.id})"


class LockedAdmin(NamedTuple):
    """An administrator whose row is locked until the transaction ends."""

    id: int
    email: str
    name: str | None


async def add(database: Database, email: str, name: str | None, password: str) -> Admin:
    """Add an administrator with a hashed password; NotPossible when the address is taken."""
    row = await database.fetchrow(*SQL.add_admin(email=email, name=name, password=password))
    if row is None:
        raise NotPossible(
            "there is an administrator with this address already: see `pillarbox admin list`"
        )
    return Admin(**row)


async def list_all(database: Database) -> list[AdminListItem]:
    return [AdminListItem(**row) for row in await database.fetch(*SQL.list_admins())]


async def get(database: Database, email: str) -> Admin:
    """The administrator with this address, or NotFound."""
    row = await database.fetchrow(*SQL.find_admin(email=email))
    if row is None:
        raise NotFound("there is no administrator with this address: see `pillarbox admin list`")
    return Admin(**row)


async def password_of(database: Database, email: str) -> AdminPassword | None:
    """The administrator with this address, and the stored hash of the password."""
    row = await database.fetchrow(*SQL.password(email=email))
    return AdminPassword(**row) if row else None


async def lock(
    connection: asyncpg.Connection,
    admin: int,
    *,
    password: str | None = None,
    since: datetime | None = None,
) -> LockedAdmin | None:
    """Lock an administrator until the transaction ends.

    None if they are disabled, have another password hash, or changed it after `since`.
    """
    row = await connection.fetchrow(
        *SQL.lock_admin(id=admin, password=password, unchanged_since=since)
    )
    return LockedAdmin(**row) if row else None


async def change_password(connection: asyncpg.Connection, admin: int, password: str) -> None:
    """Store another password hash and end all sessions."""
    await connection.execute(*SQL.change_password(id=admin, password=password))
    await connection.execute(*SQL.end_sessions(admin_id=admin))


async def disable(connection: asyncpg.Connection, admin: int) -> None:
    """Disable an administrator and end all sessions."""
    await connection.execute(*SQL.disable_admin(id=admin))
    await connection.execute(*SQL.end_sessions(admin_id=admin))


async def enable(database: Database, admin: int) -> None:
    """Enable an administrator."""
    await database.execute(*SQL.enable_admin(id=admin))


def is_session(token: str) -> bool:
    """Whether the token has the form of a session's secret."""
    return bool(_session(token))


def new_session() -> str:
    """A new session's secret, of 256 random bits."""
    return SESSION_PREFIX + new_secret()


async def add_session(
    connection: asyncpg.Connection, secret: str, admin: int, lifetime: timedelta
) -> datetime:
    """Start a session; returns when it expires."""
    expires_at: datetime = await connection.fetchval(
        *SQL.add_session(session_id=digest(secret), admin_id=admin, lifetime=lifetime)
    )
    return expires_at


async def end_session(database: Database, secret: str) -> None:
    """End a session at once."""
    await database.execute(*SQL.end_session(session_id=digest(secret)))


async def find_sessions(database: Database, tokens: Sequence[str]) -> list[Principal | None]:
    """The administrators of these sessions, with one statement; None for no valid session."""
    digests = [digest(token) for token in tokens]
    rows = await database.fetch(*SQL.find_sessions(ids=digests))
    principals = {
        row["id"]: Principal("session", row["name"], None, _ADMIN, id=row["admin"]) for row in rows
    }
    return [principals.get(session_id) for session_id in digests]


async def replace_recovery_codes(
    connection: asyncpg.Connection, admin: int, codes: Sequence[str]
) -> None:
    """Store new recovery codes; the old ones are void."""
    await connection.execute(*SQL.drop_recovery_codes(admin_id=admin))
    hashes = [digest(code) for code in codes]
    await connection.execute(*SQL.add_recovery_codes(admin_id=admin, hashes=hashes))


async def use_recovery_code(connection: asyncpg.Connection, admin: int, code: str) -> bool:
    """Use a recovery code; false if it does not exist or was used before."""
    use = SQL.use_recovery_code(admin_id=admin, hash=digest(code))
    return await connection.fetchval(*use) is not None


async def purge_sessions(database: Database, batch: int) -> int:
    """Delete up to `batch` expired sessions; returns how many."""
    return await database.execute(*SQL.purge_sessions(limit=batch))
