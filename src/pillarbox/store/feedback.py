"""Feedback at rest: what providers said, and the tokens it came with."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from pillarbox.store import sql
from pillarbox.store.database import Database

QUERIES = sql.load("feedback")
# The provider of reports that somebody handed in.
NOBODY = 0


class FeedbackRow(NamedTuple):
    """One piece of feedback as it is stored; JSON is text, and everything was redacted."""

    provider_id: int
    event_id: str
    tenant_id: int | None  # whose message it must be about; None: anybody's
    message_id: UUID | None
    n: int | None
    recipient: str | None  # in lower case
    other: str | None  # the same with its domain in the other spelling
    kind: str
    at: datetime
    hard: bool
    reason: str | None
    data: str
    raw: str | None
    provider_message_id: str | None = None  # under which an attempt must have been made; None: any


class FeedbackMatch(NamedTuple):
    """The delivery that a piece of feedback is about, and whether it was heard for the first time."""

    message_id: UUID
    n: int
    is_new: bool


class ReplayTokenRow(NamedTuple):
    """What proves a request of whose body nothing is signed; it is good for one body."""

    provider_id: int
    value: str
    digest: bytes
    expires_at: datetime


async def hear(
    database: Database, rows: Sequence[FeedbackRow], lasts: timedelta | None
) -> list[FeedbackMatch | None]:
    """Take feedback in and let it count, all or nothing; says of each what it is about, None for nothing we know.

    Addresses that shall not be written to again are suppressed for as long as `lasts`; None: for
    good.
    """
    found: list[FeedbackMatch | None] = [None] * len(rows)
    columns = zip(*rows, strict=True) if rows else [()] * len(FeedbackRow._fields)
    for place, *one in await database.fetch(QUERIES["hear"], *columns, lasts):
        found[place - 1] = FeedbackMatch(*one)
    return found


async def catch_up(database: Database, most: int, lasts: timedelta | None) -> int:
    """Let feedback count that waited for attempts which are settled now; returns how much."""
    return int(await database.fetchval(QUERIES["catch_up"], most, lasts) or 0)


async def use_tokens(database: Database, tokens: Sequence[ReplayTokenRow]) -> list[bytes | None]:
    """Use tokens up; returns the digest that each was used with first, None where somebody does at this moment."""
    rows = await database.fetch(QUERIES["use_tokens"], *zip(*tokens, strict=True))
    return [row["digest"] for row in rows]


async def forget_tokens(database: Database, most: int) -> int:
    """Delete tokens that are too old to be taken; returns how many."""
    return await database.execute(QUERIES["forget_tokens"], most)
