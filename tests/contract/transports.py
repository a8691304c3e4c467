"""Every transport with a provider to talk to, for the contract suite.

To add one, write an async context manager that yields its `Desk`, and name it in ADAPTERS.
"""

from __future__ import annotations

import asyncio
import email
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from pillarbox.deliver.transports.base import OutgoingMail, Transport
from pillarbox.deliver.transports.capture import CaptureTransport
from pillarbox.deliver.transports.http import HttpTransport
from pillarbox.deliver.transports.http_client import HttpClient
from pillarbox.deliver.transports.http_send import ProviderApi
from pillarbox.deliver.transports.mailgun import MailgunApi
from pillarbox.deliver.transports.sendgrid import SendGridApi
from pillarbox.deliver.transports.ses import SesApi
from pillarbox.deliver.transports.smtp import SmtpTransport
from pillarbox.errors import StoreError
from pillarbox.model.provider import (
    HttpSettings,
    MailgunSettings,
    SendgridSettings,
    SesSettings,
    SmtpSettings,
    Tls,
    http_settings,
)
from pillarbox.model.secret import Secret
from pillarbox.testing.smtp import Faults, SmtpServer
from pillarbox.testing.twins import Dials, MailgunTwin, SendGridTwin, SesTwin
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
    settings = http_settings(twin.kind, twin.provider_settings(), Secret(twin.secret), connections)
    async with over_http(settings, timeout) as transport:
        yield transport


@asynccontextmanager
async def over_http(settings: HttpSettings, timeout: float) -> AsyncIterator[HttpTransport]:
    """A transport to wherever its settings say."""
    client = HttpClient()
    transport = HttpTransport(client, api_of(settings), settings.connections, timeout)
    try:
        yield transport
    finally:
        await transport.close()
        await client.close()


def api_of(settings: HttpSettings) -> ProviderApi:
    match settings:
        case SendgridSettings():
            return SendGridApi(settings, 7)
        case SesSettings():
            return SesApi(settings)
        case MailgunSettings():
            return MailgunApi(settings)


@asynccontextmanager
async def _http(twin: Twin) -> AsyncIterator[Desk]:
    async with twin, calling(twin) as transport:

        def fail() -> None:
            twin.dials = Dials(status=503)

        yield Desk(transport, lambda: [_seen(mail) for mail in twin.mails], fail)


def sendgrid() -> AbstractAsyncContextManager[Desk]:
    return _http(SendGridTwin())


def ses() -> AbstractAsyncContextManager[Desk]:
    return _http(SesTwin())


def mailgun() -> AbstractAsyncContextManager[Desk]:
    return _http(MailgunTwin())


def _seen(mail: TwinMail) -> Arrived:
    if mail.mime is not None:
        return mail.sender, mail.recipients, _text(mail.mime)
    assert mail.body is not None
    return mail.sender, mail.recipients, mail.body["content"][0]["value"]


def _text(content: bytes) -> str:
    return str(email.message_from_bytes(content).get_payload())


ADAPTERS = [smtp, capture, sendgrid, ses, mailgun]
