"""The providers at hand, each with its channel, the rules that choose among them, and the classes of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pillarbox.deliver.provider_channel import AskQuota, ProviderChannel
from pillarbox.deliver.transports.base import Transport
from pillarbox.errors import PillarboxError
from pillarbox.model.address import address_of
from pillarbox.model.delivery import MessageClass
from pillarbox.model.fairness import LaneId
from pillarbox.model.message import Message
from pillarbox.model.provider import Provider
from pillarbox.model.provider_kinds import kind_of
from pillarbox.model.retry import QUADRATIC, RetryPolicy
from pillarbox.model.routing import RoutingRule
from pillarbox.route import provider_shares
from pillarbox.route.router import Router
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs

log = logs.get("pillarbox.roster")
# Time for a polite QUIT; servers that do not answer it are left.
CLOSE_TIMEOUT = 2.0
DEFAULT_CLASS = MessageClass("transactional")


@dataclass(slots=True)
class ProviderConfig:
    """What stands in the database about providers."""

    providers: Sequence[Provider]
    classes: dict[str, MessageClass] = field(default_factory=dict)
    rules: Sequence[RoutingRule] = ()
    captures: bool = False  # mails without a rule may be captured


class ProviderPool:
    """Reads the book; builds a channel for each provider and replaces it when its settings change."""

    def __init__(
        self,
        load: Callable[[], Awaitable[ProviderConfig]],
        build: Callable[[Provider], Transport],
        redactor_for: Callable[[Provider], Callable[[str], str]],
        *,
        allow: Callable[[int, int, int], Awaitable[tuple[float, str | None]]] | None = None,
        return_path: Callable[[Message], str] | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._load = load
        self._build = build
        self._redactor_for = redactor_for
        self._allow = allow
        self._return_path = return_path
        self._supervisor = supervisor
        self._channels: dict[int, ProviderChannel] = {}
        self._classes: dict[str, MessageClass] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.read = False  # whether the book was read at all
        self.router = Router((), ())
        self.known: frozenset[int] = frozenset()  # all that were not removed, switched off or not
        self.free: Callable[[], int] | None = (
            None  # how many places the worker has free; None: any number
        )
        self._fed: dict[LaneId, int] = {}  # by lane: the provider of its last mail
        self.opened: Callable[[ProviderChannel], None] = lambda channel: (
            None
        )  # told of every new channel
        self.failed_over: Callable[[ProviderChannel, ProviderChannel, str], None] = (
            lambda before, after, reason: None
        )

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
        """A provider's retry policy; without one, that of the most preferred."""
        if channel is None and self.router.default.providers:
            channel = self._channels.get(self.router.default.providers[0])
        return channel.policy if channel else QUADRATIC

    def sender_of(self, channel: ProviderChannel, message: Message) -> str:
        """The envelope sender: a signed return path where bounces come back by mail, else the sender's own."""
        if (
            self._return_path is not None
            and kind_of(channel.provider.kind).signs_return_path
            and "@" in message.sender
        ):
            return self._return_path(message)
        return address_of(message.sender)

    def redact(self, channel: ProviderChannel | None, text: str) -> str:
        """A text of a provider's, or of our own about a mail, as it may be kept."""
        known = channel or next(iter(self._channels.values()), None)
        return known.redact(text) if known else ""

    # -- how much, and when

    @property
    def usable(self) -> bool:
        """Whether anything can leave now."""
        return any(channel.unusable_for() is None for channel in self._channels.values())

    def usable_in(self) -> float | None:
        """Seconds until some provider may be usable again; None when one is, or none is there."""
        waits = [channel.unusable_for() for channel in self._channels.values()]
        return (
            None
            if None in waits
            else min((wait for wait in waits if wait is not None), default=None)
        )

    def feed(self, lane: LaneId, provider_id: int) -> None:
        """Note to which provider a mail of a lane goes: the next ones most likely go there, too."""
        if len(self._channels) > 1:
            self._fed[lane] = provider_id

    def barred(self) -> set[LaneId]:
        """Lanes not to claim from: they feed a provider that has enough, and others need the places."""
        full = {channel.provider.id for channel in self._with_enough()}
        if not full:
            return set()
        return {lane for lane, provider_id in self._fed.items() if provider_id in full}

    def _with_enough(self) -> list[ProviderChannel]:
        """Those of several providers that should get no more for now."""
        if self.free is None or len(self._channels) < 2:
            return []
        free = self.free()
        return [
            channel
            for channel in self._channels.values()
            if provider_shares.has_enough(free, channel.held)
        ]

    def stuck(self) -> int:
        """Places held by providers that should get no more: not to be counted on for now."""
        return sum(channel.held for channel in self._with_enough())

    def room(self, most: int) -> int:
        """How many mails are worth claiming, whichever provider they go to; fewer if all are near their limits."""
        channels = self._channels.values()
        if self.free is not None and len(channels) > 1:
            free, full = self.free(), self._with_enough()
            rooms = [
                provider_shares.headroom(free, channel.held)
                for channel in channels
                if channel not in full
            ]
            most = min(most, min(rooms, default=0))
        limits = [channel.claimable() for channel in channels]
        known = [limit for limit in limits if limit is not None]
        return most if len(known) < len(limits) or not limits else min(most, sum(known))

    def has_room(self, channel: ProviderChannel) -> bool:
        """Whether a claimed mail may go to this provider, or others need the place it would take."""
        if self.free is None or len(self._channels) < 2:
            return True
        return (
            provider_shares.headroom(self.free() + 1, channel.held) > 0
        )  # its own place is free, if it goes nowhere

    def least_room(self, most: int) -> int:
        """How many more mails the provider that has least room may get."""
        if len(self._channels) < 2:
            return most
        return min(
            [
                most,
                *(
                    provider_shares.headroom(most, channel.held)
                    for channel in self._channels.values()
                ),
            ]
        )

    # -- keeping in step

    async def refresh(self) -> None:
        """Read providers, rules and classes; open what is new, close what is gone or changed."""
        book = await self._load()
        self._classes = book.classes
        self.known = frozenset(provider.id for provider in book.providers)
        before, self._channels = self._channels, {}
        enabled = [provider for provider in book.providers if provider.enabled]
        for provider in enabled:
            try:
                self._channels[provider.id] = self._channel(provider, before.get(provider.id))
            except (
                PillarboxError
            ) as error:  # such as a kind that only a newer version knows: the others go on
                log.error("a provider cannot be used", provider=provider.name, error=str(error))
        self.router = Router(book.rules, enabled, captures=book.captures)
        self._fed = {lane: fed for lane, fed in self._fed.items() if fed in self._channels}
        if not self._channels and (before or not self.read):
            log.warning("no provider is enabled; mails wait. Add one with `pillarbox provider add`")
        self.read = True
        for number, channel in before.items():
            if self._channels.get(number) is not channel:
                task = asyncio.ensure_future(channel.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
                if self._supervisor:
                    self._supervisor.watch("close provider", task)

    def _channel(self, provider: Provider, old: ProviderChannel | None) -> ProviderChannel:
        if old and old.provider == provider:
            old.reset(provider)
            return old
        log.info("provider ready", provider=provider.name, kind=provider.kind)
        allow: AskQuota | None = partial(self._allow, provider.id) if self._allow else None
        channel = ProviderChannel(
            provider, self._build(provider), self._redactor_for(provider), allow
        )
        self.opened(channel)
        return channel

    async def close(self) -> None:
        """Close every transport; what does not end in time is cut off. Nothing is in flight any more."""
        channels, self._channels = self._channels, {}
        closing = [asyncio.ensure_future(channel.close()) for channel in channels.values()] + list(
            self._closing
        )
        if closing:
            _, late = await asyncio.wait(closing, timeout=CLOSE_TIMEOUT)
            for task in late:
                task.cancel()
            await asyncio.gather(*closing, return_exceptions=True)
