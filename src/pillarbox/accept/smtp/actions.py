"""What the state machine asks the connection to do, apart from writing bytes."""

from __future__ import annotations

from typing import NamedTuple

from pillarbox.model.secret import Secret


class SubmittedMail(NamedTuple):
    """A received mail: the addresses of MAIL and RCPT, the content without transparency dots."""

    sender: str
    recipients: list[str]
    content: bytes
    protocol: str  # SMTP, ESMTP, UTF8SMTP, with S for TLS and A for a login: RFC 3848, RFC 6531
    greeted_as: str  # what the client calls itself

    def __repr__(self) -> str:
        return f"SubmittedMail({len(self.recipients)} recipients, {len(self.content)} bytes)"


class Submit(NamedTuple):
    """Store the mail; go on with `submitted` or `failed`."""

    mail: SubmittedMail


class Authenticate(NamedTuple):
    """Find out who that is; go on with `authenticated` or `failed`."""

    username: str
    password: Secret


class StartTls(NamedTuple):
    """Write what was said so far, discard what was heard, begin TLS; go on with `secured`."""


class Close(NamedTuple):
    """Write what was said so far and close."""


Action = bytes | Submit | Authenticate | StartTls | Close
