"""Quotas of providers, rates and budgets: used up before each mail, in one statement for many."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pillarbox.batching import Batcher
from pillarbox.store import shared_health

if TYPE_CHECKING:
    from pillarbox.store.database import Database

QuotaRequest = tuple[int, int]  # lane, recipients
QuotaAnswer = tuple[float, str | None]  # seconds to wait (0: allowed), and for which limit


class ProviderQuota:
    """Uses up rates and budgets in the database, which all processes share."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._batchers: dict[int, Batcher[QuotaRequest, QuotaAnswer]] = {}

    async def ask(self, provider_id: int, lane: int, recipients: int) -> QuotaAnswer:
        """Use up quota for one mail, if there is enough."""
        batcher = self._batchers.get(provider_id)
        if batcher is None:
            use_quota = partial(shared_health.use_quota, self._database, provider_id)
            batcher = self._batchers[provider_id] = Batcher(use_quota)
        return await batcher.submit((lane, recipients))
