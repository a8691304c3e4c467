"""The replies of the scripted SMTP server at each stage: the usual ones, or those of a dial."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import TYPE_CHECKING, Protocol, cast

from pillarbox.testing.smtp_faults import (
    BrokenTls,
    Choice,
    Drop,
    Endless,
    Extensions,
    Fault,
    Faults,
    Hang,
    Raw,
    Say,
    Stage,
    Trickle,
)
from pillarbox.testing.smtp_wire import Gone, Wire

if TYPE_CHECKING:
    from pillarbox.testing.smtp_mail import ReceivedMail
    from pillarbox.testing.smtp_session import Session

# RFC 2920 3.1: these end a group of pipelined commands; the client waits for their reply.
_LAST_IN_GROUP = frozenset({"ehlo", "helo", "starttls", "auth", "data", "noop", "quit"})
_ENHANCED = re.compile(r"^(\d{3}[ -])\d\.\d\.\d+ ")
GO_AHEAD_TLS = "220 2.0.0 go ahead"


class Host(Protocol):
    """What a session needs of its server."""

    hostname: str
    extensions: Extensions
    faults: Faults

    @property
    def open_connections(self) -> int: ...
    def saw(self, line: str, *, tls: bool) -> None: ...
    def violation(self, connection: int, text: str) -> None: ...
    def store(self, mail: ReceivedMail) -> None: ...


class Dialogue:
    """The answering half of a session."""

    def __init__(
        self,
        host: Host,
        wire: Wire,
        number: int,
    ) -> None:
        self.host, self.wire, self.number = host, wire, number
        self.extended = False  # greeted by EHLO

    async def answer(
        self,
        stage: Stage,
        usual: str,
        argument: str = "",
        address: str | None = None,
    ) -> str:
        """Reply at a stage by its dial; return the code that the client got, empty without one."""
        fault = await self.choose(
            stage,
            usual,
            argument,
            address,
        )
        await self.perform(fault, usual)
        return code_of(fault, usual)

    async def choose(
        self,
        stage: Stage,
        usual: str,
        argument: str,
        address: str | None = None,
    ) -> Fault:
        """What to do at a stage; dials apply only if the usual reply is positive."""
        choice = None
        if usual[0] in "23":
            choice = await self._ask_dial(stage, argument, address)
        delay = self.host.faults.delay.get(stage)
        if delay:
            await asyncio.sleep(delay)
        self._check_patience(stage)
        if choice is None:
            return Say(self.plain(usual))
        if isinstance(choice, str):
            return Say(choice)
        return choice

    async def _ask_dial(
        self,
        stage: Stage,
        argument: str,
        address: str | None,
    ) -> Choice:
        choice = self.host.faults.take(stage, address)
        if not callable(choice):
            return choice
        decided = choice(cast("Session", self), argument)
        if inspect.isawaitable(decided):
            return await decided
        return decided

    def _check_patience(self, stage: Stage) -> None:
        """Note a client that sent more before a reply it had to wait for."""
        if not self.wire.buffer:
            return
        if stage == "connect":
            self.violation("spoke before the greeting")
        elif stage in _LAST_IN_GROUP:
            self.violation(f"sent more after {stage.upper()} before its reply")
        elif not (self.extended and self.host.extensions.pipelining):
            self.violation(f"pipelined after {stage} though PIPELINING was not offered")

    async def perform(self, fault: Fault, usual: str) -> None:
        """Do it; raises Gone when the connection is to end."""
        match fault:
            case Say(reply):
                self.write(reply)
            case Raw(data):
                self.wire.write(data)
            case Trickle(reply):
                await self._trickle(reply or self.plain(usual))
            case Hang():
                await self.wire.until_ended()
                raise Gone
            case Drop():
                await self._drop(fault, usual)
            case Endless(line):
                await self._go_on_forever(line)
            case BrokenTls(data):
                await self._break_tls(data)
        if code_of(fault, usual) == "421":
            raise Gone

    async def _drop(self, drop: Drop, usual: str) -> None:
        if drop.after_reply or drop.after_bytes is not None:
            self.write(self.plain(usual))
        await self.wire.read_at_least(drop.after_bytes or 0)
        if drop.reset:
            self.wire.reset()
        raise Gone

    async def _trickle(self, reply: str) -> None:
        for byte in _on_wire(reply):
            # Not after the last byte: the client then sends its next command.
            await self.wire.drain()
            self.wire.write(bytes([byte]))

    async def _go_on_forever(self, line: str) -> None:
        while True:
            self.wire.write(_on_wire(line))
            await self.wire.drain()

    async def _break_tls(self, data: bytes) -> None:
        self.write(GO_AHEAD_TLS)
        await self.wire.more()
        self.wire.write(data)
        raise Gone

    def write(self, reply: str) -> None:
        self.wire.write(_on_wire(reply))

    def plain(self, reply: str) -> str:
        """A reply without its enhanced status code if these are not offered."""
        if self.host.extensions.enhanced_status_codes:
            return reply
        return _ENHANCED.sub(r"\1", reply)

    def violation(self, text: str) -> None:
        self.host.violation(self.number, text)


def _on_wire(reply: str) -> bytes:
    return b"".join(line.encode() + b"\r\n" for line in reply.split("\n"))


def code_of(fault: Fault, usual: str) -> str:
    """The reply code a client will see, or nothing."""
    match fault:
        case Say(reply):
            return reply[:3]
        case Trickle(reply):
            return (reply or usual)[:3]
        case Drop(after_reply=True):
            return usual[:3]
        case Raw(data) if data[:3].isdigit():
            return data[:3].decode()
    return ""
