"""Mails, and an SMTP transport towards a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pillarbox.deliver.transports.base import OutgoingMail, Recipient, SendResult
from pillarbox.deliver.transports.smtp import SmtpTransport
from pillarbox.model.provider_kinds.smtp import SmtpSettings, Tls
from pillarbox.testing.smtp import Extensions, Faults, SmtpServer
from tests import PATIENCE

if TYPE_CHECKING:
    from pillarbox.model.outcome import Outcome, Reason, Verdict
    from pillarbox.testing.sink import Sink

MAIL = b"Subject: hello\r\nFrom: a@x.test\r\n\r\nhello\r\n"


def outgoing(
    *recipients: str,
    sender: str = "a@x.test",
    content: bytes = MAIL,
    may_begin: Callable[[], bool] = lambda: True,
) -> OutgoingMail:
    numbered = [
        Recipient(number, address) for number, address in enumerate(recipients or ("b@x.test",))
    ]
    return OutgoingMail(uuid4(), 1, sender, numbered, content, may_begin)


def settings_for(server: SmtpServer | Sink, **changes: Any) -> SmtpSettings:
    """Settings for a server in clear; a test that needs patience or haste says so."""
    usual: dict[str, Any] = {
        "host": server.host,
        "port": server.port,
        "tls": Tls.NONE,
        "helo": "client.test",
    }
    return SmtpSettings(**(usual | changes))


@asynccontextmanager
async def smtp(server: SmtpServer, **changes: Any) -> AsyncIterator[SmtpTransport]:
    transport = SmtpTransport(settings_for(server, **changes))
    try:
        yield transport
    finally:
        await asyncio.wait_for(transport.close(), PATIENCE)


@asynccontextmanager
async def talking(
    faults: Faults | None = None, extensions: Extensions | None = None, **changes: Any
) -> AsyncIterator[tuple[SmtpServer, SmtpTransport]]:
    """A server with these faults, and a transport towards it."""
    async with SmtpServer(faults, extensions) as server, smtp(server, **changes) as transport:
        yield server, transport


async def send(transport: SmtpTransport, *mails: OutgoingMail) -> list[SendResult]:
    """Send all of them at once; none may get stuck."""
    return await asyncio.wait_for(asyncio.gather(*(transport.send(one) for one in mails)), 20)


async def send_one(transport: SmtpTransport, one: OutgoingMail | None = None) -> Outcome:
    [report] = await send(transport, one or outgoing())
    [outcome] = report.outcomes
    return outcome


def told(report: SendResult) -> list[tuple[Verdict, Reason | None]]:
    """Verdict and reason for each recipient."""
    return [(outcome.verdict, outcome.reason) for outcome in report.outcomes]
