"""What providers may send in a time and for their money: asked for before each mail, for many mails at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pillarbox.batching import Batcher
from pillarbox.store import shared_health

if TYPE_CHECKING:
    from pillarbox.store.database import Database

Mail = tuple[int, int]  # lane, recipients
Answer = tuple[float, str | None]  # seconds to wait, and for which limit


class ProviderQuota:
    """Uses up rates and budgets in the database, which all processes share."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._batchers: dict[int, Batcher[Mail, Answer]] = {}

    async def ask(self, provider_id: int, lane: int, recipients: int) -> Answer:
        """The right to send one mail: nothing to wait for, or how long and why."""
        batcher = self._batchers.get(provider_id)
        if batcher is None:
            batcher = self._batchers[provider_id] = Batcher(
                partial(shared_health.spend, self._database, provider_id)
            )
        return await batcher.submit((lane, recipients))
