"""What all processes know of the providers' health, and what providers may still send: one row for each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.store import sql
from pillarbox.store.health import list_usage

if TYPE_CHECKING:
    from pillarbox.store.database import Database

QUERIES = sql.load("shared_health")


class SharedHealth(NamedTuple):
    """A provider's shared state; times are seconds from now. `since` names the state: another one is news."""

    provider_id: int
    state: str
    reason: str | None
    since: datetime
    opened: int
    retry_in: float | None
    held_for: float | None


async def turn(
    database: Database,
    provider_id: int,
    state: str,
    reason: str | None,
    opened: int,
    wait: float,
    worker: str,
) -> datetime | None:
    """Tell everybody that a breaker turned; None when another process was first."""
    row = await database.fetchrow(QUERIES["turn"], provider_id, state, reason, opened, wait, worker)
    return row["since"] if row else None


async def hold(database: Database, provider_id: int, seconds: float, worker: str) -> None:
    """Tell everybody that a provider asked for a pause."""
    await database.execute(QUERIES["hold"], provider_id, seconds, worker)


async def read(database: Database) -> list[SharedHealth]:
    return [SharedHealth(*row) for row in await database.fetch(QUERIES["list_shared_health"])]


async def take_probe(database: Database, provider_id: int, seconds: float, longest: float) -> bool:
    """Whether this process is the one to probe a provider whose breaker is open."""
    return await database.fetchval(QUERIES["take_probe"], provider_id, seconds, longest) is not None


async def reopen(
    database: Database, provider_id: int, reason: str | None, opened: int, wait: float
) -> datetime | None:
    """The probe failed."""
    found: datetime | None = await database.fetchval(
        QUERIES["reopen"], provider_id, reason, opened, wait
    )
    return found


async def take_check(database: Database, provider_id: int, interval: float) -> bool:
    """Whether this process is the one to check a provider now."""
    return await database.fetchval(QUERIES["take_check"], provider_id, interval) is not None


async def checked(database: Database, provider_id: int, ok: bool, said: str) -> None:
    await database.execute(QUERIES["checked"], provider_id, ok, said)


async def spend(
    database: Database, provider_id: int, mails: Sequence[tuple[int, int]]
) -> list[tuple[float, str | None]]:
    """Use up a provider's limits for mails (lane, recipients): for each the seconds to wait, and for what."""
    lanes, recipients = [lane for lane, _ in mails], [count for _, count in mails]
    return [
        (row[0], row[1])
        for row in await database.fetch(QUERIES["spend"], provider_id, lanes, recipients)
    ]


async def budgets(database: Database) -> list[tuple[int, str, float]]:
    """Providers with a budget (id, name), and how much of it this month has used up."""
    found = [
        one for one in (await list_usage(database)).values() if one.enabled and not one.removed
    ]
    return [(one.id, one.name, one.share) for one in found if one.share is not None]
