"""Composes the bytes of a mail from a Message and its Content, the same at every attempt.

Bodies have CRLF line ends, and one is added to a text that does not end with it. Spaces around a
subject are dropped. A string that is not Unicode (a lone surrogate) raises ValueError, and so does
anything that would break out of its header. The result is 7-bit clean, except for addresses whose
local part is not ASCII, which need SMTPUTF8, and for raw messages, which are not re-encoded.
"""

from __future__ import annotations

import re
from binascii import b2a_base64, b2a_qp
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pillarbox.deliver.headers import (
    MAX_LINE,
    attachment_headers,
    date_header,
    fold,
    header_section,
    message_id_header,
)
from pillarbox.model.address import address_of
from pillarbox.model.raw_mail import FIELD, as_sent, header_end

if TYPE_CHECKING:
    from pillarbox.model.message import Attachment, Content, Message

__all__ = ["compose", "message_id_header", "needs_smtputf8"]

# RFC 2045 6.8: at most 76 characters to a line of base64.
BASE64_LINE = 76
# Whole lines' worth of bytes that stay in the processor's cache: a large file goes a third faster.
BASE64_BLOCK = 57 * 256

# A part with its headers, as the pieces it is joined from.
Entity = list[bytes]

_OVERLONG = re.compile(
    rb"=(?:20|09)(?=\r\n)(?<=[^\r\n]{77})"
)  # looks back last: finding "=" first is fast
_BCC = re.compile(
    rb"^(?:resent-)?bcc[ \t]*:[^\n]*(?:\n|\Z)(?:[ \t][^\n]*(?:\n|\Z))*",
    re.IGNORECASE | re.MULTILINE,
)
_DATE = re.compile(rb"^date[ \t]*:", re.IGNORECASE | re.MULTILINE)
_MESSAGE_ID = re.compile(rb"^message-id[ \t]*:", re.IGNORECASE | re.MULTILINE)


def compose(message: Message, content: Content) -> bytes:
    """The whole mail, CRLF line ends, not dot-stuffed; raw content is completed, not composed."""
    if content.raw is not None:
        return complete(message, content.raw)
    return b"".join([header_section(message), *_body(message.id.hex, content)])


def needs_smtputf8(content: bytes, sender: str, recipients: Sequence[str]) -> bool:
    """Whether the mail's header section or an address of its envelope is not ASCII."""
    end = content.find(b"\r\n\r\n")
    if end < 0:
        end = len(content)
    if not content[:end].isascii():
        return True
    return any(
        not mailbox.isascii() and not address_of(mailbox).isascii()
        for mailbox in (sender, *recipients)
    )


def _body(name: str, content: Content) -> Entity:
    bodies = []
    if content.text is not None:
        bodies.append(_text("plain", content.text))
    if content.html is not None:
        bodies.append(_text("html", content.html))
    inline, attached = _attachments(content)
    if not bodies and not attached:
        return _text("plain", "")
    mark = _mark(name, bodies + inline + attached)
    if inline:
        bodies[-1] = _multipart(b'related; type="text/html"', mark + b"r", [bodies[-1], *inline])
    if len(bodies) > 1:
        bodies = [_multipart(b"alternative", mark + b"a", bodies)]
    if attached:
        return _multipart(b"mixed", mark + b"m", [*bodies, *attached])
    return bodies[0]


def _attachments(content: Content) -> tuple[list[Entity], list[Entity]]:
    """Attachments that the HTML can refer to, and the others; without HTML, all are others."""
    if not content.attachments:
        return [], []
    inline: list[Entity] = []
    attached: list[Entity] = []
    for attachment in content.attachments:
        if attachment.content_id is not None and content.html is not None:
            inline.append(_attachment(attachment))
        else:
            attached.append(_attachment(attachment))
    return inline, attached


def _mark(name: str, leaves: list[Entity]) -> bytes:
    """The prefix of all boundaries: made of the message's id, and not found in any part."""
    mark, number = f"=_{name}".encode(), 0
    while _occurs(mark, leaves):
        number += 1
        mark = f"=_{name}_{number}".encode()
    return mark


def _occurs(mark: bytes, leaves: list[Entity]) -> bool:
    for _, body in leaves:  # noqa: SIM110 (a generator costs more than the search)
        if mark in body:
            return True
    return False


def _multipart(kind: bytes, boundary: bytes, entities: Iterable[Entity]) -> Entity:
    pieces = [b'Content-Type: multipart/%b;\r\n boundary="%b"\r\n' % (kind, boundary)]
    delimiter = b"\r\n--%b\r\n" % boundary
    for entity in entities:
        pieces.append(delimiter)
        pieces += entity
    pieces.append(b"\r\n--%b--\r\n" % boundary)
    return pieces


