"""The providers at hand, each with its transport, kept in step with the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from pillarbox.deliver.transports.base import Transport
from pillarbox.model.delivery import MessageClass
from pillarbox.model.provider import Provider
from pillarbox.model.retry import ESP, POLICIES, QUADRATIC, RetryPolicy
from pillarbox.telemetry import logs

log = logs.get("pillarbox.roster")
# SMTP servers grey-list for minutes and come back for hours; HTTP providers recover in seconds.
POLICY_BY_KIND: Mapping[str, RetryPolicy] = {"smtp": QUADRATIC, "capture": QUADRATIC}
# Time for a polite QUIT; servers that do not answer it are left.
CLOSE_TIMEOUT = 2.0
DEFAULT_CLASS = MessageClass("transactional")


@dataclass(slots=True)
class Line:
    """One provider ready to send."""

    provider: Provider
    transport: Transport
    redact: Callable[[str], str]

    @property
    def policy(self) -> RetryPolicy:
        named = POLICIES.get(self.provider.retry or "")
        return named or POLICY_BY_KIND.get(self.provider.kind, ESP)


class Roster:
    """Loads providers and classes; builds a transport for each provider and replaces it when its settings change."""

    def __init__(
        self,
        load: Callable[[], Awaitable[tuple[list[Provider], dict[str, MessageClass]]]],
        build: Callable[[Provider], Transport],
        redactor_for: Callable[[Provider], Callable[[str], str]],
    ) -> None:
        self._load = load
        self._build = build
        self._redactor_for = redactor_for
        self._lines: list[Line] = []
        self._classes: dict[str, MessageClass] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._read = False

    @property
    def lines(self) -> list[Line]:
        """The enabled providers in order of preference."""
        return self._lines

    def class_of(self, name: str) -> MessageClass:
        return self._classes.get(name, DEFAULT_CLASS)

    async def refresh(self) -> None:
        """Read providers and classes; open what is new, close what is gone or changed."""
        providers, self._classes = await self._load()
        before = {line.provider.id: line for line in self._lines}
        self._lines = [self._line(provider, before) for provider in providers if provider.enabled]
        if not self._lines and (before or not self._read):
            log.warning("no provider is enabled; mails wait. Add one with `pillarbox provider add`")
        self._read = True
        kept = {id(line) for line in self._lines}
        for line in before.values():
            if id(line) not in kept:
                task = asyncio.ensure_future(line.transport.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def _line(self, provider: Provider, before: dict[int, Line]) -> Line:
        old = before.get(provider.id)
        if old and old.provider == provider:
            return old
        log.info("provider ready", provider=provider.name, kind=provider.kind)
        return Line(provider, self._build(provider), self._redactor_for(provider))

    async def close(self) -> None:
        """Close every transport; what does not end in time is cut off. Nothing is in flight any more."""
        lines, self._lines = self._lines, []
        closing = [asyncio.ensure_future(line.transport.close()) for line in lines] + list(self._closing)
        if closing:
            _, late = await asyncio.wait(closing, timeout=CLOSE_TIMEOUT)
            for task in late:
                task.cancel()
            await asyncio.gather(*closing, return_exceptions=True)
