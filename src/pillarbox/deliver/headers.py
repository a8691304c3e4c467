"""Header fields as text: folded, encoded (RFC 2047, RFC 2231), and safe against injection."""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import UUID

from pillarbox.model.address import ascii_address, ascii_domain, split_mailbox

if TYPE_CHECKING:
    from pillarbox.model.message import Message

# RFC 5322 asks for 78, RFC 2047 for 76 on lines with encoded words: one number serves both.
LINE = 76
# RFC 5322 2.1.1: no line longer than this, CRLF not counted.
MAX_LINE = 998
ENCODED_WORD = 75  # RFC 2047 2
# An encoded or quoted name this short fits behind "Reply-To: ": no need to fold before it.
NAME = 62
# `filename*12*=utf-8''…;` and its leading space still fit a LINE.
PARAMETER_PIECE = 50

ONCE = frozenset({"date", "message-id", "reply-to", "sender", "in-reply-to", "references"})
OURS = frozenset(
    {"from", "to", "cc", "bcc", "resent-bcc", "subject", "mime-version", "received", "return-path"}
)
ADDRESSES = frozenset(
    {"reply-to", "sender", "resent-from", "resent-sender", "resent-to", "resent-cc"}
    | {"errors-to", "disposition-notification-to", "return-receipt-to"}
)

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_FIELD_NAME = re.compile(r"[!-9;-~]{1,76}")
_UNSAFE = re.compile(r"[\r\n\0]")
_PRINTABLE = re.compile(r"[ -~]*")
_VALUE = re.compile(r"[\t -~]*")
_WORDS = re.compile(
    r"[ \t]*[^ \t]+"
)  # a break before any other blank could leave a line of blanks only
_ATOM = (
    r"[A-Za-z0-9!#$%&'*+/^_`{|}~-]"  # atext, less "=" and "?", so that no atom is an encoded word
)
_ATOMS = re.compile(rf"{_ATOM}+(?: {_ATOM}+)*")
_ADDRESS = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]++@[A-Za-z0-9.-]+"
_PLAIN_MAILBOX = re.compile(rf"{_ADDRESS}|{_ATOM}++(?: {_ATOM}++)* <{_ADDRESS}>")
_LISTED = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*")+')
_MEDIA_TYPE = re.compile(r"[!#$&^_.+A-Za-z0-9-]+/[!#$&^_.+A-Za-z0-9-]+(?: *;[ -~]*)?")
_CONTENT_ID = re.compile(r"[!-;=?-~]{1,900}")

# RFC 2047 5 (3): the only bytes that stand for themselves wherever an encoded word may stand.
_Q_SAFE = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!*+-/"
_Q = [chr(byte) if byte in _Q_SAFE else f"={byte:02X}" for byte in range(256)]
_Q[ord(" ")] = "_"


def header_section(message: Message) -> bytes:
    """Every field of a message but those that describe its body."""
    custom = custom_headers(message.headers) if message.headers else {}
    fields = [_from_header(message.sender)]
    if message.to:
        fields.append(address_header("To", message.to))
    if message.cc:
        fields.append(address_header("Cc", message.cc))
    if message.reply_to and "reply-to" not in custom:
        fields.append(address_header("Reply-To", message.reply_to))
    fields.append(subject_header(message.subject))
    if "date" not in custom:
        fields.append(date_header(message.created_at))
    if "message-id" not in custom:
        fields.append(fold("Message-ID", [" " + message_id_header(message.id, message.sender)]))
    for lines in custom.values():
        fields += lines
    fields.append("MIME-Version: 1.0\r\n")
    return "".join(fields).encode()


