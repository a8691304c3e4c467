"""Mails for HTTP transports, and servers that behave worse than any twin."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pillarbox.deliver.mime import compose
from pillarbox.deliver.transports.base import OutgoingMail, Recipient
from pillarbox.deliver.transports.http import HttpTransport
from pillarbox.model.message import Content, Message
from tests.contract.transports import over_http

SETTINGS: dict[str, dict[str, Any]] = {
    "sendgrid": {},
    "ses": {"region": "eu-west-1", "access_key_id": "AKIAIOSFODNN7EXAMPLE"},
    "mailgun": {"domain": "mg.shop.example"},
}
KEY = "a-very-secret-key"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def outgoing(
    *recipients: str,
    parts: Content | None = None,
    may_begin: Callable[[], bool] = lambda: True,
    **fields: Any,
) -> OutgoingMail:
    """A mail to these; `to` and other fields of the message may differ from who gets it."""
    envelope = recipients or ("reader@mail.example",)
    parts = parts or Content("Hi!\n")
    given = {"sender": "Shop <info@shop.example>", "to": envelope, "subject": "Hello"} | fields
    message = Message(uuid4(), created_at=datetime.now(UTC), **given)
    numbered = [Recipient(number, address) for number, address in enumerate(envelope)]
    return OutgoingMail(
        message.id,
        3,
        "info@shop.example",
        numbered,
        compose(message, parts),
        may_begin,
        message,
        parts,
    )


@asynccontextmanager
async def to_url(
    kind: str, url: str, timeout: float = 30.0, connections: int = 4
) -> AsyncIterator[HttpTransport]:
    """A transport of this kind to any address."""
    settings = SETTINGS[kind] | {"url": url}
    async with over_http(kind, settings, KEY, connections, timeout) as transport:
        yield transport


@asynccontextmanager
async def listening(talk: Talk, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that talks as told; yields its URL."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{port}"
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """A whole request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    )
    return head + await reader.readexactly(int(length.split(b":")[1]))


def answering(status: int, body: bytes = b"", headers: Sequence[str] = ()) -> Talk:
    """Answers every request alike."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            await writer.drain()

    return talk
