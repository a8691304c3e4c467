"""Retention: deletes what is old, in bounded steps.

A class or tenant may keep its mails for another time than the installation does. For each of these
ages there is a walk over all mails from the oldest on, whose position is stored in the database: a
round reads only what reached that age since the last one, whichever process made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from pillarbox.store import admins, auth_failures, challenges, sql
from pillarbox.store.database import Database
from pillarbox.store.feedback import purge_tokens

SQL = sql.load("retention")
WEBHOOKS = sql.load("webhooks")
# An idempotency key is kept for a day at least, for clients that repeat a request. Also in the
# statements.
SHORTEST_KEY = timedelta(days=1)


async def purge(
    database: Database, content: float | None, finished: float | None, batch: int
) -> Counter[str]:
    """Delete contents older than `content` seconds and messages older than `finished`; None: never.

    A tenant's setting overrides these, and a class's setting the tenant's. Returns the numbers of
    deleted rows by kind.
    """
    content_age, finished_age = _interval(content), _interval(finished)
    dropped: Counter[str] = Counter()
    for age in await _ages(database, SQL.finished_ages(default_age=finished_age)):
        purge_age = partial(SQL.purge_finished, age=age, default_age=finished_age)
        dropped += await _walk(database, "messages", purge_age, age, batch)
    purge_age = partial(SQL.purge_keys, age=SHORTEST_KEY)
    dropped += await _walk(database, "keys", purge_age, SHORTEST_KEY, batch)
    for age in await _ages(database, SQL.content_ages(default_age=content_age)):
        purge_age = partial(SQL.purge_contents, age=age, default_age=content_age)
        dropped += await _walk(database, "contents", purge_age, age, batch)
    for name, purge_batch in _purges(database, content_age, batch):
        while count := await purge_batch():
            dropped[name] += count
    await database.execute(*SQL.forget_walks())
    return dropped


def _purges(
    database: Database, content_age: timedelta | None, batch: int
) -> Iterator[tuple[str, Callable[[], Awaitable[int]]]]:
    """What is deleted by its own age: a name, and a function that deletes one batch."""
    if content_age is not None:
        captured = SQL.purge_captured(age=content_age, limit=batch)
        yield "captured", lambda: database.execute(*captured)
    yield "tokens", lambda: purge_tokens(database, batch)
    suppressions = SQL.purge_suppressions(limit=batch)
    yield "suppressions", lambda: database.execute(*suppressions)
    yield "challenges", lambda: challenges.purge(database, batch)
    yield "sessions", lambda: admins.purge_sessions(database, batch)
    yield "auth_failures", lambda: auth_failures.purge(database, batch)


async def purge_webhook_calls(database: Database, age: float | None, batch: int) -> int:
    """Delete finished webhook calls older than `age` seconds; None keeps them."""
    dropped = 0
    if age is None:
        return dropped
    statement = WEBHOOKS.purge_calls(age=_interval(age), limit=batch)
    while count := await database.execute(*statement):
        dropped += count
    return dropped


def _interval(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


async def _ages(database: Database, statement: tuple[Any, ...]) -> list[timedelta]:
    return [row["age"] for row in await database.fetch(*statement)]


async def _walk(
    database: Database,
    what: str,
    purge_batch: Callable[..., tuple[Any, ...]],
    age: timedelta,
    batch: int,
) -> Counter[str]:
    """Continue the walk for this age up to what is too young, one statement per batch."""
    walk = await database.fetchrow(*SQL.begin_walk(what=what, age=age))
    assert walk is not None
    dropped: Counter[str] = Counter()
    last: UUID | None = walk["start"]
    while last is not None:
        statement = purge_batch(
            after_id=last, end_id=walk["end"], limit=batch, began_at=walk["began_at"]
        )
        row = await database.fetchrow(*statement)
        assert row is not None
        counts = dict(row)
        last = counts.pop("last")
        dropped += Counter(counts)
    return dropped
