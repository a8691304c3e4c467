"""Stored message classes, grants to database roles, and captured mails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from email import policy
from email.parser import BytesHeaderParser
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pillarbox.errors import NotFound
from pillarbox.store import sql

if TYPE_CHECKING:
    from pillarbox.store.database import Database

SQL = sql.load("providers") | sql.load("catalog")
NEWEST = 2**63 - 1
# RFC 5321 (4.5.4.1) asks a sender that cannot reach a server to try for at least four to five days.
MAX_WAIT = timedelta(days=5)


@dataclass(frozen=True, slots=True)
class ClassRecord:
    name: str
    retry: str | None  # None: the provider's
    unknown: str
    secret: bool
    content_retention: timedelta | None  # None: the installation's
    max_wait: timedelta | None = MAX_WAIT  # how long mails wait for a provider; None: for ever


@dataclass(frozen=True, slots=True)
class CapturedMail:
    id: int
    at: datetime
    message_id: UUID
    provider: str
    sender: str
    recipients: Sequence[str]
    size: int
    subject: str


async def sealed_providers(database: Database) -> set[tuple[int, str]]:
    """Which secrets providers have: their ids, with `secret` or `webhook_secret`."""
    return {(row["id"], row["name"]) for row in await database.fetch(*SQL.sealed_providers())}


async def list_classes(database: Database) -> list[ClassRecord]:
    return [ClassRecord(**row) for row in await database.fetch(*SQL.list_classes())]


async def put_class(database: Database, record: ClassRecord) -> None:
    """Add a class, or change it."""
    await database.execute(
        *SQL.put_class(
            name=record.name,
            retry=record.retry,
            unknown=record.unknown,
            secret=record.secret,
            content_retention=record.content_retention,
            max_wait=record.max_wait,
        )
    )


async def grant(database: Database, role: str) -> list[str]:
    """Grant a role the right to enqueue, and nothing else; returns the executed statements."""
    async with database.transaction() as connection:
        statements = [row["statement"] for row in await connection.fetch(*SQL.grants(role=role))]
        for statement in statements:
            await connection.execute(statement)
    if not statements:
        raise NotFound(f"there is no role {role!r} in this database: create it with CREATE ROLE")
    return statements


async def list_captured(
    database: Database,
    limit: int,
    before: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    recipient: str | None = None,
    sender: str | None = None,
    provider: str | None = None,
) -> list[CapturedMail]:
    """Captured mails, newest first; `before` continues after the last one."""
    rows = await database.fetch(
        *SQL.list_captured(
            before=before or NEWEST,
            limit=limit,
            since=since,
            until=until,
            recipient=recipient,
            sender=sender,
            provider=provider,
        )
    )
    return [_captured(dict(row)) for row in rows]


def _captured(values: dict[str, Any]) -> CapturedMail:
    return CapturedMail(subject=subject_of(values.pop("head")), **values)


async def captured_content(database: Database, number: int) -> bytes:
    """The exact bytes of a captured mail."""
    content = None
    if number < NEWEST:
        content = await database.fetchval(*SQL.captured(id=number))
    if content is None:
        raise NotFound(f"there is no captured mail {number}: see `pillarbox captured list`")
    return bytes(content)


def subject_of(head: bytes) -> str:
    """The decoded Subject in the beginning of a mail; empty if it cannot be parsed."""
    try:
        return str(BytesHeaderParser(policy=policy.default).parsebytes(head).get("subject", ""))
    except Exception:  # the standard library's parser fails on some hostile headers
        return ""
