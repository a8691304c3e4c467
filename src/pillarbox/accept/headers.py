"""Reads the subject and the senders in the header section of a raw mail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.errors import HeaderParseError
from email.header import decode_header

from pillarbox.accept.checks import MAX_LINE_OCTETS
from pillarbox.accept.encoded_words import UnknownEncoding, readings, without_encoded_words
from pillarbox.errors import InvalidMail
from pillarbox.model.raw_mail import header_end, header_fields
from pillarbox.model.shown_domains import shown_domains

_SENDERS = frozenset({b"from", b"sender", b"resent-from", b"resent-sender"})
_subject = re.compile(
    rb"(?:\A|(?<=\n))subject[ \t]*+:((?:[^\r\n]++|\r\n[ \t])*+)", re.IGNORECASE
).search
_odd = re.compile(r"[\x00-\x1f\x7f]+")
_folds = re.compile(r"\r\n(?=[ \t])")
# Control characters and other line ends than CRLF: some readers of mails break lines there.
_breaks = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f\x85\u2028\u2029]").search
# A quoted string, a comment, or text that is neither. A quote within a comment has no match, nor
# has a comment within a comment: readers disagree on where such ones end.
_token = re.compile(r'"(?:[^"\\]|\\.)*+"|\((?:[^()"\\]|\\[^"])*+\)|[^"()\\]++').match
# From the @ on. Obsolete syntax allows blanks around it and around the dots of the domain.
_domain = re.compile(r"@[ \t]*([^ \t<>(),;:\"'\\@]*+)([ \t]*\.)?").findall


def subject_of(content: bytes) -> str:
    """The subject, decoded and on one line; empty if missing. The content has CRLF line ends."""
    head = content[: header_end(content)]
    # Looking for the usual spelling takes a tenth of the time of looking for any.
    usual = 0 if head.startswith(b"Subject:") else max(head.find(b"\nSubject:"), 0)
    found = _subject(head, usual)
    if found is None:
        return ""
    value = found[1][: 4 * MAX_LINE_OCTETS].decode("utf-8", "replace")
    text = _folds.sub("", value).strip()
    if "=?" in text:
        text = _decoded(text)
    return _shortened(_odd.sub(" ", text))


def sender_domains(content: bytes) -> list[str]:
    """The domains that mail readers may show as the sender's; InvalidMail if readers may disagree.

    The content has CRLF line ends. `pillarbox._sender_domains` in SQL has the same rules.
    """
    try:
        head = content[: header_end(content)].decode()
    except UnicodeDecodeError:
        raise _unclear("is neither ASCII nor UTF-8") from None
    fields = header_fields(content)
    if fields is None:
        raise _unclear("has a line that is no header field")
    if fields and _breaks(head):
        raise _unclear("contains control characters or line separators")
    domains = (
        domain
        for field in fields
        if field.name in _SENDERS
        for domain in _domains(field.value.decode())
    )
    return list(dict.fromkeys(domains))


def _domains(value: str) -> Iterator[str]:
    """The domains in the value of a field that names senders."""
    for domain, more in _domain(_addresses(value)):
        if more:
            raise _unclear("has a domain with blanks in it")
        yield domain
    try:
        texts = readings(value)
    except UnknownEncoding:
        raise _unclear("names a sender in an encoding that cannot be read") from None
    for text in texts:
        yield from shown_domains(text)


def _addresses(value: str) -> str:
    """The value without display names in quotes or encoded words, and without comments."""
    value = without_encoded_words(value)
    pieces = []
    position = 0
    while position < len(value):
        token = _token(value, position)
        if token is None:
            raise _unclear("names a sender with unbalanced or nested quotes or comments")
        position = token.end()
        text = token[0]
        if text[0] == '"':
            text = '"'
        elif text[0] == "(":
            text = " "
        pieces.append(text)
    return "".join(pieces)


def _unclear(what: str) -> InvalidMail:
    return InvalidMail(
        "bad_header",
        "raw",
        f"the header section {what}",
        "senders are restricted to some domains here: write plain header fields of RFC 5322",
    )


def _decoded(text: str) -> str:
    """Without the encoded words of RFC 2047; as it stands if they cannot be decoded."""
    try:
        return "".join(_pieces(text))
    except (LookupError, ValueError, HeaderParseError):  # an unknown charset, broken base64
        return text


def _pieces(text: str) -> Iterator[str]:
    for piece, charset in decode_header(text):
        yield piece if isinstance(piece, str) else piece.decode(charset or "utf-8", "replace")


def _shortened(text: str) -> str:
    """As much of it as a subject may have."""
    if text.isascii():
        return text[:MAX_LINE_OCTETS]
    return text.encode("utf-8", "replace")[:MAX_LINE_OCTETS].decode("utf-8", "ignore")
