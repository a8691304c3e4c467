"""Ingests feedback: redacts it, stores it, and applies it to deliveries, many requests at a time.

The rules (which feedback moves a delivery to which state, whom it suppresses, what customers are
notified of) are in store/schema/feedback.sql, since they run in one statement with the locked rows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
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

# Events in one statement: it takes well under a tenth of a second, and so do its locks.
MAX_EVENTS = 500
# Concurrent statements: a second one only while the first waits for a lock.
MAX_CONCURRENCY = 2
# Events that are redacted in the event loop; more take tens of milliseconds and use a thread.
MAX_IN_LOOP = 20
# Tries of a statement that PostgreSQL rolled back because of another one.
TRIES = 3
# SQLSTATE class of transaction rollbacks (deadlock, serialization failure).
ROLLED_BACK = "40"

Redact = Callable[[str], str]


class FeedbackSource(NamedTuple):
    """The source of feedback: a provider, or a submitted report, perhaps for one tenant only."""

    name: str
    provider_id: int = store.NO_PROVIDER
    tenant_id: int | None = None


REPORT = FeedbackSource("report")


class FeedbackIngest:
    """Ingests the feedback of one process. When a call returns, its events are committed."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        redact: Redact,
        suppress_for: float | None = None,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._redact = redact
        self._suppress_for = None
        if suppress_for is not None:
            self._suppress_for = timedelta(seconds=suppress_for)
        self._events = Batcher(
            self._apply, max_weight=MAX_EVENTS, weigh=len, max_concurrency=MAX_CONCURRENCY
        )
        self._tokens = Batcher(self._use_tokens)

    async def take(
        self, source: FeedbackSource, events: Sequence[FeedbackEvent], redact: Redact | None = None
    ) -> list[FeedbackMatch | None]:
        """Store and apply events; returns the delivery of each, None if it is unknown."""
        rows = await self._rows(source, events, redact or self._redact)
        parts = [rows[start : start + MAX_EVENTS] for start in range(0, len(rows), MAX_EVENTS)]
        matches: list[FeedbackMatch | None] = []
        for result in await self._events.submit_many(parts):
            if isinstance(result, Exception):
                raise result
            matches += result
        self._count(source, events, matches)
        return matches

    async def _rows(
        self, source: FeedbackSource, events: Sequence[FeedbackEvent], redact: Redact
    ) -> list[FeedbackRow]:
        if len(events) <= MAX_IN_LOOP:
            return _rows(source, events, redact)
        return await asyncio.to_thread(_rows, source, events, redact)

    async def use(self, provider_id: int, token: ReplayToken) -> None:
        """Use a replay token; Forged if it was used with another body."""
        row = ReplayTokenRow(provider_id, token.token, token.digest, token.expires_at)
        if await self._tokens.submit(row) != token.digest:
            raise Forged("replayed", "the token was used before, with another body")

    async def take_report(
        self, mail: bytes, return_path_key: bytes, tenant_id: int | None = None
    ) -> list[tuple[FeedbackEvent, FeedbackMatch | None]]:
        """Ingest a bounce mail or complaint, for one tenant or all; NotAReport if it is neither."""
        now = datetime.now(UTC)
        events = await asyncio.to_thread(bounce_reports.parse, mail, return_path_key, now)
        matches = await self.take(REPORT._replace(tenant_id=tenant_id), events)
        return list(zip(events, matches, strict=True))

    async def catch_up(self) -> int:
        """Apply feedback that arrived before its attempt was settled; returns how much."""
        applied = 0
        while count := await store.catch_up(self._database, MAX_EVENTS, self._suppress_for):
            applied += count
        return applied

    async def _apply(self, batch: list[list[FeedbackRow]]) -> Results[list[FeedbackMatch | None]]:
        rows = [row for part in batch for row in part]
        matches = iter(await self._apply_with_retries(rows))
        return [[next(matches) for _ in part] for part in batch]

    async def _apply_with_retries(self, rows: Sequence[FeedbackRow]) -> list[FeedbackMatch | None]:
        for tries_left in range(TRIES, 0, -1):
            try:
                return await store.apply_feedback(self._database, rows, self._suppress_for)
            except StoreError as error:
                was_rolled_back = (error.sqlstate or "").startswith(ROLLED_BACK)
                if tries_left == 1 or not was_rolled_back:
                    raise
        raise AssertionError

    async def _use_tokens(self, tokens: list[ReplayTokenRow]) -> Results[bytes]:
        digests = await store.use_tokens(self._database, tokens)
        return [REQUEUE if digest is None else digest for digest in digests]

    def _count(
        self,
        source: FeedbackSource,
        events: Sequence[FeedbackEvent],
        matches: Sequence[FeedbackMatch | None],
    ) -> None:
        for event, match in zip(events, matches, strict=True):
            if match is None:
                self._metrics.feedback_unmatched.inc()
            elif match.is_new:
                self._metrics.feedback.labels(source.name, event.kind.value).inc()


def _rows(
    source: FeedbackSource, events: Sequence[FeedbackEvent], redact: Redact
) -> list[FeedbackRow]:
    return [row_of(source, event, redact) for event in events]


def row_of(source: FeedbackSource, event: FeedbackEvent, redact: Redact) -> FeedbackRow:
    """An event as it is stored."""
    recipient, other = spellings(event.recipient)
    reason = event.reason.value if event.reason else None
    raw = json.dumps(redacted(event.raw, redact)) if event.raw else None
    required_id = None
    if event.doubtful:
        required_id = event.provider_message_id or ""
    return FeedbackRow(
        provider_id=source.provider_id,
        event_id=event.event_id.replace("\0", ""),
        tenant_id=source.tenant_id,
        message_id=event.message_id,
        n=event.n,
        recipient=recipient,
        other=other,
        kind=event.kind.value,
        at=event.at,
        hard=event.hard,
        reason=reason,
        data=json.dumps(data_of(source, event, redact)),
        raw=raw,
        provider_message_id=required_id,
    )


def data_of(source: FeedbackSource, event: FeedbackEvent, redact: Redact) -> dict[str, Any]:
    """The data of the stored event."""
    data: dict[str, Any] = {}
    if source.provider_id:
        data["provider"] = source.name
    if event.reason:
        data["reason"] = event.reason.value
    if event.hard:
        data["hard"] = True
    if event.text:
        data["text"] = redact_text(event.text, redact)
    return data


def spellings(recipient: object) -> tuple[str | None, str | None]:
    """An address in lower case, with its domain in A-labels and in Unicode; None if it is none."""
    if not isinstance(recipient, str) or "@" not in recipient or len(recipient) > MAX_ADDRESS_BYTES:
        return None, None
    bare = recipient.strip().strip("<>").replace("\0", "")
    address = bare.encode("utf-8", "replace").decode().lower()
    local, _, domain = address.rpartition("@")
    if domain.isascii() and "xn--" not in domain:
        return address, None
    try:
        return ascii_address(address), f"{local}@{idna.decode(domain)}"
    except idna.IDNAError:
        return address, None