def _text(kind: str, text: str) -> Entity:
    data = text.encode()
    # Bytes beyond the first of each character tell, for free, how much of the text is not ASCII:
    # from about one byte in six, base64 is the shorter.
    beyond = len(data) - len(text)
    data = _crlf(data)
    if not data.endswith(b"\r\n"):
        data += b"\r\n"
    if not beyond and _is_7bit(data):
        return [_text_headers(kind, "7bit"), data]
    if beyond * 9 > len(data):
        return [_text_headers(kind, "base64"), _base64(data)]
    return [_text_headers(kind, "quoted-printable"), _quoted_printable(data)]


def _text_headers(kind: str, encoding: str) -> bytes:
    return (
        f"Content-Type: text/{kind}; charset=utf-8\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n"
    ).encode()


def _attachment(attachment: Attachment) -> Entity:
    kind, filename, content_id = attachment.content_type, attachment.filename, attachment.content_id
    if kind.lower().startswith(("message/", "multipart/")):
        # RFC 2046 5.2.1, RFC 2045 6.4: these may not be encoded, so what is not 7-bit goes as a
        # plain file.
        data = _crlf(attachment.content)
        if data and kind.lower().startswith("message/") and data.isascii() and _is_7bit(data):
            return [attachment_headers(kind, filename, content_id, "7bit"), data]
        kind = "application/octet-stream"
    return [attachment_headers(kind, filename, content_id, "base64"), _base64(attachment.content)]


def _quoted_printable(data: bytes) -> bytes:
    encoded = b2a_qp(data)
    if b" \r\n" in data or b"\t\r\n" in data:
        # binascii forgets to count what it adds for a blank at the end of a line: up to 78
        # characters.
        encoded = _OVERLONG.sub(b"=\r\n\\g<0>", encoded)
    return encoded


def _base64(data: bytes) -> bytes:
    if len(data) <= BASE64_BLOCK:
        return _base64_lines(data)
    view = memoryview(data)
    blocks = range(0, len(data), BASE64_BLOCK)
    return b"\r\n".join([_base64_lines(view[at : at + BASE64_BLOCK]) for at in blocks])


def _base64_lines(data: bytes | memoryview) -> bytes:
    encoded = b2a_base64(data, newline=False)
    lines = [encoded[at : at + BASE64_LINE] for at in range(0, len(encoded), BASE64_LINE)]
    return b"\r\n".join(lines)


def _is_7bit(data: bytes) -> bool:
    """Whether ASCII with CRLF line ends may travel as it is: no NUL, no line over the limit."""
    if b"\0" in data:
        return False
    start, end = 0, len(data)
    while end - start > MAX_LINE:
        # Hop to the last line end within reach: few steps, however many lines.
        found = data.rfind(b"\r\n", start, start + MAX_LINE + 2)
        if found < 0:
            return False
        start = found + 2
    return True


def _crlf(data: bytes) -> bytes:
    """Every CRLF, bare CR and bare LF as CRLF; the same object if that changes nothing."""
    if b"\r" in data:
        if data.count(b"\r\n") == data.count(b"\n") == data.count(b"\r"):
            return data
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data.replace(b"\n", b"\r\n")


def complete(message: Message, raw: bytes) -> bytes:
    """Complete a raw message: Bcc is removed, missing Date, Message-ID and Received are added.

    Nothing else changes, so that signatures stay valid. Line ends were normalised on acceptance.
    """
    raw = as_sent(raw)
    end = header_end(raw)
    head = raw[:end]
    kept = _BCC.sub(b"", head)
    added = _missing(message, kept)
    if kept == head and not added:
        return raw
    return b"".join([added, kept, raw[end:]])


def _missing(message: Message, head: bytes) -> bytes:
    fields = _trace(message)
    if not _DATE.search(head):
        fields += date_header(message.created_at)
    if not _MESSAGE_ID.search(head):
        fields += fold("Message-ID", [" " + message_id_header(message.id, message.sender)])
    # A text without any header would be joined to the fields that are put before it.
    if fields and head and not FIELD.search(head):
        fields += "\r\n"
    return fields.encode()


def _trace(message: Message) -> str:
    """The Received field of a mail that was submitted by SMTP (RFC 5321 4.4)."""
    if not isinstance(message.headers, Mapping):
        return ""
    received = message.headers.get("Received")
    if not received:
        return ""
    return fold("Received", [" " + word for word in received.split()])
