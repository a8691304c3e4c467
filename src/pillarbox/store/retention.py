"""Retention: dropping what is old, in bounded steps.

A class or tenant may keep its mails shorter or longer than the installation does. For each of the
ages there is a walk over everybody's mails from the oldest on, remembered in the database: a round
looks only at what has come of age since the last one, whoever made it.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from uuid import UUID

from pillarbox.store import admins, auth_failures, challenges, sql
from pillarbox.store.database import Database
from pillarbox.store.feedback import forget_tokens

QUERIES = sql.load("retention")
WEBHOOKS = sql.load("webhooks")
# An idempotency key is kept for a day at least: a client may repeat a request that long. Also in
# the queries.
SHORTEST_KEY = timedelta(days=1)


async def purge(
    database: Database, content: float | None, finished: float | None, batch: int
) -> Counter[str]:
    """Drop contents older than `content` seconds and whole messages older than `finished`; None keeps for ever.

    Tenants' settings come before these, and classes' before tenants'.
    """
    bodies, stories = _interval(content), _interval(finished)
    dropped: Counter[str] = Counter()
    for age in await _ages(database, "finished_ages", stories):
        dropped += await _walk(database, "messages", "purge_finished", age, stories, batch)
    dropped += await _walk(database, "keys", "purge_keys", SHORTEST_KEY, None, batch)
    for age in await _ages(database, "content_ages", bodies):
        dropped += await _walk(database, "contents", "purge_contents", age, bodies, batch)
    while bodies is not None and (
        count := await database.execute(QUERIES["purge_captured"], bodies, batch)
    ):
        dropped["captured"] += count
    while count := await forget_tokens(database, batch):
        dropped["tokens"] += count
    while count := await database.execute(QUERIES["purge_suppressions"], batch):
        dropped["suppressions"] += count
    while count := await challenges.purge(database, batch):
        dropped["challenges"] += count
    while count := await admins.purge_sessions(database, batch):
        dropped["sessions"] += count
    while count := await auth_failures.purge(database, batch):
        dropped["auth_failures"] += count
    await database.execute(QUERIES["forget_walks"])
    return dropped


async def purge_webhook_calls(database: Database, age: float | None, batch: int) -> int:
    """Drop webhook calls older than `age` seconds that nobody will make any more; None keeps them."""
    dropped = 0
    while age is not None and (
        count := await database.execute(WEBHOOKS["purge_calls"], _interval(age), batch)
    ):
        dropped += count
    return dropped


def _interval(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


async def _ages(database: Database, query: str, usual: timedelta | None) -> list[timedelta]:
    return [row["age"] for row in await database.fetch(QUERIES[query], usual)]


async def _walk(
    database: Database, what: str, query: str, age: timedelta, usual: timedelta | None, batch: int
) -> Counter[str]:
    """Go on where the last walk for this age ended, up to what is too young, one statement per batch."""
    walk = await database.fetchrow(QUERIES["begin_walk"], what, age)
    assert walk is not None
    dropped: Counter[str] = Counter()
    last: UUID | None = walk["start"]
    while last is not None:
        row = await database.fetchrow(
            QUERIES[query], age, last, walk["end"], usual, batch, walk["began_at"]
        )
        assert row is not None
        last, *_ = row
        dropped += Counter({name: count for name, count in row.items() if name != "last"})
    return dropped
