"""Stored sign-in challenges: whose address got a code, and its outcome. Codes are stored hashed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from pillarbox.store import sql

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database, Db

SQL = sql.load("challenges")


class NewChallenge(NamedTuple):
    """A challenge to be stored."""

    id: UUID
    subject: int | None  # None: no account has the address
    token: int | None
    asked: bytes
    code_hash: bytes
    lifetime: timedelta


class RecentChallenge(NamedTuple):
    """A challenge that a repeated request gets again."""

    id: UUID
    seconds: float  # for how long it can still be used


class CodeAttempt(NamedTuple):
    """The result of trying a code."""

    subject: int | None
    used: bool
    void: bool
    created_at: datetime  # of the challenge
    asked: bytes  # keyed hash of the address that the code went to


class ChallengeState(NamedTuple):
    """Why a challenge is not valid any more."""

    used: bool
    void: bool
    expired: bool


async def lock_address(connection: asyncpg.Connection, realm: str, asked: bytes) -> None:
    """Lock an address until the transaction ends; waits for a request for the same address."""
    await connection.execute(*SQL.lock_address(realm=realm, address_hash=asked))


async def recent(
    connection: asyncpg.Connection,
    realm: str,
    asked: bytes,
    pause: timedelta,
    wrong: int,
    longer: timedelta,
) -> RecentChallenge | None:
    """The challenge that an address got within the pause, or None.

    After `wrong` wrong codes in a day the pause is `longer`.
    """
    row = await connection.fetchrow(
        *SQL.recent(
            realm=realm, address_hash=asked, pause=pause, wrong_codes=wrong, longer_pause=longer
        )
    )
    return RecentChallenge(**row) if row else None


async def paused(
    connection: asyncpg.Connection,
    realm: str,
    asked: Collection[bytes],
    pause: timedelta,
    wrong: int,
    longer: timedelta,
) -> set[bytes]:
    """The addresses for which `recent` finds a challenge; all are locked as by `lock_address`."""
    await connection.execute(*SQL.lock_addresses(realm=realm, address_hashes=list(asked)))
    rows = await connection.fetch(
        *SQL.paused(
            realm=realm,
            address_hashes=list(asked),
            pause=pause,
            wrong_codes=wrong,
            longer_pause=longer,
        )
    )
    return {row["asked"] for row in rows}


async def void_older(
    connection: asyncpg.Connection,
    realm: str,
    asked: Collection[bytes],
    subjects: Collection[int | None],
) -> list[UUID]:
    """Void unused challenges of addresses and subjects; returns the mails with their codes."""
    known = [subject for subject in subjects if subject is not None]
    rows = await connection.fetch(
        *SQL.void_older(realm=realm, address_hashes=list(asked), subjects=known)
    )
    return [row["message_id"] for row in rows if row["message_id"] is not None]


async def add(connection: asyncpg.Connection, realm: str, rows: Sequence[NewChallenge]) -> None:
    """Store new challenges."""
    await connection.execute(
        *SQL.add_challenges(
            realm=realm,
            ids=[row.id for row in rows],
            subjects=[row.subject for row in rows],
            tokens=[row.token for row in rows],
            address_hashes=[row.asked for row in rows],
            code_hashes=[row.code_hash for row in rows],
            lifetimes=[row.lifetime for row in rows],
        )
    )


async def mailed(connection: asyncpg.Connection, mails: Sequence[tuple[UUID, UUID]]) -> None:
    """Record which messages carry the codes of which challenges, as pairs of ids."""
    if mails:
        challenges, messages = zip(*mails, strict=True)
        await connection.execute(*SQL.mailed(ids=challenges, message_ids=messages))


async def find_by_token(database: Database, realm: str, token: int) -> UUID | None:
    """The challenge of a token."""
    found: UUID | None = await database.fetchval(*SQL.find_by_token(realm=realm, token=token))
    return found


async def find_by_subject(database: Database, realm: str, subject: int) -> UUID | None:
    """The newest challenge of a subject that is neither used nor void."""
    found: UUID | None = await database.fetchval(*SQL.find_by_subject(realm=realm, subject=subject))
    return found


async def try_code(
    db: Db, realm: str, challenge: UUID, hashes: Sequence[bytes], max_tries: int
) -> CodeAttempt | None:
    """Count a try and compare the code; None if the challenge is not valid. One durable statement.

    `hashes` are those of the given code, one per key; without any, the try is only counted.
    """
    row = await db.fetchrow(
        *SQL.try_code(id=challenge, realm=realm, code_hashes=hashes, max_tries=max_tries)
    )
    return CodeAttempt(**row) if row else None


async def use(connection: asyncpg.Connection, challenge: UUID) -> bool:
    """Use a challenge whose subject was verified without its code; false if it was used before."""
    return await connection.fetchval(*SQL.use_challenge(id=challenge)) is not None


async def state(db: Db, realm: str, challenge: UUID) -> ChallengeState | None:
    """The state of a challenge; None if there is none."""
    row = await db.fetchrow(*SQL.challenge(id=challenge, realm=realm))
    return ChallengeState(**row) if row else None


async def purge(database: Database, batch: int) -> int:
    """Delete up to `batch` expired challenges; returns how many."""
    return await database.execute(*SQL.purge_challenges(limit=batch))
