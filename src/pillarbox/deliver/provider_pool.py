"""The pool of providers: their channels, the routing rules and the message classes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pillarbox.deliver.claim_capacity import ClaimCapacity
from pillarbox.deliver.provider_channel import AskQuota, ProviderChannel
from pillarbox.deliver.transports.base import Transport
from pillarbox.errors import PillarboxError
from pillarbox.model.address import address_of
from pillarbox.model.delivery import MessageClass
from pillarbox.model.message import Message
from pillarbox.model.provider import Provider
from pillarbox.model.provider_kinds import kind_of
from pillarbox.model.retry import QUADRATIC, RetryPolicy
from pillarbox.model.routing import RoutingRule
from pillarbox.route.router import Router
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs

log = logs.get("pillarbox.providers")
# Time for QUIT; connections to servers that do not answer it are dropped.
CLOSE_TIMEOUT = 2.0
DEFAULT_CLASS = MessageClass("transactional")


@dataclass(slots=True)
class ProviderConfig:
    """What the database says about providers."""

    providers: Sequence[Provider]
    classes: dict[str, MessageClass] = field(default_factory=dict)
    rules: Sequence[RoutingRule] = ()
    captures: bool = False  # mails without a rule may be captured


def _ignore_channel(channel: ProviderChannel) -> None:
    pass


def _ignore_failover(before: ProviderChannel, after: ProviderChannel, reason: str) -> None:
    pass


class ProviderPool:
    """Has a channel for each enabled provider, and replaces it when its settings change."""

    def __init__(
        self,
        load: Callable[[], Awaitable[ProviderConfig]],
        build: Callable[[Provider], Transport],
        redactor_for: Callable[[Provider], Callable[[str], str]],
        *,
        ask_quota: Callable[[int, int, int], Awaitable[tuple[float, str | None]]] | None = None,
        return_path: Callable[[Message], str] | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._load = load
        self._build = build
        self._redactor_for = redactor_for
        self._ask_quota = ask_quota
        self._return_path = return_path
        self._supervisor = supervisor
        self._channels: dict[int, ProviderChannel] = {}
        self._classes: dict[str, MessageClass] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.capacity = ClaimCapacity()
        self.loaded = False  # whether the configuration was read at all
        self.router = Router((), ())
        self.known: frozenset[int] = frozenset()  # providers that exist, enabled or not
        self.opened: Callable[[ProviderChannel], None] = _ignore_channel
        self.failed_over: Callable[[ProviderChannel, ProviderChannel, str], None] = _ignore_failover

    def __len__(self) -> int:
        """How many providers are enabled."""
        return len(self._channels)

    @property
    def channels(self) -> Sequence[ProviderChannel]:
        """The enabled providers, in the order in which they were added."""
        return list(self._channels.values())

    def channel(self, provider_id: int) -> ProviderChannel | None:
        return self._channels.get(provider_id)

    def class_of(self, name: str) -> MessageClass:
        return self._classes.get(name, DEFAULT_CLASS)

    def policy_of(self, channel: ProviderChannel | None) -> RetryPolicy:
        """The retry policy of a provider; without one, of the first in the default order."""
        if channel is None and self.router.default.providers:
            channel = self._channels.get(self.router.default.providers[0])
        return channel.policy if channel else QUADRATIC

    def sender_of(self, channel: ProviderChannel, message: Message) -> str:
        """The envelope sender: a signed return path where bounces come back by mail."""
        if self._return_path is None or "@" not in message.sender:
            return address_of(message.sender)
        if kind_of(channel.provider.kind).signs_return_path:
            return self._return_path(message)
        return address_of(message.sender)

    def redact(self, channel: ProviderChannel | None, text: str) -> str:
        """Redact a text from a provider, or an own text about a mail."""
        channel = channel or next(iter(self._channels.values()), None)
        return channel.redact(text) if channel else ""

    @property
    def usable(self) -> bool:
        """Whether some provider can be used now."""
        return any(channel.unusable_for() is None for channel in self._channels.values())

    def usable_in(self) -> float | None:
        """Seconds until a provider may be usable again; None if one is, or none is enabled."""
        seconds: list[float] = []
        for channel in self._channels.values():
            unusable_for = channel.unusable_for()
            if unusable_for is None:
                return None
            seconds.append(unusable_for)
        return min(seconds, default=None)

    # -- configuration

    async def refresh(self) -> None:
        """Read providers, rules and classes; open new channels, close old ones."""
        config = await self._load()
        self._classes = config.classes
        self.known = frozenset(provider.id for provider in config.providers)
        before, self._channels = self._channels, {}
        enabled = [provider for provider in config.providers if provider.enabled]
        for provider in enabled:
            try:
                self._channels[provider.id] = self._open(provider, before.get(provider.id))
            except PillarboxError as error:  # such as a kind that only a newer version knows
                log.error("a provider cannot be used", provider=provider.name, error=str(error))
        self.router = Router(config.rules, enabled, captures=config.captures)
        self.capacity.replace(self._channels)
        if not self._channels and (before or not self.loaded):
            log.warning("no provider is enabled; mails wait. Add one with `pillarbox provider add`")
        self.loaded = True
        for provider_id, channel in before.items():
            if self._channels.get(provider_id) is not channel:
                self._close_later(channel)

    def _open(self, provider: Provider, old: ProviderChannel | None) -> ProviderChannel:
        if old and old.provider == provider:
            old.reset(provider)
            return old
        log.info("provider ready", provider=provider.name, kind=provider.kind)
        ask_quota: AskQuota | None = None
        if self._ask_quota is not None:
            ask_quota = partial(self._ask_quota, provider.id)
        redact = self._redactor_for(provider)
        channel = ProviderChannel(provider, self._build(provider), redact, ask_quota)
        self.opened(channel)
        return channel

    def _close_later(self, channel: ProviderChannel) -> None:
        task = asyncio.ensure_future(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        if self._supervisor:
            self._supervisor.watch("close provider", task)

    async def close(self) -> None:
        """Close every transport, and cancel what does not end in time. Nothing is in flight."""
        channels, self._channels = self._channels, {}
        closing = [asyncio.ensure_future(channel.close()) for channel in channels.values()]
        closing += self._closing
        if closing:
            _, late = await asyncio.wait(closing, timeout=CLOSE_TIMEOUT)
            for task in late:
                task.cancel()
            await asyncio.gather(*closing, return_exceptions=True)
