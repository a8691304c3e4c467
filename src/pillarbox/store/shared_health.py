"""Health and quotas of providers that all processes share: one row per provider."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.store import sql
from pillarbox.store.health import list_usage

if TYPE_CHECKING:
    from pillarbox.store.database import Database

SQL = sql.load("shared_health")


class SharedHealth(NamedTuple):
    """The shared state of a provider; times are seconds from now. `since` identifies the state."""

    provider_id: int
    state: str
    reason: str | None
    since: datetime
    opened: int
    retry_in: float | None
    held_for: float | None


async def change_state(
    database: Database,
    provider_id: int,
    state: str,
    reason: str | None,
    opened: int,
    seconds: float,
    worker: str,
) -> datetime | None:
    """Write the new state of a breaker; its `since`, or None if another process was first."""
    row = await database.fetchrow(
        *SQL.change_state(
            provider_id=provider_id,
            state=state,
            reason=reason,
            opened=opened,
            seconds=seconds,
            worker=worker,
        )
    )
    if row is None:
        return None
    since: datetime = row["since"]
    return since


async def share_pause(database: Database, provider_id: int, seconds: float, worker: str) -> None:
    """Write that a provider asked for a pause."""
    await database.execute(
        *SQL.share_pause(provider_id=provider_id, seconds=seconds, worker=worker)
    )


async def list_shared_health(database: Database) -> list[SharedHealth]:
    rows = await database.fetch(*SQL.list_shared_health())
    return [SharedHealth(**dict(row)) for row in rows]


async def take_probe(database: Database, provider_id: int, seconds: float, longest: float) -> bool:
    """Whether this process is to probe a provider with an open breaker."""
    taken = await database.fetchval(
        *SQL.take_probe(provider_id=provider_id, seconds=seconds, longest=longest)
    )
    return taken is not None


async def reopen(
    database: Database, provider_id: int, reason: str | None, opened: int, seconds: float
) -> datetime | None:
    """Write that a probe failed; the new `since`."""
    since: datetime | None = await database.fetchval(
        *SQL.reopen(provider_id=provider_id, reason=reason, opened=opened, seconds=seconds)
    )
    return since


async def take_check(database: Database, provider_id: int, interval: float) -> bool:
    """Whether this process is to check a provider now."""
    taken = await database.fetchval(*SQL.take_check(provider_id=provider_id, interval=interval))
    return taken is not None


async def record_check(database: Database, provider_id: int, ok: bool, text: str) -> None:
    await database.execute(*SQL.record_check(provider_id=provider_id, ok=ok, text=text))


async def use_quota(
    database: Database, provider_id: int, mails: Sequence[tuple[int, int]]
) -> list[tuple[float, str | None]]:
    """Use up quota for mails (lane, recipients): for each the seconds to wait, and which limit."""
    lanes = [lane for lane, _ in mails]
    recipients = [count for _, count in mails]
    rows = await database.fetch(
        *SQL.use_quota(provider_id=provider_id, lanes=lanes, recipients=recipients)
    )
    return [(row["wait"], row["why"]) for row in rows]


async def list_budgets(database: Database) -> list[tuple[int, str, float]]:
    """Enabled providers with a budget (id, name), and the part of it used this month."""
    usage = await list_usage(database)
    return [
        (provider.id, provider.name, provider.share)
        for provider in usage.values()
        if provider.enabled and not provider.removed and provider.share is not None
    ]
