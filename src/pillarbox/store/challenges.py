"""Challenges at rest: who was sent a code, and what became of it. What is kept of a code is a keyed hash."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from pillarbox.store import sql

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database, Db

QUERIES = sql.load("challenges")


class NewChallenge(NamedTuple):
    """A challenge to be kept."""

    id: UUID
    subject: int | None  # None: nobody has the address
    token: int | None
    asked: bytes
    code_hash: bytes
    lifetime: timedelta


class RecentChallenge(NamedTuple):
    """A challenge that whoever asks again gets once more."""

    id: UUID
    seconds: float  # for how long it can still be used


class CodeAttempt(NamedTuple):
    """What a given code came to."""

    subject: int | None
    used: bool
    void: bool
    created_at: datetime  # of the challenge
    asked: bytes  # keyed hash of the address that the code went to


class ChallengeState(NamedTuple):
    """Why a challenge is out of force."""

    used: bool
    void: bool
    expired: bool


async def lock_address(connection: asyncpg.Connection, realm: str, asked: bytes) -> None:
    """Wait for whoever asks for the same address, and let others wait until the transaction ends."""
    await connection.execute(QUERIES["lock_address"], realm, asked)


async def recent(
    connection: asyncpg.Connection,
    realm: str,
    asked: bytes,
    pause: timedelta,
    wrong: int,
    longer: timedelta,
) -> RecentChallenge | None:
    """The challenge that an address was given within the pause; the longer one after so many wrong codes in a day."""
    row = await connection.fetchrow(QUERIES["recent"], realm, asked, pause, wrong, longer)
    return None if row is None else RecentChallenge(*row)


async def paused(
    connection: asyncpg.Connection,
    realm: str,
    asked: Collection[bytes],
    pause: timedelta,
    wrong: int,
    longer: timedelta,
) -> set[bytes]:
    """Those addresses that get no new challenge yet, as `recent` says; all are locked as by `lock_address`."""
    await connection.execute(QUERIES["lock_addresses"], realm, list(asked))
    rows = await connection.fetch(QUERIES["paused"], realm, list(asked), pause, wrong, longer)
    return {row["asked"] for row in rows}


async def void_older(
    connection: asyncpg.Connection,
    realm: str,
    asked: Collection[bytes],
    subjects: Collection[int | None],
) -> list[UUID]:
    """Void what is unused for these addresses and of these subjects; returns the mails with their codes."""
    somebody = [one for one in subjects if one is not None]
    rows = await connection.fetch(QUERIES["void_older"], realm, list(asked), somebody)
    return [row["message_id"] for row in rows if row["message_id"] is not None]


async def add(connection: asyncpg.Connection, realm: str, rows: Sequence[NewChallenge]) -> None:
    """Keep new challenges."""
    await connection.execute(QUERIES["add_challenges"], realm, *zip(*rows, strict=True))


async def mailed(connection: asyncpg.Connection, mails: Sequence[tuple[UUID, UUID]]) -> None:
    """Note which mails carry codes: challenge, message."""
    if mails:
        await connection.execute(QUERIES["mailed"], *zip(*mails, strict=True))


async def find_by_token(database: Database, realm: str, token: int) -> UUID | None:
    """The challenge that a token asked for."""
    found: UUID | None = await database.fetchval(QUERIES["find_by_token"], realm, token)
    return found


async def find_by_subject(database: Database, realm: str, subject: int) -> UUID | None:
    """The newest challenge of a subject that may be in force."""
    found: UUID | None = await database.fetchval(QUERIES["find_by_subject"], realm, subject)
    return found


async def try_code(
    db: Db, realm: str, challenge: UUID, hashes: Sequence[bytes], most: int
) -> CodeAttempt | None:
    """Count a try, and say whether it was right; None if the challenge is not in force. One statement, so durable.

    `hashes` are those of the given code, one for each key that counts; without any it only counts as a try.
    """
    row = await db.fetchrow(QUERIES["try_code"], challenge, realm, hashes, most)
    return None if row is None else CodeAttempt(*row)


async def use(connection: asyncpg.Connection, challenge: UUID) -> bool:
    """Use a challenge up whose subject proved itself without its code; false if it was used before."""
    return await connection.fetchval(QUERIES["use_challenge"], challenge) is not None


async def state(db: Db, realm: str, challenge: UUID) -> ChallengeState | None:
    """What became of a challenge; None if there is none."""
    row = await db.fetchrow(QUERIES["challenge"], challenge, realm)
    return None if row is None else ChallengeState(*row)


async def purge(database: Database, batch: int) -> int:
    """Drop some challenges that are over; returns how many."""
    return await database.execute(QUERIES["purge_challenges"], batch)
