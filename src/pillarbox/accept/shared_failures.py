"""Failed logins of all processes: counted in PostgreSQL when one fails, and learned from the answer.

Nothing is read or written for logins that succeed. While the database is unavailable each process
counts for itself.
"""

from __future__ import annotations

import hmac
import time
from collections import Counter
from collections.abc import Callable, Sequence

from pillarbox.batching import Batcher
from pillarbox.errors import StoreError
from pillarbox.model.throttle import WINDOW
from pillarbox.store import failures
from pillarbox.store.database import Database
from pillarbox.store.failures import Counted
from pillarbox.telemetry import logs

log = logs.get("pillarbox.access")
_PURPOSE = b"pillarbox auth failures 1"
# 128 bits: no two places meet by chance.
_PLACE_BYTES = 16
# Rows per statement that forgets what is old: well under a second.
PURGE_BATCH = 10_000

Place = tuple[str, ...]


class SharedFailures:
    """Counts failures for all processes; concurrent ones share a statement."""

    def __init__(
        self, database: Database, key: bytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._key = hmac.digest(key, _PURPOSE, "sha256")
        self._clock = clock
        self._purged = clock()
        self._batcher: Batcher[tuple[bytes, ...], tuple[Counted, ...]] = Batcher(self._add)

    async def add(self, *places: Place) -> Sequence[Counted]:
        """Count a failure at each of these places; returns what all processes have counted. Empty: not known now."""
        try:
            return await self._batcher.ask(tuple(map(self._hashed, places)))
        except StoreError as error:
            log.warning("failed logins are counted by this process alone for now", error=str(error))
            return ()

    async def _add(self, asked: list[tuple[bytes, ...]]) -> Sequence[tuple[Counted, ...]]:
        counted = await failures.add(
            self._database, Counter(place for places in asked for place in places)
        )
        await self._purge()
        return [tuple(counted[place] for place in places) for places in asked]

    async def _purge(self) -> None:
        """Once a minute forget what is old: guessing from many addresses does not fill the table until retention."""
        now = self._clock()
        if now - self._purged >= WINDOW:
            self._purged = now
            await failures.purge(self._database, PURGE_BATCH)

    def _hashed(self, place: Place) -> bytes:
        """A place as the database may know it: addresses and names never in clear."""
        text = "\0".join(place).encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, text, "sha256")[:_PLACE_BYTES]
