"""The queue in numbers: depth, recent outcomes, workers, providers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pillarbox.store.messages import SQL, id_at

if TYPE_CHECKING:
    from pillarbox.store.database import Database

# The period of recent outcomes.
RECENT = timedelta(hours=1)
STATES = ("pending", "queued", "deferred", "processing", "held", "failed")


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The unfinished or failed deliveries of a tenant in one state; `deferred`: queued again."""

    tenant: str
    state: str
    count: int
    oldest: float | None  # seconds since the oldest was due


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    id: int
    name: str
    started_at: datetime
    lease_left: float  # seconds; below zero the reaper will take its claims
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
        totals = dict.fromkeys(STATES, 0)
        for depth in self.depths:
            totals[depth.state] += depth.count
        return totals

    @property
    def by_tenant(self) -> dict[str, dict[str, int]]:
        tenants: dict[str, dict[str, int]] = {}
        for depth in self.depths:
            counts = tenants.setdefault(depth.tenant, dict.fromkeys(STATES, 0))
            counts[depth.state] = depth.count
        return tenants

    @property
    def oldest_due(self) -> float | None:
        """Seconds since the oldest waiting delivery was due; None if none is overdue."""
        waiting = [depth for depth in self.depths if depth.state in ("queued", "deferred")]
        return max((depth.oldest for depth in waiting if depth.oldest), default=None)

    @property
    def rate(self) -> float:
        """Mails sent per second, over the last minute."""
        return self.sent_last_minute / 60


async def list_workers(database: Database) -> list[WorkerRecord]:
    """Workers whose claims were not reaped."""
    return [WorkerRecord(**row) for row in await database.fetch(*SQL.workers())]


async def statistics(database: Database, tenant: str | None = None) -> QueueStatistics:
    """Read everything once."""
    depths = [QueueDepth(**row) for row in await database.fetch(*SQL.depth_by_tenant())]
    if tenant is not None:
        depths = [depth for depth in depths if depth.tenant == tenant]
    since = id_at(datetime.now(UTC) - RECENT)
    recent = await database.fetchrow(
        *SQL.recent(first_id=since, seconds=RECENT.total_seconds(), tenant=tenant)
    )
    assert recent is not None
    return QueueStatistics(
        depths,
        workers=await list_workers(database),
        providers=[ProviderRecord(**row) for row in await database.fetch(*SQL.provider_names())],
        **recent,
    )
