"""The Feedback port: what a provider tells us of the mails it took, in our own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from pillarbox.model.outcome import Reason


class FeedbackKind(StrEnum):
    """What was heard. The first three are states of a delivery; `dropped` makes it bounced; the rest are events."""

    DELIVERED = "delivered"  # the recipient's server took it
    BOUNCED = "bounced"  # it will not arrive: that server refused it
    COMPLAINED = "complained"  # the recipient called it spam
    DROPPED = "dropped"  # it will not arrive: the provider did not even try
    ACCEPTED = "accepted"  # the provider has it
    DEFERRED = "deferred"  # the provider keeps trying
    OPENED = "opened"
    CLICKED = "clicked"
    UNSUBSCRIBED = "unsubscribed"


class SignedRequest(NamedTuple):
    """A request as it came: names of headers in lower case, and the very bytes of the body."""

    headers: Mapping[str, str]
    body: bytes


class ReplayToken(NamedTuple):
    """A token that may come with one body only, and when its time stamp will be refused."""

    token: str
    digest: bytes
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class FeedbackEvent:
    """One thing that was heard. Nothing of it was redacted yet."""

    kind: FeedbackKind
    event_id: str  # the provider's own: the same thing heard again has the same
    at: datetime
    message_id: UUID | None  # ours
    n: int | None = None
    recipient: str | None = None
    provider_message_id: str | None = None
    doubtful: bool = (
        False  # only the mail itself says which message it is: the provider's id of it must agree
    )
    hard: bool = False  # the address shall not be written to again
    reason: Reason | None = None
    text: str | None = None  # in the provider's words
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Feedback(Protocol):
    """Understands the feedback of one provider."""

    async def verify(self, posted: SignedRequest, now: float) -> ReplayToken | None:
        """Raise Forged unless the provider made this request, and lately; what it returns must be used up."""
        ...

    def parse(self, posted: SignedRequest) -> Sequence[FeedbackEvent]:
        """What a verified request says; ValueError if that is nothing we understand."""
        ...

    async def answer(self, posted: SignedRequest) -> None:
        """Do what a verified request asks for besides, such as confirming a topic; NoAnswer if that fails."""
        ...

    async def close(self) -> None: ...
