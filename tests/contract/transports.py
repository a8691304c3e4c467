"""Every transport with a provider to talk to, for the contract suite.

A kind with a twin in `pillarbox.testing.twins` is here already; another needs an async context
manager that yields its `Desk`, named in ADAPTERS.
"""

from __future__ import annotations

import asyncio
import email
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pillarbox.deliver.transports.base import OutgoingMail, Transport, TransportContext
from pillarbox.deliver.transports.build import build_transport
from pillarbox.deliver.transports.capture import CaptureTransport
from pillarbox.deliver.transports.http import HttpTransport
from pillarbox.deliver.transports.http_client import HttpClient
from pillarbox.deliver.transports.smtp import SmtpTransport
from pillarbox.errors import StoreError
from pillarbox.model.provider import Provider
from pillarbox.model.provider_kinds.smtp import SmtpSettings, Tls
from pillarbox.model.secret import Secret
from pillarbox.testing.smtp import Faults, SmtpServer
from pillarbox.testing.twins import TWINS, Dials
from pillarbox.testing.twins.base import Twin
from pillarbox.testing.twins.mail import TwinMail

Arrived = tuple[str, tuple[str, ...], str]  # sender, recipients, text


@dataclass
class Desk:
    """A transport, what its provider has received, and ways to make the provider fail and wait."""

    transport: Transport
    arrived: Callable[[], list[Arrived]]
    fail: Callable[[], None]


@asynccontextmanager
async def smtp() -> AsyncIterator[Desk]:
    async with SmtpServer() as server:
        settings = SmtpSettings(
            server.host, server.port, Tls.NONE, helo="client.test", connections=4
        )

        def fail() -> None:
            server.faults = Faults(mail="451 4.3.0 later")

        yield Desk(
            SmtpTransport(settings),
            lambda: [(mail.sender, mail.recipients, _text(mail.content)) for mail in server.mails],
            fail,
        )


@asynccontextmanager
async def capture() -> AsyncIterator[Desk]:
    kept: list[Arrived] = []
    failing: list[bool] = []

    async def keep(outgoing: OutgoingMail) -> int:
        await asyncio.sleep(0)
        if failing:
            raise StoreError("the database is away")
        kept.append(
            (
                outgoing.sender,
                tuple(one.address for one in outgoing.recipients),
                _text(outgoing.content),
            )
        )
        return len(kept)

    yield Desk(CaptureTransport(keep), lambda: kept, lambda: failing.append(True))


@asynccontextmanager
async def calling(
    twin: Twin, connections: int = 4, timeout: float = 30.0
) -> AsyncIterator[HttpTransport]:
    """A transport to a running twin."""
    settings = twin.provider_settings()
    async with over_http(twin.kind, settings, twin.secret, connections, timeout) as transport:
        yield transport


@asynccontextmanager
async def over_http(
    kind: str, settings: Mapping[str, Any], secret: str, connections: int, timeout: float
) -> AsyncIterator[HttpTransport]:
    """A transport of a kind to wherever its settings say."""
    client = HttpClient()
    provider = Provider(7, kind, kind, dict(settings) | {"timeout": timeout}, Secret(secret))
    transport = build_transport(provider, context(lambda: client), connections)
    assert isinstance(transport, HttpTransport)
    try:
        yield transport
    finally:
        await transport.close()
        await client.close()


def context(
    client: Callable[[], HttpClient], keep: Callable[[OutgoingMail], Awaitable[int]] | None = None
) -> TransportContext:
    async def refuse(outgoing: OutgoingMail) -> int:
        raise AssertionError("only capture keeps mails")

    return TransportContext(7, client, keep or refuse)


@asynccontextmanager
async def _http(kind: str) -> AsyncIterator[Desk]:
    async with TWINS[kind]() as twin, calling(twin) as transport:

        def fail() -> None:
            twin.dials = Dials(status=503)

        yield Desk(transport, lambda: [_seen(mail) for mail in twin.mails], fail)


def _seen(mail: TwinMail) -> Arrived:
    if mail.mime is not None:
        return mail.sender, mail.recipients, _text(mail.mime)
    assert mail.body is not None
    return mail.sender, mail.recipients, mail.body["content"][0]["value"]


def _text(content: bytes) -> str:
    return str(email.message_from_bytes(content).get_payload())


# A kind with a twin needs nothing here.
ADAPTERS: dict[str, Callable[[], AbstractAsyncContextManager[Desk]]] = {
    **{kind: partial(_http, kind) for kind in TWINS},
    "smtp": smtp,
    "capture": capture,
}
