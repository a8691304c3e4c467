"""The queue in numbers: depth, what was settled lately, who works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pillarbox.store.messages import QUERIES, id_at

if TYPE_CHECKING:
    from pillarbox.store.database import Database

# What counts as lately.
RECENT = timedelta(hours=1)
STATES = ("pending", "queued", "deferred", "processing", "held", "failed")


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The unfinished or dead-letter deliveries of a tenant in one state; `deferred` ones are queued again."""

    tenant: str
    state: str
    count: int
    oldest: float | None  # seconds since the oldest was due


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    id: int
    name: str
    started_at: datetime
    lease_left: float  # seconds; below zero the reaper is about to take its claims
    holds: int


@dataclass(frozen=True, slots=True)
class ProviderRecord:
    name: str
    kind: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    depths: Sequence[QueueDepth]
    sent: int  # in the last hour, of mails accepted in it
    failed: int  # in the last hour
    sent_last_minute: int
    failed_last_minute: int
    workers: Sequence[WorkerRecord]
    providers: Sequence[ProviderRecord]

    @property
    def by_state(self) -> dict[str, int]:
        return {
            state: sum(one.count for one in self.depths if one.state == state) for state in STATES
        }

    @property
    def by_tenant(self) -> dict[str, dict[str, int]]:
        tenants: dict[str, dict[str, int]] = {}
        for one in self.depths:
            tenants.setdefault(one.tenant, dict.fromkeys(STATES, 0))[one.state] = one.count
        return tenants

    @property
    def oldest_due(self) -> float | None:
        """Seconds since the oldest delivery that waits was due; None when nothing waits past its time."""
        ages = [
            one.oldest for one in self.depths if one.state in ("queued", "deferred") and one.oldest
        ]
        return max(ages, default=None)

    @property
    def rate(self) -> float:
        """Mails sent per second, over the last minute."""
        return self.sent_last_minute / 60


async def list_workers(database: Database) -> list[WorkerRecord]:
    """Workers whose lease was not taken away."""
    return [WorkerRecord(*row) for row in await database.fetch(QUERIES["workers"])]


async def statistics(database: Database, tenant: str | None = None) -> QueueStatistics:
    """Look at everything once."""
    depths = [QueueDepth(*row) for row in await database.fetch(QUERIES["depth_by_tenant"])]
    since = id_at(datetime.now(UTC) - RECENT)
    recent = await database.fetchrow(QUERIES["recent"], since, RECENT.total_seconds(), tenant)
    assert recent is not None
    workers = await list_workers(database)
    providers = [ProviderRecord(*row) for row in await database.fetch(QUERIES["provider_names"])]
    kept = [one for one in depths if tenant in (None, one.tenant)]
    return QueueStatistics(kept, **dict(recent), workers=workers, providers=providers)
