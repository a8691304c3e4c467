"""Postbote: a made-up kind of provider in one file. A real one has its three parts in three files."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from pillarbox.deliver.transports.base import OutgoingMail, SendResult, TransportContext
from pillarbox.errors import Forged, NotStarted, SettingsError
from pillarbox.model.outcome import accepted
from pillarbox.model.provider import Provider
from pillarbox.model.provider_kind import (
    CONNECTIONS_OPTION,
    ProviderKind,
    SecretOption,
    TransportLimits,
    api_secret,
    option,
)
from pillarbox.model.secret import Secret
from pillarbox.track.feedback.base import FeedbackEvent, FeedbackKind, SignedRequest

# --- its record


@dataclass(frozen=True, slots=True)
class PostboteSettings:
    city: str = field(metadata=option("Where the postman lives.", "CITY"))
    licence: Secret | None = None
    stamp: str | None = field(
        default=None, metadata=option("What feedback is stamped with.", "WORD", is_feedback=True)
    )
    connections: int = field(default=2, metadata=CONNECTIONS_OPTION)

    def __post_init__(self) -> None:
        if not self.city.isalpha():
            raise SettingsError(f"city: {self.city!r} must be the name of a city, such as Bern")


KIND = ProviderKind(
    name="postbote",
    help="Add a postman.",
    settings=PostboteSettings,
    transport="tests.acceptance.postbote:PostboteTransport",
    feedback="tests.acceptance.postbote:PostboteFeedback",
    rank=1,
    secret=api_secret("licence", "licence"),
    webhook_secret=SecretOption(
        "stamping key", "webhook-secret", "From stdin.", "From a variable."
    ),
    limits=TransportLimits(max_bytes=10_000, max_recipients=1),
)

# --- its transport

SENT: list[tuple[PostboteSettings, OutgoingMail]] = []


class PostboteTransport:
    limits = KIND.limits
    connections_open = 0
    connections_busy = 0

    def __init__(self, settings: PostboteSettings, context: TransportContext) -> None:
        self._settings = settings
        self.connections = settings.connections

    async def send(self, outgoing: OutgoingMail) -> SendResult:
        if not outgoing.may_begin():
            raise NotStarted("the lease may have expired")
        now = asyncio.get_running_loop().time()
        SENT.append((self._settings, outgoing))
        outcome = accepted(200, "in the bag", f"letter-{len(SENT)}")
        return SendResult([outcome] * len(outgoing.recipients), now, now)

    def recall(self) -> None:
        """Nothing waits."""

    async def check(self) -> str:
        return f"the postman of {self._settings.city} is awake"

    async def close(self) -> None:
        """Nothing is open."""


# --- its feedback


class PostboteFeedback:
    def __init__(self, provider: Provider, window: float) -> None:
        self._stamp = provider.settings.get("stamp")
        self._key = provider.webhook_secret

    async def verify(self, request: SignedRequest, now: float) -> None:
        if self._key is None or self._stamp is None:
            raise Forged("no_key", "the provider has no key")
        if request.headers.get("x-stamp") != stamped(self._key.reveal(), self._stamp, request.body):
            raise Forged("signature", "the stamp is wrong")

    def parse(self, request: SignedRequest) -> Sequence[FeedbackEvent]:
        event = json.loads(request.body)
        return [
            FeedbackEvent(
                FeedbackKind(event["what"]),
                event["id"],
                datetime.now(UTC),
                UUID(event["message"]),
                recipient=event["to"],
            )
        ]

    async def answer(self, request: SignedRequest) -> None:
        """Nothing is asked for."""

    async def close(self) -> None:
        """Nothing is open."""


def stamped(key: str, stamp: str, body: bytes) -> str:
    return hmac.digest(key.encode(), stamp.encode() + body, "sha256").hex()
