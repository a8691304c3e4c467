"""An SMTP server in this process over real sockets: with a small store of its own, or with the real rooms behind it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pillarbox.accept.smtp.actions import SubmittedMail
from pillarbox.accept.smtp.listeners import Listener
from pillarbox.accept.smtp.rules import SessionLimits, SessionPolicy
from pillarbox.accept.smtp.server import Server, SmtpConnectionLimits, Timeouts
from pillarbox.accept.smtp.tls import Certificate
from pillarbox.app import App, serve_smtp
from pillarbox.errors import Unauthorized
from pillarbox.model.secret import Secret
from pillarbox.telemetry.metrics import Metrics
from tests import PATIENCE
from tests.harness import opened
from tests.unit.smtp_sessions import Open

MAIL = b"Subject: hello\r\nFrom: a@x.example\r\nTo: b@y.example\r\n\r\nhello\r\n"
ENVELOPE = b"MAIL FROM:<a@x.example>\r\nRCPT TO:<b@y.example>\r\nDATA\r\n"


class Shelf:
    """A MailHandler that keeps mails in a list; `gate` closed, it keeps them waiting."""

    def __init__(self) -> None:
        self.mails: list[SubmittedMail] = []
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.trouble: Exception | None = None  # instead of keeping the next mails

    async def log_in(self, username: str, password: Secret, peer: str) -> SessionPolicy:
        if (username, password.reveal()) != ("me", "secret"):
            raise Unauthorized("no")
        return Open()

    async def submit(self, policy: SessionPolicy, mail: SubmittedMail, peer: str) -> object:
        self.asked += 1
        await self.gate.wait()
        if self.trouble:
            raise self.trouble
        self.mails.append(mail)
        return len(self.mails)


@dataclass
class Running:
    """A server, its ports by listener, and what it counted."""

    server: Server
    shelf: Shelf
    metrics: Metrics
    ports: dict[str, int]
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"pillarbox_{name}", labels) or 0.0


@asynccontextmanager
async def running(
    limits: SessionLimits | None = None,
    timeouts: Timeouts | None = None,
    connection_limits: SmtpConnectionLimits | None = None,
    certificate: Certificate | None = None,
) -> AsyncIterator[Running]:
    """A server without a database: `smtp` needs no login; with a certificate also `smtp_submission` and `smtp_tls`."""
    shelf, metrics = Shelf(), Metrics()
    listeners = [Listener("smtp", ("127.0.0.1", 0), metrics, Open)]
    if certificate:
        listeners.append(Listener("smtp_submission", ("127.0.0.1", 0), metrics, starttls=True))
        listeners.append(Listener("smtp_tls", ("127.0.0.1", 0), metrics, implicit_tls=True))
    for listener in listeners:
        listener.open()
    server = Server(
        "mail.example",
        shelf,
        limits or SessionLimits(),
        timeouts or Timeouts(),
        connection_limits or SmtpConnectionLimits(),
        certificate,
    )
    ports = {listener.name: int(listener.where.rpartition(":")[2]) for listener in listeners}
    one = Running(server, shelf, metrics, ports)
    task = asyncio.create_task(server.run(listeners, one.stop))
    try:
        yield one
    finally:
        one.stop.set()
        await asyncio.wait_for(task, PATIENCE)


@dataclass
class Installed:
    """The real thing: an app that serves SMTP on a test's database."""

    app: App
    ports: dict[str, int]
    stop: asyncio.Event
    task: asyncio.Task[None]


@asynccontextmanager
async def installed(database_url: str, **settings: Any) -> AsyncIterator[Installed]:
    """SMTP in this process before a real database; without settings, the door of development."""
    given = {"smtp": "127.0.0.1:0", "development": "on"} | settings
    async with opened(database_url, **given) as app:
        stop = asyncio.Event()
        ready: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()

        def note(places: Any) -> None:
            ready.set_result(
                {name: int(where.rpartition(":")[2]) for name, where in places.items()}
            )

        task = asyncio.create_task(serve_smtp(app, stop, note))
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        try:
            yield Installed(app, ready.result(), stop, task)
        finally:
            stop.set()
            await asyncio.wait_for(task, PATIENCE)


class Client:
    """An SMTP client that says exactly what it is told, good or bad."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, data: bytes) -> str:
        """Write, and return the next reply."""
        self.writer.write(data)
        await self.writer.drain()
        return await self.reply()

    async def reply(self) -> str:
        """The next reply, its lines joined; empty when the server has closed."""
        lines = []
        while True:
            line = (await asyncio.wait_for(self.reader.readline(), PATIENCE)).decode()
            lines.append(line)
            if line[3:4] != "-":
                return "".join(lines)

    async def begin_tls(self, context: ssl.SSLContext) -> None:
        assert (await self.say(b"STARTTLS\r\n")).startswith("220")
        await self.writer.start_tls(context, server_hostname="localhost")

    async def mail(self, content: bytes = MAIL) -> str:
        """Hand a mail over; the reply to it, or the first that refuses."""
        for command in ENVELOPE.splitlines(keepends=True):
            reply = await self.say(command)
            if reply[:1] not in "23":
                return reply
        return await self.say(content + b".\r\n")

    async def gone(self) -> bool:
        """Whether the server closes the connection; reads what it still says."""
        try:
            await asyncio.wait_for(self.reader.read(), PATIENCE)
        except (ConnectionError, ssl.SSLError):
            return True
        return self.reader.at_eof()


@asynccontextmanager
async def connected(
    port: int, *, hello: bool = True, tls: ssl.SSLContext | None = None, source: str = "127.0.0.1"
) -> AsyncIterator[Client]:
    """A client, greeted; unless told otherwise it has said EHLO."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1",
        port,
        ssl=tls,
        server_hostname="localhost" if tls else None,
        local_addr=(source, 0),
    )
    client = Client(reader, writer)
    try:
        await client.reply()
        if hello:
            assert (await client.say(b"EHLO client.example\r\n")).startswith("250")
        yield client
    finally:
        writer.transport.abort()


async def served(port: int) -> None:
    """An honest client gets a mail accepted, quickly."""
    async with asyncio.timeout(PATIENCE), connected(port) as honest:
        assert (await honest.mail()).startswith("250 2.0.0 accepted as ")
