"""A client that sends as fast as it can, or on schedule, over open connections; does no more than
it must.

Reads lines of JSON: `{"count": 1000}` sends so many, each connection its next when the last is
answered; with `"rate"` each at its own time, whatever became of those before. Then prints how many
were refused, and writes when each was due and answered to a file. A request is what comes before
and after its number, which is the same length in all.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import uvloop

Request = tuple[bytes, bytes]
Done = Callable[["Http | Smtp", bool, bytes], None]


class Http(asyncio.Protocol):
    """One kept connection that speaks HTTP/1.1."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._rest = b""
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._done(self, False, b"the connection was closed")

    def send(self, request: Request, number: bytes) -> None:
        self._transport.write(number.join(request))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        head = data.find(b"\r\n\r\n")
        if head < 0 or len(data) < head + 4 + _length(data[:head]):
            self._rest = data
            return
        self._rest = b""
        self._done(self, data[9:10] == b"2", data)


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])


class Smtp(asyncio.Protocol):
    """One kept connection that speaks SMTP, the envelope in one go."""

    ENVELOPE = b"MAIL FROM:<orders@shop.example>\r\nRCPT TO:<reader@mail.example>\r\nDATA\r\n"

    def __init__(self, done: Done) -> None:
        self._done = done
        self._rest = b""
        self._body: bytes | None = None
        self._left = 2  # replies until the next step: the greeting, and EHLO's
        self._good = True
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(b"EHLO load.example\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        self._done(self, False, b"the connection was closed")

    def send(self, request: Request, number: bytes) -> None:
        self._body = number.join(request)
        self._left, self._good = 3, True
        self._transport.write(self.ENVELOPE)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\r\n")
        for line in lines:
            if line[3:4] != b"-":
                self._reply(line)

    def _reply(self, line: bytes) -> None:
        self._good = self._good and line[:1] in (b"2", b"3")
        self._left -= 1
        if self._left:
            return
        if not self.ready.done():
            self.ready.set_result(None)
        elif self._body is not None and self._good:
            self._left = 1
            self._transport.write(self._body + b".\r\n")
            self._body = None
        else:
            self._done(self, self._good, line)


class LoadClients:
    """All connections, and what waits for one that is free."""

    def __init__(self, requests: list[Request]) -> None:
        self._requests = cycle(requests)
        self._loop = asyncio.get_running_loop()
        self._free: deque[Http | Smtp] = deque()
        self._busy: dict[Http | Smtp, tuple[int, float]] = {}
        self._waiting: deque[tuple[int, float]] = deque()
        self._numbers = iter(range(1, 10**9))
        self.more = 0  # requests still to be made by whoever is free
        self.refused, self.why = 0, b""
        self.answered: list[tuple[int, float, float]] = []
        self.done = asyncio.Event()
        self._left = 0

    async def connect(self, kind: type[Http | Smtp], port: int, connections: int) -> None:
        for _ in range(connections):
            _, one = await self._loop.create_connection(
                lambda: kind(self._finish), "127.0.0.1", port
            )
            await one.ready
            self._free.append(one)

    async def send(self, count: int, rate: float | None = None) -> None:
        """Send so many, and wait for the last answer."""
        self.answered, self.refused, self._left = [], 0, count
        self.done.clear()
        if rate is None:
            self.more = count
            while self._free and self.more:
                self._next(self._free.popleft())
        else:
            await self._on_schedule(count, rate)
        await self.done.wait()

    async def _on_schedule(self, count: int, rate: float) -> None:
        dice, begun = random.Random(7), time.monotonic()
        for n in range(count):
            due = begun + (n + dice.random()) / rate  # at random moments around a steady rate
            if (pause := due - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            self._waiting.append((next(self._numbers), due))
            if self._free:
                self._next(self._free.popleft())

    def _next(self, one: Http | Smtp) -> None:
        """Give a free connection its next request, if there is any."""
        if self._waiting:
            number, due = self._waiting.popleft()
        elif self.more:
            self.more -= 1
            number, due = next(self._numbers), time.monotonic()
        else:
            self._free.append(one)
            return
        self._busy[one] = (number, due)
        one.send(next(self._requests), b"%09d" % number)

    def _finish(self, one: Http | Smtp, good: bool, answer: bytes) -> None:
        if one not in self._busy:  # it was closed while idle
            return
        number, due = self._busy.pop(one)
        if good:
            self.answered.append((number, due, time.monotonic()))
        else:
            self.refused, self.why = self.refused + 1, answer
        self._left -= 1
        if self._left <= 0:
            self.done.set()
        self._next(one)


async def main(
    protocol: str,
    port: str,
    connections: str,
    given: str,
    out: str,
) -> None:
    requests = [
        (one[0].encode("latin-1"), one[1].encode("latin-1"))
        for one in json.loads(Path(given).read_text())
    ]
    clients = LoadClients(requests)
    kind: type[Http | Smtp] = Http if protocol == "http" else Smtp
    await clients.connect(kind, int(port), int(connections))
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked: dict[str, Any] = json.loads(line)
        await clients.send(**asked)
        Path(out).write_text(json.dumps(clients.answered))
        print(
            json.dumps({"refused": clients.refused, "why": clients.why[:300].decode("latin-1")}),
            flush=True,
        )


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
