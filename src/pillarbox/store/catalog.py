"""Classes, grants and captured mails: the small things beside the queue."""

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

QUERIES = sql.load("providers") | sql.load("catalog")
NEWEST = 2**63 - 1
# What RFC 5321 (4.5.4.1) asks of a sender that cannot reach a server: it goes on for four to five
# days at least.
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
    return {(row["id"], row["name"]) for row in await database.fetch(QUERIES["sealed_providers"])}


async def list_classes(database: Database) -> list[ClassRecord]:
    return [ClassRecord(*row) for row in await database.fetch(QUERIES["list_classes"])]


async def put_class(database: Database, facts: ClassRecord) -> None:
    """Add a class, or change it."""
    await database.execute(
        QUERIES["put_class"], facts.name, facts.retry, facts.unknown, facts.secret, facts.content_retention,
        facts.max_wait,
    )  # fmt: skip


async def grant(database: Database, role: str) -> list[str]:
    """Let a role enqueue, and nothing else; returns the statements carried out."""
    async with database.transaction() as connection:
        statements = [row["statement"] for row in await connection.fetch(QUERIES["grants"], role)]
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
    """Captured mails, newest first. Continue after the last one with `before`."""
    rows = await database.fetch(
        QUERIES["list_captured"], before or NEWEST, limit, since, until, recipient, sender, provider
    )
    return [_captured(dict(row)) for row in rows]


def _captured(values: dict[str, Any]) -> CapturedMail:
    return CapturedMail(subject=subject_of(values.pop("head")), **values)


async def captured_content(database: Database, number: int) -> bytes:
    """The exact bytes of a captured mail."""
    content = await database.fetchval(QUERIES["captured"], number) if number < NEWEST else None
    if content is None:
        raise NotFound(f"there is no captured mail {number}: see `pillarbox captured list`")
    return bytes(content)


def subject_of(head: bytes) -> str:
    """The decoded Subject of a mail's beginning; what cannot be decoded is left out."""
    try:
        return str(BytesHeaderParser(policy=policy.default).parsebytes(head).get("subject", ""))
    except Exception:  # the standard library's parser trips over some hostile headers
        return ""
