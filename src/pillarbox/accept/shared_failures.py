"""Failed logins of all processes, counted in PostgreSQL when a login fails.

Successful logins read and write nothing. While the database is unavailable each process counts its
own failures.
"""

from __future__ import annotations

import hmac
import time
from collections import Counter
from collections.abc import Callable, Sequence

from pillarbox.batching import Batcher
from pillarbox.errors import StoreError
from pillarbox.model.throttle import WINDOW
from pillarbox.store import auth_failures
from pillarbox.store.auth_failures import FailureCount
from pillarbox.store.database import Database
from pillarbox.telemetry import logs

log = logs.get("pillarbox.access")
_PURPOSE = b"pillarbox auth failures 1"
# 128 bits: no two keys meet by chance.
_KEY_BYTES = 16
# Rows per statement that deletes old rows: well under a second.
PURGE_BATCH = 10_000

FailureKey = tuple[str, ...]


class SharedFailures:
    """Counts failures for all processes; concurrent callers share a statement."""

    def __init__(
        self, database: Database, key: bytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._key = hmac.digest(key, _PURPOSE, "sha256")
        self._clock = clock
        self._purged = clock()
        self._batcher: Batcher[tuple[bytes, ...], tuple[FailureCount, ...]] = Batcher(self._add)

    async def add(self, *keys: FailureKey) -> Sequence[FailureCount]:
        """Count a failure of each key; returns the counts of all processes, if available."""
        try:
            return await self._batcher.submit(tuple(map(self._hashed, keys)))
        except StoreError as error:
            log.warning("failed logins are counted by this process only, for now", error=str(error))
            return ()

    async def _add(self, requests: list[tuple[bytes, ...]]) -> Sequence[tuple[FailureCount, ...]]:
        counted = await auth_failures.add(
            self._database, Counter(key for keys in requests for key in keys)
        )
        await self._purge()
        return [tuple(counted[key] for key in keys) for keys in requests]

    async def _purge(self) -> None:
        """Once a minute delete old rows: guesses from many addresses must not fill the table."""
        now = self._clock()
        if now - self._purged >= WINDOW:
            self._purged = now
            await auth_failures.purge(self._database, PURGE_BATCH)

    def _hashed(self, key: FailureKey) -> bytes:
        """A key as it is stored: addresses and names never in clear."""
        text = "\0".join(key).encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, text, "sha256")[:_KEY_BYTES]
