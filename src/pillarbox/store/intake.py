"""Storing a batch of mails in one statement and one commit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

# A uuid.UUID that takes a fifth of the time to make.
from asyncpg.pgproto.pgproto import UUID as FastUUID

from pillarbox.errors import InvalidMail, StoreDataError, StoreError
from pillarbox.store import sql
from pillarbox.store.database import Database, Db, translated

SQL = sql.load("intake")
# SQLSTATE classes that say that the values themselves cannot be stored: data exception, program
# limit exceeded.
_BAD_VALUES = ("22", "54")
# SQLSTATE of a lock that was not free in time.
_LOCK_NOT_AVAILABLE = "55P03"
_RANDOM_BITS = 0x3FFF_FFFF_FFFF_FFFF
_VERSION_7 = 0x7000_8000_0000_0000_0000


TenantKey = tuple[int, str]  # a tenant's id and its idempotency key


class MailRow(NamedTuple):
    """A checked mail as `pillarbox._store_mails` takes it; see store/schema/accept_store.sql."""

    tenant_id: int
    size: int
    lane: int
    class_name: str
    sender: str
    mailboxes: str
    subject: str
    recipients: str
    roles: str  # a letter for each recipient: t(o), c(c), b(cc)
    text: str | None
    html: str | None
    raw: bytes | None
    attachments: str | None  # JSON
    fields: str | None  # JSON
    key: str | None


class KnownKey(NamedTuple):
    """What was accepted under an idempotency key, and whether it was the same request."""

    message_id: UUID
    is_scheduled: bool
    is_same: bool
    hash_of_0_1_0: bytes | None  # if that version stored the key; `is_same` is then not known


class NotStored(Exception):
    """A mail made the statement fail, and nothing was stored; `reason` is that mail's error."""

    def __init__(self, reason: InvalidMail | StoreError) -> None:
        super().__init__(str(reason))
        self.reason = reason


async def clock(database: Db) -> float:
    """The database's time, in seconds since 1970."""
    return float(await database.fetchval(SQL["clock"]))


async def accept(
    database: Db, ids: Sequence[UUID], rows: Sequence[MailRow]
) -> tuple[Sequence[str], float]:
    """Store mails, in a connection's transaction or alone; returns verdicts, and the time.

    Raises NotStored if nothing was stored because of one of them, StoreError if that is not known.
    """
    try:
        with translated():
            row = await database.fetchrow(
                SQL["accept"], ids, *map(_column, zip(*rows, strict=True))
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


def _column(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A column as an array; None if all are null, which would cost as much as other values."""
    if values.count(None) == len(values):
        return None
    return values


def _unstorable() -> InvalidMail:
    return InvalidMail("not_storable", "message", "PostgreSQL cannot hold a value of this mail")


async def known_keys(database: Database, rows: Iterable[MailRow]) -> list[KnownKey | None]:
    """For each mail: what was accepted under its key before, or None if the key is free."""
    columns = dict(zip(MailRow._fields, zip(*rows, strict=True), strict=True))
    found = await database.fetch(
        *SQL.known_keys(
            tenant_ids=columns["tenant_id"],
            keys=columns["key"],
            fields=columns["fields"],
            texts=columns["text"],
            htmls=columns["html"],
            raws=columns["raw"],
            attachments=columns["attachments"],
        )
    )
    return [None if row["message_id"] is None else KnownKey(*row) for row in found]


def new_ids(count: int, seconds: float) -> list[UUID]:
    """New ids (UUID version 7, as `pillarbox._new_id`), in order, from a time since 1970."""
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


def one_or_array(values: Sequence[str]) -> str:
    """Texts as `_store_mails` takes them: a single one as it is, others as an array literal."""
    if len(values) == 1 and not values[0].startswith("{"):
        return values[0]
    if not values:
        return "{}"
    return '{"' + '","'.join(map(_quoted, values)) + '"}'


def _quoted(value: str) -> str:
    if "\\" in value or '"' in value:
        return value.replace("\\", "\\\\").replace('"', '\\"')
    return value
