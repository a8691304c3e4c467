"""The ReadyQueue in PostgreSQL, the default: the ledger's own tables say what is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from pillarbox.model.fairness import LaneId, Quota
from pillarbox.queue.ledger import Ledger
from pillarbox.queue.records import ClaimedMessage, SurveyedLane
from pillarbox.queue.work_signal import WorkSignal
from pillarbox.store.database import Database
from pillarbox.store.notifications import listen

CHANNEL = "pillarbox_wake"
# Seconds after a hint at which to look again. Enqueuers send at most one hint in 10 ms, so the last
# commit of a burst may have sent none: 12 ms later it is most likely committed, 50 ms later surely,
# and polling is the truth.
TRAILING_LOOKS = (0.012, 0.05)


class PostgresReadyQueue(WorkSignal):
    """See `queue.ready.ReadyQueue`."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        super().__init__(TRAILING_LOOKS)
        self._database = database
        self._ledger = ledger

    async def listen(
        self, stop: asyncio.Event, others: Mapping[str, Callable[[], None]] | None = None
    ) -> None:
        """Listen for notifications; `others` are more channels for the same connection."""
        await listen(self._database, {CHANNEL: self.wake, **(others or {})}, stop)

    async def survey(self, after: LaneId, limit: int) -> list[SurveyedLane]:
        return await self._ledger.survey(after, limit)

    async def claim(
        self, quotas: Sequence[Quota], limit: int, max_bytes: int, allow_oversized: bool
    ) -> list[ClaimedMessage]:
        return await self._ledger.claim(quotas, limit, max_bytes, allow_oversized)

    async def acknowledge(self, claims: Sequence[ClaimedMessage]) -> None:
        """Nothing to do: the rows that the ledger has changed are the queue itself."""
