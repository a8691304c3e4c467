"""Storing a batch of mails in one statement and one commit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from asyncpg.pgproto.pgproto import (
    UUID as FastUUID,
)  # a uuid.UUID that takes a fifth of the time to make

from pillarbox.errors import InvalidMail, StoreDataError, StoreError
from pillarbox.store import sql
from pillarbox.store.database import Database, Db, translated

QUERIES = sql.load("intake")
# SQLSTATE classes that say that the values themselves cannot be stored: data exception, program
# limit exceeded.
_BAD_VALUES = ("22", "54")
# SQLSTATE of a lock that was not free in time.
_LOCK_NOT_AVAILABLE = "55P03"
_RANDOM_BITS = 0x3FFF_FFFF_FFFF_FFFF
_VERSION_7 = 0x7000_8000_0000_0000_0000


TenantKey = tuple[int, str]  # a tenant's id and its idempotency key


class MailRow(NamedTuple):
    """A checked mail as it is stored. Lists are array literals, JSON is text."""

    tenant_id: int
    size: int
    lane: int
    max_attempts: int | None
    send_at: datetime | None
    expires_at: datetime | None
    class_name: str
    kind: str | None
    sender: str
    to: str
    cc: str | None
    reply_to: str | None
    subject: str
    headers: str | None
    tags: str | None
    metadata: str | None
    recipients: str
    roles: str  # a letter for each recipient: t(o), c(c), b(cc)
    key: str | None
    request_hash: bytes | None
    text: str | None
    html: str | None
    raw: bytes | None
    attachments: str | None


class KnownKey(NamedTuple):
    """What was accepted under an idempotency key."""

    message_id: UUID
    request_hash: bytes
    scheduled: bool


class NotStored(Exception):
    """A single mail made the statement fail, which left nothing behind; `reason` is what to say of that mail."""

    def __init__(self, reason: InvalidMail | StoreError) -> None:
        super().__init__(str(reason))
        self.reason = reason


async def clock(database: Db) -> float:
    """The database's time, in seconds since 1970."""
    return float(await database.fetchval(QUERIES["clock"]))


async def accept(
    database: Db, ids: Sequence[UUID], entries: Sequence[MailRow]
) -> tuple[Sequence[str], float]:
    """Store the mails, by themselves or in a connection's transaction; returns a verdict for each (see the query) and
    the database's time.

    NotStored: nothing was, because of one of them. StoreError: nobody knows.
    """
    try:
        with translated():
            row = await database.fetchrow(
                QUERIES["accept"], ids, *map(_column, zip(*entries, strict=True))
            )
    except StoreDataError as error:
        is_bad_value = (error.sqlstate or "")[:2] in _BAD_VALUES
        # Not the mail's fault otherwise, such as a tenant that was removed a moment ago.
        raise NotStored(
            _unstorable() if is_bad_value else StoreError(str(error), error.sqlstate)
        ) from None
    except StoreError as error:
        if error.sqlstate == _LOCK_NOT_AVAILABLE:
            reason = StoreError(
                "the idempotency key is in use by a transaction that is still open", error.sqlstate
            )
            raise NotStored(reason) from error
        raise
    assert row is not None
    return row["verdicts"], row["now"]


def _column(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """A column as an array; an empty one stands for all nulls, which would cost as much to write as other values."""
    return () if values.count(None) == len(values) else values


def _unstorable() -> InvalidMail:
    return InvalidMail("not_storable", "message", "PostgreSQL cannot hold a value of this mail")


async def known_keys(database: Database, keys: Iterable[TenantKey]) -> dict[TenantKey, KnownKey]:
    """What was accepted under those of the keys (tenant's id, key) that were used before."""
    tenants, names = zip(*keys, strict=True)
    rows = await database.fetch(QUERIES["known_keys"], tenants, names)
    return {(tenant, name): KnownKey(*rest) for tenant, name, *rest in rows}


def new_ids(count: int, seconds: float) -> list[UUID]:
    """New ids (UUID version 7, as the database's `_new_id`), in order, from this time in seconds since 1970 on."""
    random = os.urandom(8 * count)
    first = int(seconds * 1000 * 4096)  # the 12 bits after the version are parts of a millisecond
    return [
        FastUUID(
            _id_of(first + place, int.from_bytes(random[8 * place : 8 * place + 8])).to_bytes(16)
        )
        for place in range(count)
    ]


def _id_of(tick: int, random: int) -> int:
    return (tick >> 12) << 80 | (tick & 0xFFF) << 64 | _VERSION_7 | random & _RANDOM_BITS


def array(values: Iterable[str]) -> str:
    """An array literal of PostgreSQL with these texts."""
    return '{"' + '","'.join(map(_quoted, values)) + '"}'


def _quoted(value: str) -> str:
    if "\\" in value or '"' in value:
        return value.replace("\\", "\\\\").replace('"', '\\"')
    return value
