"""The Transport port: sends composed mails through one provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from pillarbox.model.message import Content, Message
from pillarbox.model.outcome import Outcome, Verdict

if TYPE_CHECKING:
    from pillarbox.deliver.transports.http_client import HttpClient
    from pillarbox.model.provider_kind import TransportLimits


class Recipient(NamedTuple):
    n: int  # the number of the delivery within its message
    address: str


def _always() -> bool:
    return True


@dataclass(slots=True)
class OutgoingMail:
    """A message for one provider: the envelope, the bytes, and the permission to send.

    `content` is a whole RFC 5322 message with CRLF line ends, not dot-stuffed; empty for a
    transport whose limits say that it takes parts, which are `message` and `parts`. A transport
    calls `may_begin` immediately before the first byte that could make the provider accept the
    mail.
    """

    message_id: UUID
    attempt: int
    sender: str
    recipients: Sequence[Recipient]
    content: bytes = field(repr=False)
    may_begin: Callable[[], bool] = _always
    message: Message | None = field(default=None, repr=False)
    parts: Content | None = field(default=None, repr=False)


@dataclass(slots=True)
class SendResult:
    """One outcome per recipient, in the order of the mail's recipients.

    `transcript` is set unless all recipients were accepted. Times are those of the event loop.
    """

    outcomes: Sequence[Outcome]
    started: float
    ended: float
    transcript: str | None = None

    @property
    def plainly_accepted(self) -> bool:
        return all(outcome.verdict is Verdict.ACCEPTED for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class TransportContext:
    """What transports are built with, in addition to the settings of their provider."""

    provider_id: int
    http_client: Callable[[], HttpClient]  # the one client of the process
    keep: Callable[[OutgoingMail], Awaitable[int]]  # stores a mail instead of sending it


class Transport(Protocol):
    """Sends mails through one provider. Safe to call concurrently; it does its own pooling.

    `send` raises nothing for what the provider does: it reports outcomes. It raises NotStarted if
    the mail was given back before any of it could be accepted (the transport is closing, or
    `may_begin` refused). When cancelled, it raises CancelledError; the outcome is then unknown.
    """

    @property
    def limits(self) -> TransportLimits: ...

    @property
    def connections(self) -> int:
        """How many mails it sends at the same time."""
        ...

    @property
    def connections_open(self) -> int:
        """How many connections to the provider are open, for the metrics."""
        ...

    @property
    def connections_busy(self) -> int:
        """How many of them carry a mail."""
        ...

    async def send(self, outgoing: OutgoingMail) -> SendResult: ...

    def recall(self) -> None:
        """Give back, with NotStarted, every mail of which nothing was sent yet."""
        ...

    async def check(self) -> str:
        """Connect and log in, without sending; returns a line for people, or raises NotPossible."""
        ...

    async def close(self) -> None:
        """Wait for the mails in flight, and close all connections."""
        ...
