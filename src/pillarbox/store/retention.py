"""Retention: dropping what is old, in bounded steps."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from pillarbox.store import sql
from pillarbox.store.database import Database

QUERIES = sql.load("retention")
START = UUID(int=0)
# An idempotency key is kept for a day at least: a client may repeat a request that long.
SHORTEST_KEY = 86400.0


async def purge(database: Database, content: float | None, finished: float | None, batch: int) -> Counter[str]:
    """Drop contents older than `content` seconds and whole messages older than `finished`; None keeps for ever."""
    dropped: Counter[str] = Counter()
    if finished is not None:
        dropped["messages"] = await _walk(database, "purge_finished", finished, batch)
        end = await database.fetchval(QUERIES["purge_before"], max(finished, SHORTEST_KEY))
        while count := await database.execute(QUERIES["purge_keys"], end, batch):
            dropped["keys"] += count
    if content is not None:
        dropped["contents"] = await _walk(database, "purge_contents", content, batch)
        while count := await database.execute(QUERIES["purge_captured"], content, batch):
            dropped["captured"] += count
    return dropped


async def _walk(database: Database, query: str, age: float, batch: int) -> int:
    """Walk from the oldest to those too young, one statement per batch."""
    # A class may keep its contents shorter than the installation does, so contents are walked to the end.
    end = await database.fetchval(QUERIES["purge_before"], age if query == "purge_finished" else 0.0)
    last: UUID | None = START
    dropped = 0
    while last is not None and last < end:
        row = await database.fetchrow(QUERIES[query], age, last, batch)
        assert row is not None
        last, dropped = row["last"], dropped + row["dropped"]
    return dropped
