"""The rate limit that holds a due mail back, and when the mail is expected to leave."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from pillarbox.store import sql

if TYPE_CHECKING:
    from pillarbox.store.database import Database

SQL = sql.load("rate_limit_wait")


@dataclass(frozen=True, slots=True)
class RateLimitWait:
    """A rate limit that a mail waits for.

    The time is an estimate: limits change, and mails of higher lanes leave first.
    """

    waits_for: str  # tenant_rate or provider_rate
    limit: int
    period: str  # second, hour or day
    expected_at: datetime


async def find_rate_limit_wait(database: Database, message_id: UUID) -> RateLimitWait | None:
    """The rate limit that holds a message back; None if no limit does."""
    row = await database.fetchrow(*SQL.rate_limit_wait(message_id=message_id))
    return RateLimitWait(**row) if row else None
