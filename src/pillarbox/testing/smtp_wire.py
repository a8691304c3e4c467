"""One connection of the scripted SMTP server: bytes, TLS, and orderly or abrupt ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from typing import cast

_END_OF_DATA = b"\r\n.\r\n"
_ABORT_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: close sends RST


class Gone(Exception):
    """The connection has ended, or is to end now."""


class Wire(asyncio.Protocol):
    """Buffers what the client sends, so that a session can be written as a coroutine."""

    def __init__(self, opened: Callable[[Wire], None], closed: Callable[[Wire], None]) -> None:
        self._opened, self._closed = opened, closed
        self.buffer = bytearray()
        self.ended = False  # the client will send no more
        self.lost = asyncio.Event()
        self.tls = False
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.tls = transport.get_extra_info("sslcontext") is not None
        self._opened(self)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._news.set()

    def eof_received(self) -> bool:
        self.ended = True
        self._news.set()
        return (
            not self.tls
        )  # a half-closed client may still read our replies; TLS has no such thing

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.is_set():
            self.ended = True
            self.lost.set()
            self._news.set()
            self._writable.set()
            self._closed(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # what a session calls

    async def more(self) -> None:
        """Wait for more bytes; raises Gone when there can be none."""
        if self.ended:
            raise Gone
        self._news.clear()
        await self._news.wait()

    async def read_line(self, limit: int) -> bytes | None:
        """The next line with its end; None if it is longer than the limit, and it is skipped."""
        while (end := self.buffer.find(b"\n")) < 0:
            await self.more()
        line = bytes(self.buffer[: end + 1])
        del self.buffer[: end + 1]
        if len(line) > limit:
            return None
        return line

    async def read_data(self) -> bytes:
        """A body as it came, up to but without the final dot. Only CRLF.CRLF ends it."""
        searched = 0
        while not self.buffer.startswith(b".\r\n"):
            end = self.buffer.find(_END_OF_DATA, searched)
            if end >= 0:
                return self._take_data(end + 2)
            searched = max(0, len(self.buffer) - len(_END_OF_DATA) + 1)
            await self.more()
        return self._take_data(0)

    def _take_data(self, size: int) -> bytes:
        data = bytes(self.buffer[:size])
        del self.buffer[: size + 3]
        return data

    async def read_at_least(self, size: int) -> None:
        while len(self.buffer) < size:
            await self.more()

    def write(self, data: bytes) -> None:
        if not self.lost.is_set():
            self._transport.write(data)

    async def drain(self) -> None:
        """Let the event loop run, and the client read; raises Gone when it went away."""
        await asyncio.sleep(0)
        await self._writable.wait()
        if self.lost.is_set():
            raise Gone

    async def until_ended(self) -> None:
        while not self.ended:
            await self.more()

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Take the client's handshake; raises Gone when it fails."""
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(
                self._transport,
                self,
                context,
                server_side=True,
            )
        except (OSError, EOFError) as error:
            self.connection_lost(None)  # a failed handshake does not report it
            raise Gone from error
        if transport is None:  # the client left between its handshake and now
            raise Gone
        self._transport, self.tls = transport, True

    def close(self) -> None:
        self._transport.close()

    def reset(self) -> None:
        """Close with RST."""
        connection: socket.socket | None = self._transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_ON_CLOSE)
        self._transport.abort()

    def abort(self) -> None:
        self._transport.abort()
