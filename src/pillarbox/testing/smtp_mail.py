"""A mail on its way into the scripted SMTP server, and one that arrived."""

from __future__ import annotations

import email
import email.policy
from dataclasses import dataclass, field
from email.message import EmailMessage
from functools import cached_property


@dataclass(frozen=True)
class ReceivedMail:
    """A mail the server accepted."""

    sender: str
    recipients: tuple[str, ...]  # those it accepted, in order
    content: bytes = field(repr=False)  # as sent, dots unstuffed
    helo: str
    tls: bool
    username: str | None
    connection: int  # 1 is the first the server took
    parameters: dict[str, str]  # of MAIL: SIZE, BODY, SMTPUTF8
    recipient_parameters: tuple[dict[str, str], ...]  # of each RCPT

    @cached_property
    def message(self) -> EmailMessage:
        """The content, parsed when first asked for."""
        return email.message_from_bytes(self.content, policy=email.policy.default)


@dataclass
class Envelope:
    """A transaction under way."""

    sender: str
    parameters: dict[str, str]
    recipients: list[str] = field(default_factory=list)
    recipient_parameters: list[dict[str, str]] = field(default_factory=list)
    tried: int = 0  # RCPT commands, refused ones included
