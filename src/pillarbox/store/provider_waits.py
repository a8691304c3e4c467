"""Ends mails that have waited for a provider as long as their class allows (ADR 0023)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pillarbox.store import sql
from pillarbox.store.sql import Statement

if TYPE_CHECKING:
    from pillarbox.store.database import Database

SQL = sql.load("provider_waits")
# How often workers report that they run, and whether a provider is usable.
REPORT_INTERVAL = 15.0
# A silence of all workers that is longer than this was a time without workers: three reports were
# missed.
LONGEST_SILENCE = 3 * REPORT_INTERVAL
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
LOWEST = UUID(int=0)
# Where each walk begins: before every key.
MARKED = {"waiting_since": LONG_AGO, "message_id": LOWEST, "n": -1}
FRESH = {"tenant_id": -1, "lane": -1, "seq": -1, "message_id": LOWEST, "n": -1}
DEFERRED = {"tenant_id": -1, "lane": -1, "next_attempt_at": LONG_AGO, "message_id": LOWEST, "n": -1}


async def report(database: Database, usable: bool | None) -> None:
    """Report a running worker; `usable`: a provider is usable for any mail, None: not known yet."""
    await database.execute(*SQL.report(usable=usable, longest_silence=LONGEST_SILENCE))


async def outage_since(database: Database) -> datetime | None:
    """Since when no provider is usable for any mail; None: one is, or no worker runs."""
    since: datetime | None = await database.fetchval(
        *SQL.outage_since(longest_silence=LONGEST_SILENCE)
    )
    return since


class IndexWalk:
    """Walks through deliveries in the order of an index, in steps, and starts again at the end."""

    def __init__(self, statement: Statement, start: Mapping[str, Any]) -> None:
        self._statement = statement
        self._start = self._after = start

    async def next(self, database: Database, limit: int) -> list[tuple[UUID, int]]:
        rows: Sequence[Any] = await database.fetch(*self._statement(**self._after, limit=limit))
        self._after = self._start
        if len(rows) == limit:
            self._after = dict(rows[-1])
        return [(row["message_id"], row["n"]) for row in rows]


class MaxWaitEnforcer:
    """Ends deliveries that have waited for too long; the work of a call is bounded."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._marked = IndexWalk(SQL.marked, MARKED)
        self._unmarked = (IndexWalk(SQL.fresh, FRESH), IndexWalk(SQL.deferred, DEFERRED))

    async def give_up(self, limit: int) -> Counter[int]:
        """Check up to `limit` deliveries of each walk; how many were ended, by tenant."""
        ended = await self._end(await self._marked.next(self._database, limit))
        # While a provider is usable, deliveries without a mark will be tried.
        if await self._database.fetchval(*SQL.outage()):
            for walk in self._unmarked:
                ended += await self._end(await walk.next(self._database, limit))
        return ended

    async def _end(self, keys: Sequence[tuple[UUID, int]]) -> Counter[int]:
        if not keys:
            return Counter()
        message_ids = [message_id for message_id, _ in keys]
        recipient_numbers = [number for _, number in keys]
        rows = await self._database.fetch(
            *SQL.give_up(message_ids=message_ids, recipient_numbers=recipient_numbers)
        )
        return Counter({row["tenant_id"]: row["count"] for row in rows})
