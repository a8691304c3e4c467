"""Receives feedback of providers: finds the provider, verifies and parses the request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from pillarbox.errors import Forged, NoAnswer, NotFound
from pillarbox.model.provider_kinds import kind_of
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics
from pillarbox.track.feedback.base import Feedback, FeedbackEvent, SignedRequest
from pillarbox.track.feedback_ingest import FeedbackIngest, FeedbackSource, Redact

if TYPE_CHECKING:
    from pillarbox.model.provider import Provider

log = logs.get("pillarbox.feedback")
# Seconds for which the list of providers is cached: a new provider is known soon enough.
CACHED_FOR = 2.0
# Bytes of a body that is parsed in a thread.
LARGE = 256 * 1024

Load = Callable[[], Awaitable[Sequence["Provider"]]]
Build = Callable[["Provider"], Feedback]


class UnreadableFeedback(Exception):
    """A verified request that cannot be parsed."""


class FeedbackReceiver:
    """Receives feedback for all providers that send it."""

    def __init__(
        self,
        load: Load,
        build: Build,
        redactor_for: Callable[[Provider], Redact],
        ingest: FeedbackIngest,
        metrics: Metrics,
    ) -> None:
        self._load = load
        self._build = build
        self._redactor_for = redactor_for
        self._ingest = ingest
        self._metrics = metrics
        self._known: dict[int, tuple[Provider, Feedback, Redact]] = {}
        self._loaded_at = -CACHED_FOR
        self._loading = asyncio.Lock()

    async def take(self, kind: str, provider_id: int, request: SignedRequest) -> int:
        """Process a request with feedback; returns the number of its events, which are committed.

        NotFound: there is no such provider. Forged: the provider did not sign the request.
        UnreadableFeedback: it cannot be parsed.
        """
        provider, feedback, redact = await self._find(kind, provider_id)
        try:
            token = await feedback.verify(request, time.time())
            if token is not None:
                await self._ingest.use(provider.id, token)
            events = await _parse(feedback, request)
        except (Forged, UnreadableFeedback) as error:
            reason = error.reason if isinstance(error, Forged) else "garbled"
            self._metrics.feedback_refused.labels(provider.name, reason).inc()
            log.warning(
                "feedback was refused", provider=provider.name, reason=reason, error=str(error)
            )
            raise
        await self._answer(provider, feedback, request)
        if events:
            await self._ingest.take(FeedbackSource(provider.name, provider.id), events, redact)
        return len(events)

    async def close(self) -> None:
        for _, feedback, _ in self._known.values():
            await feedback.close()
        self._known.clear()

    async def _answer(self, provider: Provider, feedback: Feedback, request: SignedRequest) -> None:
        try:
            await feedback.answer(request)
        except Forged as error:
            self._metrics.feedback_refused.labels(provider.name, error.reason).inc()
            raise
        except NoAnswer as error:
            log.warning("a topic could not be confirmed", provider=provider.name, error=str(error))
            raise

    async def _find(self, kind: str, provider_id: int) -> tuple[Provider, Feedback, Redact]:
        async with self._loading:
            if time.monotonic() - self._loaded_at > CACHED_FOR:
                await self._reload()
        known = self._known.get(provider_id)
        if known is None or known[0].kind != kind:
            raise NotFound("there is no such provider")
        return known

    async def _reload(self) -> None:
        """Load the providers; unchanged ones keep their Feedback with its state."""
        found = {provider.id: provider for provider in await self._load()}
        self._loaded_at = time.monotonic()
        for provider_id, (old, feedback, _) in list(self._known.items()):
            if found.get(provider_id) != old:
                del self._known[provider_id]
                await feedback.close()
        for provider in found.values():
            if provider.id not in self._known and kind_of(provider.kind).feedback:
                self._known[provider.id] = (
                    provider,
                    self._build(provider),
                    self._redactor_for(provider),
                )


async def _parse(feedback: Feedback, request: SignedRequest) -> Sequence[FeedbackEvent]:
    if len(request.body) > LARGE:
        return await asyncio.to_thread(_parse_now, feedback, request)
    return _parse_now(feedback, request)


def _parse_now(feedback: Feedback, request: SignedRequest) -> Sequence[FeedbackEvent]:
    try:
        return feedback.parse(request)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UnreadableFeedback(f"the feedback cannot be read: {type(error).__name__}") from None
