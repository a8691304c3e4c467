"""An SMTP session without sockets: a machine, and a small store that answers what it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pillarbox.accept.smtp import replies
from pillarbox.accept.smtp.actions import Authenticate, Close, StartTls, Submit, SubmittedMail
from pillarbox.accept.smtp.machine import Machine
from pillarbox.accept.smtp.rules import SessionLimits

# RFC 5321 4.2: a code of three digits, a hyphen in all lines but the last, printable text, CRLF;
# 512 octets a line.
LEGAL = re.compile(rb"(?:([2-5][0-5][0-9])-[ -~]*\r\n)*[2-5][0-5][0-9](?: [ -~]*)?\r\n")


class Open:
    """A policy that allows everything but what it names."""

    def __init__(
        self, max_message: int = 10**9, max_recipients: int = 100, refused: Iterable[str] = ()
    ) -> None:
        self.max_message = max_message
        self.max_recipients = max_recipients
        self._refused = set(refused)

    def refuse_sender(self, address: str) -> bytes | None:
        return replies.reply(550, "5.7.1", "not you") if address in self._refused else None

    def refuse_recipient(self, address: str) -> bytes | None:
        return replies.reply(550, "5.1.1", "no such mailbox") if address in self._refused else None


class Session:
    """Feeds a machine, carries out its actions at once, and keeps what it said and did."""

    def __init__(
        self, limits: SessionLimits | None = None, policy: Open | None = None, **machine: Any
    ) -> None:
        self.machine = Machine("mail.example", limits or SessionLimits(), policy, **machine)
        self.said = b""
        self.mails: list[SubmittedMail] = []
        self.logins: list[tuple[str, str]] = []
        self.upgrades = 0
        self.closed = False
        self.answers: list[bytes | None] = []  # to the next mails; None, or no more: stored

    def feed(self, *chunks: bytes) -> bytes:
        """Feed chunks; returns what was said to them."""
        before = len(self.said)
        for chunk in chunks:
            self.carry_out(self.machine.receive(chunk))
        return self.said[before:]

    def carry_out(self, actions: Sequence[object]) -> None:
        for action in actions:
            assert not self.closed, "nothing follows a Close"
            if isinstance(action, bytes):
                assert_legal(action)
                self.said += action
            elif isinstance(action, Submit):
                self.mails.append(action.mail)
                answer = self.answers.pop(0) if self.answers else None
                self.carry_out(
                    self.machine.submitted(len(self.mails))
                    if answer is None
                    else self.machine.failed(answer)
                )
            elif isinstance(action, Authenticate):
                self._log_in(action)
            elif isinstance(action, StartTls):
                self.upgrades += 1
            else:
                assert isinstance(action, Close)
                self.closed = True

    def _log_in(self, asked: Authenticate) -> None:
        self.logins.append((asked.username, asked.password.reveal()))
        right = self.logins[-1] == ("me", "secret")
        machine = self.machine
        self.carry_out(
            machine.authenticated(Open()) if right else machine.failed(replies.BAD_CREDENTIALS)
        )

    def codes(self, *chunks: bytes) -> list[str]:
        """The codes with which chunks were answered, with their enhanced status."""
        return codes(self.feed(*chunks))


def codes(said: bytes) -> list[str]:
    lines = [line for line in said.decode().split("\r\n") if line and line[3] == " "]
    return [
        line[: 9 if re.match(r"\d{3} \d\.\d\.\d", line) else 3]
        + (line[9:10].strip() if "5.7.11" in line else "")
        for line in lines
    ]


def assert_legal(said: bytes) -> None:
    position = 0
    while position < len(said):
        found = LEGAL.match(said, position)
        assert found, said[position : position + 100]
        assert all(len(line) <= 510 for line in found[0].split(b"\r\n"))
        position = found.end()


def opened(
    limits: SessionLimits | None = None, policy: Open | None = None, **machine: Any
) -> Session:
    """A session that has said EHLO, on a listener without login."""
    session = Session(limits, policy or Open(), **machine)
    session.feed(b"EHLO client.example\r\n")
    return session


ENVELOPE = b"MAIL FROM:<a@x.example>\r\nRCPT TO:<b@y.example>\r\nDATA\r\n"


def mail(content: bytes = b"Subject: x\r\n\r\nhello\r\n") -> bytes:
    return ENVELOPE + content + b".\r\n"
