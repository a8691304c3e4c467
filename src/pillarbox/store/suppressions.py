"""Stored suppression lists: the addresses that a tenant's mails are not sent to.

Addresses are compared in lower case, as the database makes it. An expired entry has no effect; the
next round of retention deletes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.errors import NotFound
from pillarbox.model.suppression import SuppressionEntry, SuppressionReason
from pillarbox.store import sql
from pillarbox.wire.suppressions import Suppression

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database

SQL = sql.load("suppressions")
# Addresses per statement: it takes well under a second, and so do its locks unless the transaction
# goes on.
BATCH = 1000
# Addresses that a page with filters reads: some milliseconds, however long the list and rare the
# matches.
LOOKED_AT = 10_000
STRENGTHS = [one.value for one in SuppressionReason]


class SuppressionCounts(NamedTuple):
    """How many given addresses were added, changed (stronger reason, later expiry) or unchanged."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0

    def plus(self, other: SuppressionCounts) -> SuppressionCounts:
        return SuppressionCounts(
            self.added + other.added,
            self.changed + other.changed,
            self.unchanged + other.unchanged,
        )


@dataclass(frozen=True, slots=True)
class SuppressionFilter:
    """Which addresses; None means any. `prefix` is their beginning, ignoring case."""

    prefix: str | None = None
    reason: SuppressionReason | None = None
    after: str | None = None


class FoundSuppressions(NamedTuple):
    """Matching addresses, and the one after which the next page begins; None at the end."""

    found: Sequence[Suppression]
    next: str | None


async def add(
    database: Database, tenant_id: int, entries: Sequence[SuppressionEntry]
) -> SuppressionCounts:
    """Put addresses on a tenant's list, all or none.

    An existing entry keeps the stronger reason and the later expiry: to shorten it, remove it
    first.
    """
    async with database.transaction() as connection:
        result = SuppressionCounts()
        async for counts in add_to(connection, tenant_id, entries):
            result = result.plus(counts)
    return result


async def add_to(
    connection: asyncpg.Connection, tenant_id: int, entries: Iterable[SuppressionEntry]
) -> AsyncIterator[SuppressionCounts]:
    """As `add`, in the transaction of a connection, in batches."""
    for batch in _batches(entries):
        row = await connection.fetchrow(
            *SQL.add(
                tenant_ids=[tenant_id] * len(batch),
                addresses=[entry.address for entry in batch],
                reasons=[entry.reason for entry in batch],
                notes=[entry.note for entry in batch],
                expiry_times=[entry.expires_at for entry in batch],
                message_ids=[entry.message_id for entry in batch],
                strengths=STRENGTHS,
            )
        )
        yield SuppressionCounts(**row)


def _batches(entries: Iterable[SuppressionEntry]) -> Iterator[list[SuppressionEntry]]:
    rest = iter(entries)
    while batch := list(islice(rest, BATCH)):
        yield batch


async def remove(database: Database, tenant_id: int, address: str) -> None:
    """Remove an address from a tenant's list; NotFound if it is not on it."""
    rows = await database.fetch(*SQL.remove(tenant_id=tenant_id, addresses=[address]))
    if not any(row["in_force"] for row in rows):
        raise NotFound(f"{address} is not on the list: see `pillarbox suppression list`")


async def page(
    database: Database, tenant_id: int, which: SuppressionFilter, limit: int
) -> FoundSuppressions:
    """One page of a tenant's list; with filters it may be short before the end."""
    end = None
    if which.prefix is not None or which.reason is not None:
        end = await _end(database, tenant_id, which.after)
    rows = await database.fetch(
        *SQL.page(
            tenant_id=tenant_id,
            after=which.after,
            up_to=end,
            prefix=which.prefix,
            limit=limit + 1,
            reason=which.reason,
        )
    )
    found = [Suppression(**row) for row in rows[:limit]]
    return FoundSuppressions(found, found[-1].address if len(rows) > limit else end)


async def _end(database: Database, tenant_id: int, after: str | None) -> str | None:
    """The address at which reading for a page ends; None if there are fewer addresses."""
    found: str | None = await database.fetchval(
        *SQL.page_end(tenant_id=tenant_id, after=after, position=LOOKED_AT)
    )
    return found


async def walk(
    database: Database, tenant_id: int, which: SuppressionFilter
) -> AsyncIterator[Sequence[Suppression]]:
    """All matching addresses in lists; at least one list, perhaps empty."""
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
    row = await database.fetchrow(*SQL.find(tenant_id=tenant_id, address=address))
    return Suppression(**row) if row else None
