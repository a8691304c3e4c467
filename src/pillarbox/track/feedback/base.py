"""The Feedback port: what a provider reports about the mails it accepted, as our own events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from pillarbox.model.outcome import Reason


class FeedbackKind(StrEnum):
    """The first three are states of a delivery; `dropped` makes it bounced; the rest are events."""

    DELIVERED = "delivered"  # the recipient's server accepted it
    BOUNCED = "bounced"  # it will not arrive: that server refused it
    COMPLAINED = "complained"  # the recipient called it spam
    DROPPED = "dropped"  # it will not arrive: the provider did not even try
    ACCEPTED = "accepted"  # the provider has it
    DEFERRED = "deferred"  # the provider keeps trying
    OPENED = "opened"
    CLICKED = "clicked"
    UNSUBSCRIBED = "unsubscribed"


class SignedRequest(NamedTuple):
    """A request as received: header names in lower case, and the unchanged bytes of the body."""

    headers: Mapping[str, str]
    body: bytes


class ReplayToken(NamedTuple):
    """A nonce that is valid with one body only, until its timestamp is refused anyway."""

    token: str
    digest: bytes
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class FeedbackEvent:
    """One reported event, not redacted yet."""

    kind: FeedbackKind
    event_id: str  # the provider's own: a repeated event has the same
    at: datetime
    message_id: UUID | None  # Pillarbox's
    n: int | None = None  # the number of the delivery within its message
    recipient: str | None = None
    provider_message_id: str | None = None
    # Only the mail itself names the message: the provider's message id must match, too.
    doubtful: bool = False
    hard: bool = False  # the address must be suppressed
    reason: Reason | None = None
    text: str | None = None  # in the provider's words
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Feedback(Protocol):
    """Verifies and reads the feedback of one provider."""

    async def verify(self, request: SignedRequest, now: float) -> ReplayToken | None:
        """Raise Forged unless the provider made this request recently.

        The caller must use up the token that it returns.
        """
        ...

    def parse(self, request: SignedRequest) -> Sequence[FeedbackEvent]:
        """The events of a verified request; ValueError if it is not understood."""
        ...

    async def answer(self, request: SignedRequest) -> None:
        """Do what a verified request asks for, such as confirming a topic; NoAnswer if it fails."""
        ...

    async def close(self) -> None: ...
