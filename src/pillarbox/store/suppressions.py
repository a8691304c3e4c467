"""Suppression lists at rest: the addresses that a tenant's mails are not sent to.

Addresses are compared in lower case, as the database makes it. An entry that has expired counts for
nothing, and goes with the next round of retention.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.errors import NotFound
from pillarbox.model.suppression import SuppressionEntry, SuppressionReason
from pillarbox.store import sql
from pillarbox.wire.suppressions import Suppression

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database

QUERIES = sql.load("suppressions")
# Addresses per statement: it stays well under a second, and so do its locks unless more follow in
# the transaction.
BATCH = 1000
# Addresses that a page with filters looks at: some milliseconds, however long the list and rare the
# hits.
LOOKED_AT = 10_000
STRENGTHS = [one.value for one in SuppressionReason]
_columns = attrgetter("address", "reason", "note", "expires_at", "message_id")


class SuppressionCounts(NamedTuple):
    """What became of addresses that were given: new, made stronger or longer, or left as they were."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0

    def plus(self, other: SuppressionCounts) -> SuppressionCounts:
        return SuppressionCounts(*map(sum, zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class SuppressionFilter:
    """Which addresses; None means any. `prefix` is how they begin, whatever the case."""

    prefix: str | None = None
    reason: SuppressionReason | None = None
    after: str | None = None


class FoundSuppressions(NamedTuple):
    """Addresses that fit, and the one after which the next page begins; None at the end."""

    found: Sequence[Suppression]
    next: str | None


async def add(
    database: Database, tenant_id: int, entries: Sequence[SuppressionEntry]
) -> SuppressionCounts:
    """Put addresses on a tenant's list, all or none.

    Where one is there already, the stronger reason and the later expiry stay: to shorten it, remove
    it first.
    """
    async with database.transaction() as connection:
        result = SuppressionCounts()
        async for some in add_to(connection, tenant_id, entries):
            result = result.plus(some)
    return result


async def add_to(
    connection: asyncpg.Connection, tenant_id: int, entries: Iterable[SuppressionEntry]
) -> AsyncIterator[SuppressionCounts]:
    """As `add`, in the transaction of a connection, batch by batch."""
    for some in _batches(entries):
        columns = zip(*map(_columns, some), strict=True)
        row = await connection.fetchrow(
            QUERIES["add"], [tenant_id] * len(some), *columns, STRENGTHS
        )
        yield SuppressionCounts(*row)


def _batches(entries: Iterable[SuppressionEntry]) -> Iterator[list[SuppressionEntry]]:
    rest = iter(entries)
    while some := list(islice(rest, BATCH)):
        yield some


async def remove(database: Database, tenant_id: int, address: str) -> None:
    """Take an address off a tenant's list; NotFound if it is not on it."""
    rows = await database.fetch(QUERIES["remove"], tenant_id, [address])
    if not any(row["in_force"] for row in rows):
        raise NotFound(f"{address} is not on the list: see `pillarbox suppression list`")


async def page(
    database: Database, tenant_id: int, which: SuppressionFilter, limit: int
) -> FoundSuppressions:
    """One page of a tenant's list; with filters it can be short, or empty, before the end."""
    filtered = which.prefix is not None or which.reason is not None
    end = await _end(database, tenant_id, which.after) if filtered else None
    rows = await database.fetch(
        QUERIES["page"], tenant_id, which.after, end, which.prefix, limit + 1, which.reason
    )
    found = [Suppression(*row) for row in rows[:limit]]
    return FoundSuppressions(found, found[-1].address if len(rows) > limit else end)


async def _end(database: Database, tenant_id: int, after: str | None) -> str | None:
    """Where the look of a page ends; None when that is beyond the last address."""
    found: str | None = await database.fetchval(QUERIES["page_end"], tenant_id, after, LOOKED_AT)
    return found


async def walk(
    database: Database, tenant_id: int, which: SuppressionFilter
) -> AsyncIterator[Sequence[Suppression]]:
    """All addresses that fit, some at a time; at least once, if only to say that there are none."""
    after = which.after
    while True:
        found, after = await page(
            database, tenant_id, SuppressionFilter(which.prefix, which.reason, after), BATCH
        )
        yield found
        if after is None:
            return


async def find(database: Database, tenant_id: int, address: str) -> Suppression | None:
    """An address on a tenant's list; None when it is not on it."""
    row = await database.fetchrow(QUERIES["find"], tenant_id, address)
    return Suppression(*row) if row else None
