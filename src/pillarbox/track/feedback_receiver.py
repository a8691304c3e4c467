"""Where providers' feedback arrives: which provider it is, whether it is true, and what it says."""

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
# Seconds that providers are known without looking again: soon enough for a person who has just
# added one.
KNOWN_FOR = 2.0
# Octets of a body that is parsed beside the loop.
LARGE = 256 * 1024

Load = Callable[[], Awaitable[Sequence["Provider"]]]
Build = Callable[["Provider"], Feedback]


class UnreadableFeedback(Exception):
    """A true request that says nothing we understand."""


class FeedbackReceiver:
    """Knows the providers, each with whoever understands its feedback."""

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
        self._looked_at = -KNOWN_FOR
        self._looking = asyncio.Lock()

    async def take(self, kind: str, provider_id: int, posted: SignedRequest) -> int:
        """Take a request with feedback in; returns how much it says.

        NotFound: there is no such provider. Forged: it is not the provider's. Garbled: nobody
        understands it. When this returns, what it said is committed.
        """
        provider, feedback, redact = await self._find(kind, provider_id)
        try:
            once = await feedback.verify(posted, time.time())
            if once is not None:
                await self._ingest.use(provider.id, once)
            large = len(posted.body) > LARGE
            heard = (
                await asyncio.to_thread(_parsed, feedback, posted)
                if large
                else _parsed(feedback, posted)
            )
        except (Forged, UnreadableFeedback) as error:
            reason = error.reason if isinstance(error, Forged) else "garbled"
            self._metrics.feedback_refused.labels(provider.name, reason).inc()
            log.warning(
                "feedback was refused", provider=provider.name, reason=reason, error=str(error)
            )
            raise
        await self._answer(provider, feedback, posted)
        if heard:
            await self._ingest.take(FeedbackSource(provider.name, provider.id), heard, redact)
        return len(heard)

    async def close(self) -> None:
        for _, feedback, _ in self._known.values():
            await feedback.close()
        self._known.clear()

    async def _answer(self, provider: Provider, feedback: Feedback, posted: SignedRequest) -> None:
        try:
            await feedback.answer(posted)
        except Forged as error:
            self._metrics.feedback_refused.labels(provider.name, error.reason).inc()
            raise
        except NoAnswer as error:
            log.warning("a topic could not be confirmed", provider=provider.name, error=str(error))
            raise

    async def _find(self, kind: str, provider_id: int) -> tuple[Provider, Feedback, Redact]:
        async with self._looking:
            if time.monotonic() - self._looked_at > KNOWN_FOR:
                await self._look()
        known = self._known.get(provider_id)
        if known is None or known[0].kind != kind:
            raise NotFound("there is no such provider")
        return known

    async def _look(self) -> None:
        """Learn of new and changed providers; what did not change keeps what it has learned."""
        found = {one.id: one for one in await self._load()}
        self._looked_at = time.monotonic()
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


def _parsed(feedback: Feedback, posted: SignedRequest) -> Sequence[FeedbackEvent]:
    try:
        return feedback.parse(posted)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UnreadableFeedback(f"the feedback cannot be read: {type(error).__name__}") from None
