"""The Transport port: how a composed mail leaves through one provider."""

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
    n: int  # the delivery's number within its message
    address: str


def _always() -> bool:
    return True


@dataclass(slots=True)
class OutgoingMail:
    """One message on its way through one provider: the envelope, the bytes, and the right to begin.

    `content` is a whole RFC 5322 message with CRLF line ends, not dot-stuffed; empty for a transport whose limits
    say that it takes parts: it finds them in `message` and `parts`. A transport asks `may_begin` immediately before
    it hands over the first byte that could make the provider accept the mail.
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
    """How a mail fared: one outcome per recipient, in the mail's order.

    `transcript` is kept for every attempt that was not plainly accepted. Times are the event loop's.
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
    """What transports are built with, beside the settings of their provider."""

    provider_id: int
    http_client: Callable[[], HttpClient]  # the one client of the process
    keep: Callable[[OutgoingMail], Awaitable[int]]  # stores a mail instead of sending it


class Transport(Protocol):
    """Sends mails through one provider. Safe to call concurrently; it does its own pooling.

    `send` never raises for anything the provider does: it reports. It raises NotStarted when the mail was
    given back before any of it could be accepted (shutting down, or `may_begin` said no). When cancelled, it
    raises CancelledError; what was in flight then is unknown to the caller.
    """

    @property
    def limits(self) -> TransportLimits: ...

    @property
    def connections(self) -> int:
        """How many mails it sends at the same time at most."""
        ...

    @property
    def connections_open(self) -> int:
        """How many connections to the provider are open, for the metrics."""
        ...

    @property
    def connections_busy(self) -> int:
        """How many of them carry a mail now."""
        ...

    async def send(self, outgoing: OutgoingMail) -> SendResult: ...

    def recall(self) -> None:
        """Give back, with NotStarted, every mail that waits and of which nothing was sent yet."""
        ...

    async def check(self) -> str:
        """Prove that the provider can be reached and logged in to; returns a line for people, or raises."""
        ...

    async def close(self) -> None:
        """Finish what is in flight, say goodbye, free everything."""
        ...
