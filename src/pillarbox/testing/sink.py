"""A fast SMTP sink for benchmarks and crash tests: accepts, counts and can record all mails.

    python -m pillarbox.testing.sink --port 0 --out mails.txt --record X-Number

prints its port on the first line; SIGTERM makes it print how many mails it accepted and exit 0.
With --out, the record of a mail is written before its 250 is sent: every mail a client saw accepted
is in the file, even after kill -9 of either side (not after a power cut: nothing is fsynced). It
checks nothing; SmtpServer does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self, cast

try:
    import uvloop
except ImportError:  # not made for Windows
    uvloop = None  # type: ignore[assignment,unused-ignore]

_END_OF_DATA = b"\r\n.\r\n"
# Headers are searched only so far into a mail: far more than real ones have, and memory stays
# bounded.
_MAX_HEAD = 65_536
# Longer than any SMTP command may be (AUTH's 12,288 octets).
_MAX_COMMAND = 16_384
# Connections a burst of clients may have waiting; asyncio's 100 makes benchmarks with more of them
# stutter.
_BACKLOG = 1024

_OK = b"250 2.0.0 OK\r\n"
_OFFERS = (
    b"250-PIPELINING\r\n250-SIZE\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 ENHANCEDSTATUSCODES\r\n"
)
_REPLIES = {
    b"MAIL": _OK,
    b"RCPT": _OK,
    b"DATA": b"354 go\r\n",
    b"EHLO": b"250-sink\r\n" + _OFFERS,
    b"HELO": b"250 sink\r\n",
    b"RSET": _OK,
    b"NOOP": _OK,
    b"QUIT": b"221 2.0.0 bye\r\n",
}
_UNKNOWN = b"502 5.5.1 unknown command\r\n"


class Record(NamedTuple):
    """One accepted mail."""

    at: float  # time.monotonic() of the sink's machine
    recipients: list[str]
    headers: list[
        str
    ]  # the values of the recorded headers, in the order asked for; empty when absent


class Recorder:
    """Appends a line per mail to a file."""

    def __init__(self, path: str | Path, headers: Sequence[str] = ("Message-ID",)) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._headers = self.patterns(headers)

    @staticmethod
    def patterns(headers: Sequence[str]) -> list[re.Pattern[bytes]]:
        """Each matches a header with its folded lines."""
        names = (re.escape(name.encode()) for name in headers)
        return [
            re.compile(rb"\r\n%b:((?:[^\r\n]|\r\n[ \t])*)" % name, re.IGNORECASE) for name in names
        ]

    def line(self, recipients: list[bytes], head: bytes) -> bytes:
        head = b"\r\n" + head.partition(b"\r\n\r\n")[0]
        found = (pattern.search(head) for pattern in self._headers)
        values = [b" ".join(match[1].split()) if match else b"" for match in found]
        return b"%.6f\t%b\t%b\n" % (time.monotonic(), b" ".join(recipients), b"\t".join(values))

    def write(self, lines: list[bytes]) -> None:
        rest = b"".join(lines)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def close(self) -> None:
        os.close(self._file)


def read_records(path: str | Path) -> list[Record]:
    """What a recorder wrote; a last line that a kill cut off is left out."""
    lines = Path(path).read_bytes().decode(errors="replace").split("\n")[:-1]
    rows = (line.split("\t") for line in lines)
    return [Record(float(at), recipients.split(), headers) for at, recipients, *headers in rows]


class FastSink(asyncio.Protocol):
    """One connection: an SMTP server without a care, fed by any chunks."""

    def __init__(
        self,
        recorder: Recorder | None = None,
        accepted: Callable[[int], None] = lambda count: None,
        connections: set[FastSink] | None = None,
    ) -> None:
        self._recorder = recorder
        self._accepted = accepted  # told how many mails came, once per chunk that completed any
        self._connections = (
            set() if connections is None else connections
        )  # of which this one is while it lasts
        self._rest = (
            b""  # a command's beginning, or as much of a body's end as could begin the final dot
        )
        self._in_body = False
        self._head = b""  # the beginning of the body under way; kept only for a recorder
        self._recipients: list[bytes] = []
        self._lines: list[bytes] = []
        self._count = 0
        self._leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        self._transport.write(b"220 sink ESMTP\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        replies = self.feed(data)
        if replies:
            self._transport.write(replies)
        if self._leaving:
            self._transport.close()

    def feed(self, data: bytes) -> bytes:
        """Take a chunk, return what to answer; records are written by the time it returns."""
        replies: list[bytes] = []
        rest, position = self._rest + data, 0
        while position >= 0:
            start = position
            position = (self._body if self._in_body else self._command)(rest, position, replies)
        self._keep(rest, start)
        self._settle()
        return b"".join(replies)

    def _command(
        self,
        data: bytes,
        start: int,
        replies: list[bytes],
    ) -> int:
        """Answer the command at `start`; return the next start, -1 if it is incomplete."""
        end = data.find(b"\r\n", start)
        if end < 0 or self._leaving:
            return -1
        verb = data[start : start + 4].upper()
        replies.append(_REPLIES.get(verb, _UNKNOWN))
        if verb == b"DATA":
            self._in_body = True
            return end  # the CRLF of DATA may be the one before the final dot
        if verb == b"RCPT" and self._recorder:
            self._recipients.append(data[start:end].partition(b"<")[2].partition(b">")[0])
        elif verb in {b"MAIL", b"RSET"}:
            self._recipients.clear()
        self._leaving = verb == b"QUIT"
        return end + 2

    def _body(
        self,
        data: bytes,
        start: int,
        replies: list[bytes],
    ) -> int:
        """Find the end of the body; `start` is the CRLF before it, or the kept part of it."""
        end = data.find(_END_OF_DATA, start)
        if end < 0:
            return -1
        if self._recorder:
            self._note_head(data[start:end])
            self._lines.append(self._recorder.line(self._recipients, self._head[2:]))
        self._in_body, self._head = False, b""
        self._count += 1
        replies.append(_OK)
        return end + len(_END_OF_DATA)

    def _note_head(self, part: bytes) -> None:
        if len(self._head) < _MAX_HEAD:
            self._head += part[: _MAX_HEAD - len(self._head)]

    def _keep(self, data: bytes, start: int) -> None:
        """Hold on to what the next chunk may complete."""
        if self._in_body:
            kept = max(start, len(data) - len(_END_OF_DATA) + 1)
            if self._recorder:
                self._note_head(data[start:kept])
            start = kept
        elif len(data) - start > _MAX_COMMAND:
            self._leaving = True
        self._rest = data[start:]

    def _settle(self) -> None:
        if self._recorder and self._lines:
            self._recorder.write(self._lines)
            self._lines.clear()
        if self._count:
            self._accepted(self._count)
            self._count = 0


class Sink:
    """A listening sink: `async with Sink() as sink: … sink.port … sink.count`."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        recorder: Recorder | None = None,
    ) -> None:
        self.host, self.port = host, port
        self.count = 0  # mails accepted
        self.connections: set[FastSink] = set()
        self._recorder = recorder
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connect,
            self.host,
            self.port,
            backlog=_BACKLOG,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        while self.connections:
            for connection in list(self.connections):
                connection.abort()
            await asyncio.sleep(0)
        await self._server.wait_closed()

    async def wait_for(self, count: int, timeout: float = 60) -> None:
        """Wait until so many mails were accepted."""
        async with asyncio.timeout(timeout):
            while self.count < count:
                self._news.clear()
                await self._news.wait()

    def _connect(self) -> FastSink:
        return FastSink(self._recorder, self._accepted, self.connections)

    def _accepted(self, count: int) -> None:
        self.count += count
        self._news.set()


async def serve(
    host: str,
    port: int,
    recorder: Recorder | None,
) -> None:
    """Be a sink until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with Sink(host, port, recorder) as sink:
        print(sink.port, flush=True)
        await stopped.wait()
    print(sink.count, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pillarbox.testing.sink", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        help="0 takes a free one",
    )
    parser.add_argument("--out", metavar="FILE", help="append a record of each mail to this file")
    parser.add_argument(
        "--record",
        metavar="HEADER",
        nargs="*",
        help="headers to record (Message-ID)",
    )
    options = parser.parse_args(arguments)
    if options.record is not None and options.out is None:
        parser.error("--record needs --out")
    with contextlib.ExitStack() as stack:
        recorder = Recorder(options.out, options.record or ["Message-ID"]) if options.out else None
        if recorder:
            stack.callback(recorder.close)
        loop_factory = uvloop.new_event_loop if uvloop else None
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(serve(options.host, options.port, recorder))


if __name__ == "__main__":
    main()