def custom_headers(headers: Mapping[str, str] | Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """The fields of the caller by lower-case name; ValueError for fields that are reserved."""
    custom: dict[str, list[str]] = {}
    fields = headers.items() if isinstance(headers, Mapping) else headers
    for name, value in fields:
        key = name.lower()
        if key in OURS or key.startswith("content-") or (key in ONCE and key in custom):
            raise ValueError(f"header not allowed, or not twice: {name!r}")
        custom.setdefault(key, []).append(custom_header(name, value))
    return custom


@lru_cache(maxsize=1024)
def custom_header(name: str, value: str) -> str:
    """One field of the caller. ASCII is not changed, so that structured values stay valid."""
    if not _FIELD_NAME.fullmatch(name):
        raise ValueError(f"not a header name: {name!r}")
    value = _safe(value)
    if name.lower() in ADDRESSES and not value.isascii():
        return address_header(name, _LISTED.findall(value))
    if _VALUE.fullmatch(value):
        words = _WORDS.findall(" " + value)
        if max(map(len, words), default=0) <= MAX_LINE:
            return fold(name, words)
    return _encoded(name, value)


@lru_cache(maxsize=1024)
def subject_header(subject: str) -> str:
    """The Subject. A text that looks like an encoded word is encoded, so that it is not decoded."""
    subject = _safe(subject)
    if _PRINTABLE.fullmatch(subject) and "=?" not in subject:
        if len(subject) <= LINE - 9:
            return f"Subject: {subject}\r\n"
        words = _WORDS.findall(" " + subject)
        if max(map(len, words)) <= LINE - 8:
            return fold("Subject", words)
    return _encoded("Subject", subject)


@lru_cache(maxsize=256)
def _from_header(sender: str) -> str:
    return address_header("From", [sender])


def address_header(name: str, mailboxes: Sequence[str]) -> str:
    """A list of mailboxes, folded between them where it must be."""
    if len(mailboxes) == 1:
        return fold(name, mailbox_words(mailboxes[0]))
    words: list[str] = []
    for mailbox in mailboxes:
        *start, last = mailbox_words(mailbox)
        words += (*start, last + ",")
    words[-1] = words[-1][:-1]
    return fold(name, words)


@lru_cache(maxsize=1024)
def mailbox_words(mailbox: str) -> tuple[str, ...]:
    """A mailbox as the pieces between which a line may be folded, each with its leading space."""
    if len(mailbox) <= NAME and _PLAIN_MAILBOX.fullmatch(mailbox):
        return (" " + mailbox,)
    name, address = split_mailbox(mailbox)
    address = ascii_address(address)
    if name is None:
        return (" " + address,)
    return (*_phrase(name), f" <{address}>")


def message_id_header(message_id: UUID, sender: str) -> str:
    """The Message-ID of a message: the same at every attempt."""
    return f"<{message_id.hex}@{_domain_of(sender)}>"


@lru_cache(maxsize=256)
def _domain_of(sender: str) -> str:
    # A bounce has no sender, and yet an id.
    if "@" not in sender:
        return "localhost"
    return ascii_domain(split_mailbox(sender)[1].rpartition("@")[2])


def date_header(at: datetime) -> str:
    """The Date in UTC; a time without a zone is in UTC. strftime would use the locale."""
    if at.tzinfo is not None and at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    fields = (
        _DAYS[at.weekday()],
        at.day,
        _MONTHS[at.month - 1],
        at.year,
        at.hour,
        at.minute,
        at.second,
    )
    # A third faster than an f-string.
    return "Date: %s, %02d %s %04d %02d:%02d:%02d +0000\r\n" % fields  # noqa: UP031


@lru_cache(maxsize=512)
def attachment_headers(
    content_type: str, filename: str, content_id: str | None, encoding: str
) -> bytes:
    """The header section of an attachment's part, with the empty line that ends it."""
    if not _MEDIA_TYPE.fullmatch(content_type):
        raise ValueError(f"not a media type: {content_type!r}")
    words = _WORDS.findall(" " + content_type)
    if max(map(len, words)) > MAX_LINE:
        raise ValueError("a media type parameter is longer than a line may be")
    fields = [fold("Content-Type", words), f"Content-Transfer-Encoding: {encoding}\r\n"]
    if content_id is not None:
        fields.append(fold("Content-ID", [f" <{_content_id(content_id)}>"]))
    disposition = " attachment" if content_id is None else " inline"
    *parameters, last = [disposition, *_filename(filename)]
    fields.append(fold("Content-Disposition", [*(word + ";" for word in parameters), last]))
    return ("".join(fields) + "\r\n").encode("ascii")


def _content_id(content_id: str) -> str:
    bare = content_id.removeprefix("<").removesuffix(">")
    if not _CONTENT_ID.fullmatch(bare):
        raise ValueError(f"not a Content-ID: {content_id!r}")
    return bare


def _filename(filename: str) -> list[str]:
    """`filename="…"` for short ASCII names, else RFC 2231, in several pieces if it is long."""
    _refuse_unsafe(filename)
    if not filename:
        return []
    is_plain = _PRINTABLE.fullmatch(filename) and "=?" not in filename
    if is_plain and len(filename) <= PARAMETER_PIECE:
        return [f' filename="{_escaped(filename)}"']
    pieces = pack([quote(c, safe="") for c in filename], PARAMETER_PIECE, PARAMETER_PIECE)
    pieces[0] = "utf-8''" + pieces[0]
    if len(pieces) == 1:
        return [f" filename*={pieces[0]}"]
    return [f" filename*{number}*={piece}" for number, piece in enumerate(pieces)]


def fold(name: str, words: Sequence[str]) -> str:
    """A field, folded before words that do not fit; each word brings its leading space."""
    line = name + ":"
    lines = []
    for word in words:
        if len(line) + len(word) > LINE:
            lines.append(line)
            line = word
        else:
            line += word
    if not words:
        line += " "
    lines.append(line)
    return "\r\n".join(lines) + "\r\n"


def encoded_words(text: str, first: int = ENCODED_WORD, rest: int = ENCODED_WORD) -> list[str]:
    """Text as RFC 2047 words, Q or B, whichever is shorter; no character is split."""
    data = text.encode()
    first, rest = first - len("=?utf-8?q??="), rest - len("=?utf-8?q??=")
    quoted = _q(data)
    if len(quoted) <= (len(data) + 2) // 3 * 4:
        pieces = [quoted]
        if len(quoted) > first:
            pieces = pack([_q(c.encode()) for c in text], first, rest)
        return [f"=?utf-8?q?{piece}?=" for piece in pieces]
    # Four characters of base64 carry three bytes.
    spans = pack([c.encode().decode("latin-1") for c in text], first // 4 * 3, rest // 4 * 3)
    return [
        f"=?utf-8?b?{b2a_base64(span.encode('latin-1'), newline=False).decode()}?="
        for span in spans
    ]


def _q(data: bytes) -> str:
    return "".join([_Q[byte] for byte in data])


def pack(pieces: Iterable[str], first: int, rest: int) -> list[str]:
    """Join pieces in order into few strings: the first at most `first` long, others `rest`."""
    packed: list[str] = []
    current, room = "", first
    for piece in pieces:
        if current and len(current) + len(piece) > room:
            packed.append(current)
            current, room = "", rest
        current += piece
    packed.append(current)
    return packed


def _encoded(name: str, value: str) -> str:
    room = LINE - len(name) - 2
    if room < NAME // 2:  # a long field name leaves too little: fold after its colon
        room = ENCODED_WORD
    return fold(name, [" " + word for word in encoded_words(value, room)])


def _phrase(name: str) -> list[str]:
    """A display name: as it is, quoted, or encoded."""
    if name.isascii() and len(name) < NAME - 2:
        if _ATOMS.fullmatch(name):
            return [" " + name]
        # Readers decode what looks like an encoded word even in quotes.
        if "=?" not in name:
            return [f' "{_escaped(name)}"']
    return [" " + word for word in encoded_words(name, NAME, NAME)]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _safe(value: str) -> str:
    _refuse_unsafe(value)
    return value.strip(" \t")


def _refuse_unsafe(value: str) -> None:
    if _UNSAFE.search(value):
        raise ValueError("a header value must not contain CR, LF or NUL")
