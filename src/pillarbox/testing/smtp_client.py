"""A raw SMTP client for testing servers: it sends exactly the given bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# A reply line of a hostile server may be long; a test wants to read it whole.
_MAX_LINE = 2**21


class RawClient:
    """Sends bytes and reads replies, without any protocol rules."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def write(self, data: bytes) -> None:
        """Send bytes as they are, in one segment where the network lets it."""
        self.writer.write(data)

    async def say(self, text: str | bytes) -> str:
        """Send a line (or bytes as they are) and return the reply's last line."""
        if isinstance(text, str):
            text = text.encode() + b"\r\n"
        self.write(text)
        return await self.reply()

    async def reply(self) -> str:
        """The last line of the next reply; empty when the server closed."""
        while (line := await self.reader.readline()) and line[3:4] == b"-":
            pass
        return line.decode(errors="replace").rstrip()

    async def codes(self, count: int) -> list[str]:
        """The codes of so many replies, empty where the server had closed."""
        return [(await self.reply())[:3] for _ in range(count)]

    async def greet(self) -> str:
        """Read the banner, say EHLO, return its reply's last line."""
        await self.reply()
        return await self.say("EHLO client.test")

    async def begin(self, sender: str, *recipients: str) -> str:
        """Greet and go step by step up to DATA; returns the reply to that."""
        await self.greet()
        await self.say(f"MAIL FROM:<{sender}>")
        for recipient in recipients:
            await self.say(f"RCPT TO:<{recipient}>")
        return await self.say("DATA")

    async def start_tls(self, context: ssl.SSLContext, hostname: str = "localhost") -> None:
        """Begin the handshake; saying STARTTLS before is the caller's part."""
        await self.writer.start_tls(context, server_hostname=hostname)


@asynccontextmanager
async def raw_client(
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    timeout: float = 60,
) -> AsyncIterator[RawClient]:
    """A connection that ends, rudely, with the block; the whole block has this many seconds."""
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(
            host,
            port,
            ssl=tls,
            limit=_MAX_LINE,
        )
        try:
            yield RawClient(reader, writer)
        finally:
            writer.transport.abort()
