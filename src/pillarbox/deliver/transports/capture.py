"""Keeps mails for reading and sends nothing out: the development default."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pillarbox.deliver.transports.base import OutgoingMail, SendResult, TransportContext
from pillarbox.errors import NotStarted, StoreError
from pillarbox.model.outcome import Reason, accepted, deferred
from pillarbox.model.provider_kinds.capture import KIND, CaptureSettings
from pillarbox.store import providers
from pillarbox.store.database import Database

Keep = Callable[[OutgoingMail], Awaitable[int]]


class CaptureTransport:
    """Hands each mail to `keep`, which stores it and returns a number for it."""

    limits = KIND.limits
    connections = 100  # of the database; its pool limits them
    connections_open = 0
    connections_busy = 0

    def __init__(self, keep: Keep) -> None:
        self._keep = keep

    async def send(self, outgoing: OutgoingMail) -> SendResult:
        if not outgoing.may_begin():
            raise NotStarted("the lease may have expired")
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            number = await self._keep(outgoing)
            outcome = accepted(250, f"captured as {number}", str(number))
        except StoreError as error:
            outcome = deferred(Reason.UNAVAILABLE, text=str(error))
        return SendResult([outcome] * len(outgoing.recipients), started, loop.time())

    def recall(self) -> None:
        """No mail waits here."""

    async def check(self) -> str:
        return "captures every mail; nothing is sent out"

    async def close(self) -> None:
        """Nothing is open."""


async def keep_captured(database: Database, provider_id: int, outgoing: OutgoingMail) -> int:
    """Store a mail instead of sending it; returns its number."""
    recipients = [recipient.address for recipient in outgoing.recipients]
    return await providers.capture(
        database,
        provider_id,
        outgoing.message_id,
        outgoing.sender,
        recipients,
        outgoing.content,
    )


def build_transport(settings: CaptureSettings, context: TransportContext) -> CaptureTransport:
    return CaptureTransport(context.keep)
