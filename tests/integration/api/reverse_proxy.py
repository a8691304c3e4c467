"""A small reverse proxy as nginx is without any configuration: it rewrites Host, and adds no header."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

_HOST = re.compile(rb"(?im)^host:.*$")


@asynccontextmanager
async def reverse_proxy(url: str, *more: str) -> AsyncIterator[str]:
    """The address of a proxy before this server; `more` are header lines that it adds."""
    place = urlsplit(url)
    tasks: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        head = _HOST.sub(b"Host: %s\r" % place.netloc.encode(), head)
        added = "".join(f"{line}\r\n" for line in ("Connection: close", *more)).encode()
        behind, to = await asyncio.open_connection(place.hostname, place.port)
        to.write(head[:-2] + added + b"\r\n")
        back = asyncio.create_task(reader_to(reader, to))
        writer.write(await behind.read())
        await writer.drain()
        back.cancel()
        to.close()
        writer.close()

    async def reader_to(reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            to.write(data)

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(forward(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
