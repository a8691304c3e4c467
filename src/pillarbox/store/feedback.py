"""Stored feedback of providers, and the replay tokens of its requests.

The rules (which feedback changes which delivery) are in store/schema/feedback.sql.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from pillarbox.store import sql
from pillarbox.store.database import Database

SQL = sql.load("feedback")
# The provider id of reports that a person or program submits.
NO_PROVIDER = 0


class FeedbackRow(NamedTuple):
    """One feedback event as it is stored; JSON is text, and everything is redacted."""

    provider_id: int
    event_id: str
    tenant_id: int | None  # the tenant whose message it must be; None: any
    message_id: UUID | None
    n: int | None
    recipient: str | None  # in lower case
    other: str | None  # the same address with its domain in the other spelling
    kind: str
    at: datetime
    hard: bool
    reason: str | None
    data: str
    raw: str | None
    provider_message_id: str | None = None  # that an attempt must have; None: any


class FeedbackMatch(NamedTuple):
    """The delivery that a feedback event is about; `is_new`: it was not stored before."""

    message_id: UUID
    n: int
    is_new: bool


class ReplayTokenRow(NamedTuple):
    """A token of a request whose body is not signed; it is valid for one body."""

    provider_id: int
    value: str
    digest: bytes
    expires_at: datetime


async def apply_feedback(
    database: Database, rows: Sequence[FeedbackRow], suppress_for: timedelta | None
) -> list[FeedbackMatch | None]:
    """Store and apply feedback, all or nothing; returns the delivery of each, None if unknown.

    Hard bounces and complaints suppress their recipients for `suppress_for`; None: without end.
    """
    matches: list[FeedbackMatch | None] = [None] * len(rows)
    found = await database.fetch(
        *SQL.apply_feedback(
            provider_ids=[row.provider_id for row in rows],
            event_ids=[row.event_id for row in rows],
            tenant_ids=[row.tenant_id for row in rows],
            message_ids=[row.message_id for row in rows],
            recipient_numbers=[row.n for row in rows],
            recipients=[row.recipient for row in rows],
            other_spellings=[row.other for row in rows],
            kinds=[row.kind for row in rows],
            times=[row.at for row in rows],
            hard=[row.hard for row in rows],
            reasons=[row.reason for row in rows],
            data=[row.data for row in rows],
            raw=[row.raw for row in rows],
            provider_message_ids=[row.provider_message_id for row in rows],
            suppress_for=suppress_for,
        )
    )
    for match in found:
        matches[match["place"] - 1] = FeedbackMatch(
            match["message_id"], match["n"], match["is_new"]
        )
    return matches


async def catch_up(database: Database, limit: int, suppress_for: timedelta | None) -> int:
    """Apply feedback that waited for attempts which are settled now; returns how much."""
    applied = await database.fetchval(*SQL.catch_up(limit=limit, suppress_for=suppress_for))
    return int(applied or 0)


async def use_tokens(database: Database, tokens: Sequence[ReplayTokenRow]) -> list[bytes | None]:
    """Use tokens; returns the digest each was first used with, None while it is being used."""
    rows = await database.fetch(
        *SQL.use_tokens(
            provider_ids=[token.provider_id for token in tokens],
            tokens=[token.value for token in tokens],
            digests=[token.digest for token in tokens],
            expiry_times=[token.expires_at for token in tokens],
        )
    )
    return [row["digest"] for row in rows]


async def purge_tokens(database: Database, limit: int) -> int:
    """Delete tokens whose requests are refused by their age anyway; returns how many."""
    return await database.execute(*SQL.purge_tokens(limit=limit))
