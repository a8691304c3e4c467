"""Takes feedback in: redacted, found to be about a delivery, and counted; many requests in one statement."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import idna

from pillarbox.batching import REQUEUE, Batcher, Results
from pillarbox.errors import Forged, StoreError
from pillarbox.model.address import MAX_ADDRESS_BYTES, ascii_address
from pillarbox.store import feedback as store
from pillarbox.store.database import Database
from pillarbox.store.feedback import FeedbackMatch, FeedbackRow, ReplayTokenRow
from pillarbox.telemetry.metrics import Metrics
from pillarbox.track import bounce_reports
from pillarbox.track.feedback.base import FeedbackEvent, ReplayToken
from pillarbox.track.feedback_redaction import redact_text, redacted

# Pieces in one statement: it stays well under a tenth of a second, and nobody waits for its locks
# longer.
MOST = 500
# Statements at the same time; a second one only when the first has met a lock.
AT_ONCE = 2
# Pieces that are redacted in passing; more are some tens of milliseconds' work, done beside the
# loop.
FEW = 20
# Tries of a statement that PostgreSQL gave up because of another.
TRIES = 3
# SQLSTATE class of statements that PostgreSQL rolled back for its own reasons (deadlock,
# serialization failure).
ROLLED_BACK = "40"

Redact = Callable[[str], str]


class FeedbackSource(NamedTuple):
    """Who told it: a provider, or somebody who handed a report in, perhaps of one tenant only."""

    name: str
    provider_id: int = store.NO_PROVIDER
    tenant_id: int | None = None


REPORT = FeedbackSource("report")


class FeedbackIngest:
    """One for each process. When a call returns, what it was given is committed."""

    def __init__(
        self, database: Database, metrics: Metrics, redact: Redact, lasts: float | None = None
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._redact = redact
        self._lasts = None if lasts is None else timedelta(seconds=lasts)
        self._events = Batcher(self._hear, max_weight=MOST, weigh=len, max_concurrency=AT_ONCE)
        self._tokens = Batcher(self._use)

    async def take(
        self, source: FeedbackSource, heard: Sequence[FeedbackEvent], redact: Redact | None = None
    ) -> list[FeedbackMatch | None]:
        """Let feedback count; says of each piece what it is about, None if that is nothing of ours."""
        make = partial(_rows, source, heard, redact or self._redact)
        rows = make() if len(heard) <= FEW else await asyncio.to_thread(make)
        parts = [rows[start : start + MOST] for start in range(0, len(rows), MOST)]
        found: list[FeedbackMatch | None] = []
        for answer in await self._events.submit_many(parts):
            if isinstance(answer, Exception):
                raise answer
            found += answer
        self._count(source, heard, found)
        return found

    async def use(self, provider_id: int, once: ReplayToken) -> None:
        """Use a token up; Forged if it came with another body before."""
        token = ReplayTokenRow(provider_id, once.token, once.digest, once.expires_at)
        if await self._tokens.submit(token) != once.digest:
            raise Forged("replayed", "the token was used before, with another body")

    async def take_report(
        self, mail: bytes, return_path_key: bytes, tenant_id: int | None = None
    ) -> list[tuple[FeedbackEvent, FeedbackMatch | None]]:
        """Process a bounce mail or a complaint, for one tenant or for all; NotAReport if it is neither."""
        now = datetime.now(UTC)
        events = await asyncio.to_thread(bounce_reports.parse, mail, return_path_key, now)
        matches = await self.take(REPORT._replace(tenant_id=tenant_id), events)
        return list(zip(events, matches, strict=True))

    async def catch_up(self) -> int:
        """Let feedback count that came while its mail was being handed over; returns how much."""
        done = 0
        while count := await store.catch_up(self._database, MOST, self._lasts):
            done += count
        return done

    async def _hear(self, batch: list[list[FeedbackRow]]) -> Results[list[FeedbackMatch | None]]:
        rows = [row for part in batch for row in part]
        found = iter(await self._insist(rows))
        return [[next(found) for _ in part] for part in batch]

    async def _insist(self, rows: Sequence[FeedbackRow]) -> list[FeedbackMatch | None]:
        for left in range(TRIES, 0, -1):
            try:
                return await store.hear(self._database, rows, self._lasts)
            except StoreError as error:
                if left == 1 or not (error.sqlstate or "").startswith(ROLLED_BACK):
                    raise
        raise AssertionError

    async def _use(self, tokens: list[ReplayTokenRow]) -> Results[bytes]:
        digests = await store.use_tokens(self._database, tokens)
        return [REQUEUE if digest is None else digest for digest in digests]

    def _count(
        self,
        source: FeedbackSource,
        heard: Sequence[FeedbackEvent],
        found: Sequence[FeedbackMatch | None],
    ) -> None:
        for one, about in zip(heard, found, strict=True):
            if about is None:
                self._metrics.feedback_unmatched.inc()
            elif about.is_new:
                self._metrics.feedback.labels(source.name, one.kind.value).inc()


def _rows(
    source: FeedbackSource, heard: Sequence[FeedbackEvent], redact: Redact
) -> list[FeedbackRow]:
    return [row_of(source, one, redact) for one in heard]


def row_of(source: FeedbackSource, heard: FeedbackEvent, redact: Redact) -> FeedbackRow:
    """One piece as it is stored."""
    recipient, other = spellings(heard.recipient)
    return FeedbackRow(
        source.provider_id,
        heard.event_id.replace("\0", ""),
        source.tenant_id,
        heard.message_id,
        heard.n,
        recipient,
        other,
        heard.kind.value,
        heard.at,
        heard.hard,
        heard.reason and heard.reason.value,
        json.dumps(data_of(source, heard, redact)),
        json.dumps(redacted(heard.raw, redact)) if heard.raw else None,
        (heard.provider_message_id or "") if heard.doubtful else None,
    )


def data_of(source: FeedbackSource, heard: FeedbackEvent, redact: Redact) -> dict[str, Any]:
    """What the event tells."""
    told = {
        "provider": source.name if source.provider_id else None,
        "reason": heard.reason and heard.reason.value,
        "hard": heard.hard or None,
        "text": redact_text(heard.text, redact) if heard.text else None,
    }
    return {name: value for name, value in told.items() if value is not None}


def spellings(recipient: object) -> tuple[str | None, str | None]:
    """An address in lower case with its domain in A-labels, and in letters; nothing if it can be no address."""
    if not isinstance(recipient, str) or "@" not in recipient or len(recipient) > MAX_ADDRESS_BYTES:
        return None, None
    address = (
        recipient.strip().strip("<>").replace("\0", "").encode("utf-8", "replace").decode().lower()
    )
    local, _, domain = address.rpartition("@")
    if domain.isascii() and "xn--" not in domain:
        return address, None
    try:
        return ascii_address(address), f"{local}@{idna.decode(domain)}"
    except idna.IDNAError:
        return address, None
