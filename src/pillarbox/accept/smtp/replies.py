"""What the server says: whole replies, ready to be written."""

from __future__ import annotations

import re

# RFC 5321 4.5.3.1.5: a reply line has 512 octets, its CRLF included.
MAX_REPLY = 512
_odd = re.compile(r"[^ -~]")


def reply(code: int, status: str, text: str) -> bytes:
    """A reply of one line: code, enhanced status (RFC 3463), text; `?` for unprintable ones."""
    line = _odd.sub("?", f"{code} {status} {text}".rstrip())
    return line[: MAX_REPLY - 2].encode("ascii") + b"\r\n"


OK = reply(250, "2.0.0", "OK")
SENDER_OK = reply(250, "2.1.0", "sender OK")
RECIPIENT_OK = reply(250, "2.1.5", "recipient OK")
GO_AHEAD = b"354 end the mail with a dot on a line of its own\r\n"
GOODBYE = reply(221, "2.0.0", "goodbye")
BEGIN_TLS = reply(220, "2.0.0", "begin TLS now")
LOGGED_IN = reply(235, "2.7.0", "logged in")
CANNOT_VERIFY = reply(252, "2.5.0", "addresses are not verified; send the mail")
HELP = reply(214, "2.0.0", "EHLO MAIL RCPT DATA RSET NOOP QUIT STARTTLS AUTH; see RFC 5321")

UNKNOWN = reply(500, "5.5.2", "unknown command")
TOO_LONG = reply(500, "5.5.2", "the line is too long")
BARE_LF = reply(500, "5.5.2", "lines end with CR LF, and neither stands alone")
NOT_HERE = reply(502, "5.5.1", "this is not offered here")
BAD_SYNTAX = reply(501, "5.5.4", "wrong or missing argument")
NOT_UTF8 = reply(501, "5.5.2", "the command is neither ASCII nor UTF-8")
BAD_BASE64 = reply(501, "5.5.2", "this is not what the mechanism expects")
AUTH_CANCELLED = reply(501, "5.7.0", "login cancelled")
BAD_SEQUENCE = reply(503, "5.5.1", "wrong order of commands")
NO_GREETING = reply(503, "5.5.1", "say EHLO first")
NO_RECIPIENTS = reply(503, "5.5.1", "no recipient was accepted")
NO_LOGIN_NEEDED = reply(503, "5.5.1", "no login is needed")
BAD_MECHANISM = reply(504, "5.5.4", "use AUTH PLAIN or AUTH LOGIN")
TLS_FIRST = reply(530, "5.7.0", "say STARTTLS first")
AUTH_FIRST = reply(530, "5.7.0", "log in first")
AUTH_NEEDS_TLS = reply(538, "5.7.11", "passwords are taken over TLS only: say STARTTLS first")
BAD_CREDENTIALS = reply(535, "5.7.8", "wrong username or password")
BAD_SENDER = reply(553, "5.1.7", "write the address as <name@domain>")
BAD_ADDRESS = reply(553, "5.1.3", "write the address as <name@domain>")
NEEDS_SMTPUTF8 = reply(553, "5.6.7", "an address that is not ASCII needs SMTPUTF8 at MAIL")
NOT_HTTP = reply(554, "5.7.0", "this is SMTP, not HTTP")
BAD_PARAMETER = reply(555, "5.5.4", "a parameter is not supported")

BUSY = reply(452, "4.3.1", "too much mail is on its way in; try again soon")
TOO_MANY_RECIPIENTS = reply(452, "4.5.3", "too many recipients in one mail")
TOO_BIG = reply(552, "5.3.4", "the mail is too big")

TOO_MANY_ERRORS = reply(421, "4.7.0", "too many errors")
TOO_MANY_COMMANDS = reply(421, "4.7.0", "too many commands without a mail")
TOO_MANY_MESSAGES = reply(421, "4.7.0", "enough mails for one connection; open another")
TOO_MANY_CONNECTIONS = reply(421, "4.7.0", "too many connections; try again soon")
TOO_SLOW = reply(421, "4.4.2", "no complete command or mail in time")
SHUTTING_DOWN = reply(421, "4.3.2", "shutting down; try again soon")
FAULT = reply(451, "4.3.0", "internal error; try again later")


def accepted(message_id: object) -> bytes:
    """The mail is stored, under this id."""
    return f"250 2.0.0 accepted as {message_id}\r\n".encode()


def greeting(name: str) -> bytes:
    """The first line of a session."""
    return f"220 {name} ESMTP Pillarbox\r\n".encode()


def hello(name: str, offers: list[str]) -> bytes:
    """The answer to EHLO: a line for each thing that is offered; to HELO, offering nothing."""
    lines = [name, *offers]
    said = [f"250-{line}\r\n" for line in lines[:-1]] + [f"250 {lines[-1]}\r\n"]
    return "".join(said).encode()
