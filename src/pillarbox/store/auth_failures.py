"""Failed logins, counted in the database for all processes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.model.throttle import WINDOW
from pillarbox.store import sql

if TYPE_CHECKING:
    from pillarbox.store.database import Database

SQL = sql.load("auth_failures")
_WINDOW = timedelta(seconds=WINDOW)


class FailureCount(NamedTuple):
    """The failures at a place, and the seconds since the first of them."""

    failures: int
    age: float


async def add(database: Database, failures: Mapping[bytes, int]) -> dict[bytes, FailureCount]:
    """Count failures by place; returns what is counted for these places now."""
    rows = await database.fetch(
        *SQL.add_failures(places=list(failures), counts=list(failures.values()), window=_WINDOW)
    )
    return {row["place"]: FailureCount(row["failures"], row["age"]) for row in rows}


async def purge(database: Database, batch: int) -> int:
    """Forget places whose minute is over, at most `batch`; returns how many."""
    return await database.execute(*SQL.purge_failures(window=_WINDOW, limit=batch))
