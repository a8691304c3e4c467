"""The commands and bytes of one mail for a server with certain capabilities. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.model.address import ascii_domain
from pillarbox.model.outcome import Outcome, Reason, rejected

if TYPE_CHECKING:
    from pillarbox.deliver.transports.base import OutgoingMail

# RFC 5321 4.5.3.1: 64 bytes before the @, 255 after it. Servers fail on longer ones.
MAX_ADDRESS = 320

# Printable ASCII without space, < and >: nothing that could end the path or the line.
_is_plain = re.compile(r"[!-;=?-~]+@[!-;=?-~]+").fullmatch
# These scan every mail; patterns that begin with a literal are faster than `in` and `count`.
_find_bare_cr = re.compile(rb"\r(?!\n)").search
_find_dot = re.compile(rb"\r\n\.").search
_find_unsafe = re.compile(r"[\x00-\x20\x7f-\xa0<>\s\ud800-\udfff]").search


class ServerCapabilities(NamedTuple):
    """What the server offered in its EHLO reply."""

    pipelining: bool = False
    size: int | None = None  # None: not offered; 0: offered without a limit
    eight_bit: bool = False
    utf8: bool = False


class SmtpEnvelope(NamedTuple):
    """The commands to send, and the recipients that are settled without any."""

    # MAIL, RCPT for each recipient that is not settled, DATA; empty when all are settled.
    commands: list[bytes]
    settled: dict[int, Outcome]  # by index of the recipient


class _Unfit(Exception):
    """An address or a mail that cannot be sent to this server."""

    def __init__(self, reason: Reason, text: str) -> None:
        self.outcome = rejected(reason, None, text)


def seal(outgoing: OutgoingMail, capabilities: ServerCapabilities) -> SmtpEnvelope:
    """The envelope of a mail for this server."""
    try:
        mail, utf8 = _mail_command(outgoing, capabilities)
    except _Unfit as unfit:
        return SmtpEnvelope([], dict.fromkeys(range(len(outgoing.recipients)), unfit.outcome))
    commands = [mail]
    settled: dict[int, Outcome] = {}
    for position, recipient in enumerate(outgoing.recipients):
        try:
            path, wants_utf8 = _path(recipient.address, capabilities)
        except _Unfit as unfit:
            settled[position] = unfit.outcome
        else:
            utf8 = utf8 or wants_utf8
            commands.append(b"RCPT TO:<%b>\r\n" % path)
    if len(commands) == 1:
        return SmtpEnvelope([], settled)
    if utf8:
        commands[0] = mail[:-2] + b" SMTPUTF8\r\n"
    commands.append(b"DATA\r\n")
    return SmtpEnvelope(commands, settled)


def _mail_command(outgoing: OutgoingMail, capabilities: ServerCapabilities) -> tuple[bytes, bool]:
    content = outgoing.content
    path, utf8 = _path(outgoing.sender, capabilities) if outgoing.sender else (b"", False)
    parameters = b""
    if capabilities.size is not None:
        parameters = _size_parameter(len(content), capabilities.size)
    if not content.isascii():
        utf8 = _needs_utf8(content, capabilities) or utf8
        parameters += b" BODY=8BITMIME"
    if has_bare_line_ends(content):
        raise _Unfit(Reason.MALFORMED, "the content has a CR or LF outside of a CRLF")
    return b"MAIL FROM:<%b>%b\r\n" % (path, parameters), utf8


def _size_parameter(size: int, limit: int) -> bytes:
    if 0 < limit < size:
        raise _Unfit(Reason.TOO_BIG, f"the mail has {size:,} bytes, the server takes {limit:,}")
    return b" SIZE=%d" % size


def _needs_utf8(content: bytes, capabilities: ServerCapabilities) -> bool:
    """Whether the header section needs SMTPUTF8; refuses what the server cannot carry."""
    if not capabilities.eight_bit:
        raise _Unfit(
            Reason.UNSUPPORTED, "the mail has 8-bit content and the server does not offer 8BITMIME"
        )
    header, _, _ = content.partition(b"\r\n\r\n")
    if header.isascii():
        return False
    if not capabilities.utf8:
        raise _Unfit(
            Reason.UNSUPPORTED, "the headers are not ASCII and the server does not offer SMTPUTF8"
        )
    return True


def _path(address: str, capabilities: ServerCapabilities) -> tuple[bytes, bool]:
    """The bytes of an address, and whether it needs SMTPUTF8."""
    if _is_plain(address) and len(address) <= MAX_ADDRESS:
        return address.encode(), False
    local, _, domain = address.rpartition("@")
    if not local or not domain or len(address) > MAX_ADDRESS or _find_unsafe(address):
        raise _Unfit(Reason.MALFORMED, "the address is not valid in SMTP")
    if local.isascii():
        return local.encode() + b"@" + _a_label(domain), False
    if not capabilities.utf8:
        raise _Unfit(
            Reason.UNSUPPORTED, "the address is not ASCII and the server does not offer SMTPUTF8"
        )
    return address.encode(), True


def _a_label(domain: str) -> bytes:
    encoded = ascii_domain(domain)
    if not encoded.isascii():
        raise _Unfit(Reason.MALFORMED, "the domain is not a legal internationalised name")
    return encoded.encode()


def has_bare_line_ends(content: bytes) -> bool:
    """Whether a CR or LF is alone: servers differ about those, which allows SMTP smuggling."""
    return _find_bare_cr(content) is not None or content.count(b"\r") != content.count(b"\n")


def stuffed(content: bytes) -> bytes:
    """The content with leading dots doubled; not copied when there are none."""
    if _find_dot(content):
        content = content.replace(b"\r\n.", b"\r\n..")
    return b"." + content if content.startswith(b".") else content


def final_dot(content: bytes) -> bytes:
    """The end of the content: a dot on a line of its own."""
    return b".\r\n" if content.endswith(b"\r\n") or not content else b"\r\n.\r\n"
