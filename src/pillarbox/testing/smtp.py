"""A scripted SMTP server for tests: real sockets, complete records, a dial for each fault.

    async with SmtpServer(Faults(rcpt="451 4.7.1 try later")) as server:
        ...                                  # send something to server.host, server.port
        mail = await server.next_mail()
        assert server.violations == []

It waits on conditions, never on the clock. Whether a client sent too much too early can only be
seen when the bytes arrive before our reply leaves: `violations` can miss such haste, but never
invents it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Self

from pillarbox.testing.smtp_faults import (
    BINARY,
    LONG_LINE,
    NOT_SMTP,
    STARTTLS_INJECTION,
    UNENDED,
    BrokenTls,
    Drop,
    Endless,
    Extensions,
    Faults,
    Hang,
    Raw,
    Trickle,
    chaos,
)
from pillarbox.testing.smtp_mail import ReceivedMail
from pillarbox.testing.smtp_session import Session
from pillarbox.testing.smtp_wire import Wire

__all__ = [
    "BINARY",
    "LONG_LINE",
    "NOT_SMTP",
    "STARTTLS_INJECTION",
    "UNENDED",
    "BrokenTls",
    "Drop",
    "Endless",
    "Extensions",
    "Faults",
    "Hang",
    "Raw",
    "ReceivedMail",
    "Session",
    "SmtpServer",
    "Trickle",
    "chaos",
]


class SmtpServer:
    """Listens on a free port of 127.0.0.1; `faults` and `extensions` may change at any time."""

    def __init__(
        self,
        faults: Faults | None = None,
        extensions: Extensions | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        implicit_tls: ssl.SSLContext | None = None,
        hostname: str = "smtp.test",
    ) -> None:
        self.faults = faults or Faults()
        self.extensions = extensions or Extensions()
        self.host, self.port, self.hostname = host, port, hostname
        self.mails: list[ReceivedMail] = []
        self.commands: list[str] = []  # every line outside bodies, AUTH exchanges included
        self.commands_in_clear: list[str] = []  # those of them that TLS did not protect
        self.violations: list[str] = []  # of the protocol, by clients
        self.connections = 0  # made in all
        self.peak_connections = 0  # most open at one time
        self._implicit_tls = implicit_tls
        self._unread: deque[ReceivedMail] = deque()
        self._wires: set[Wire] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._errors: list[BaseException] = []

    @property
    def open_connections(self) -> int:
        return len(self._wires)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        if self._errors and exc[1] is None:
            raise self._errors[0]  # a dial of the test's own failed, and nothing else told

    async def start(self) -> None:
        """Listen. After `stop`, it listens on the same port again."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Wire(self._opened, self._closed),
            self.host,
            self.port,
            ssl=self._implicit_tls,
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for wire in list(self._wires):
            wire.abort()
            await wire.lost.wait()
        await self._listener.wait_closed()

    # waiting

    async def wait_for(self, condition: Callable[[], bool], timeout: float = 60) -> None:
        """Wait until a condition on this server holds; it is checked again after each change."""
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    await self._next_change()
        except TimeoutError:
            raise TimeoutError(f"not within {timeout} s; {self._summary()}") from None

    async def next_mail(self, timeout: float = 60) -> ReceivedMail:
        """The first mail that was not given out by an earlier call."""
        await self.wait_for(lambda: bool(self._unread), timeout)
        return self._unread.popleft()

    async def _next_change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _summary(self) -> str:
        verbs = [line.partition(" ")[0] for line in self.commands[-5:]]
        return (
            f"{len(self.mails)} mails, {self.connections} connections"
            f" ({self.open_connections} open), "
            f"last commands {verbs}, violations {self.violations[-3:]}"
        )

    # what connections and sessions report

    def _opened(self, wire: Wire) -> None:
        if not self._listener.is_serving():  # taken from the backlog while we stop
            wire.abort()
            return
        self._wires.add(wire)
        self.connections += 1
        self.peak_connections = max(self.peak_connections, len(self._wires))
        task = asyncio.create_task(Session(self, wire, self.connections).run())
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        self._changed()

    def _closed(self, wire: Wire) -> None:
        self._wires.discard(wire)
        self._changed()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._errors.append(error)

    def saw(self, line: str, *, tls: bool) -> None:
        """A session read a command."""
        self.commands.append(line)
        if not tls:
            self.commands_in_clear.append(line)
        self._changed()

    def violation(self, connection: int, text: str) -> None:
        """A session saw its client break the protocol."""
        self.violations.append(f"connection {connection}: {text}")
        self._changed()

    def store(self, mail: ReceivedMail) -> None:
        """A session accepted a mail."""
        self.mails.append(mail)
        self._unread.append(mail)
        self._changed()
