"""Parses the commands and content of an SMTP client, and finds violations."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple

# RFC 5321 4.5.3.1.6: a text line has 1000 octets at most, its CRLF included.
MAX_TEXT_LINE = 998

_PATH = re.compile(
    r'(?P<gap> *)<(?P<address>(?:"(?:\\.|[^"\\])*"|[^">])*)>(?: +(?P<parameters>.*))?$'
)
_STUFFED = re.compile(rb"(^|\r\n)\.")
_LONE_DOT = re.compile(rb"(?:^|\r\n)\.[^.]")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_BARE_CR = re.compile(rb"\r(?!\n)")
_LONG_LINE = re.compile(rb"[^\r\n]{%d}" % (MAX_TEXT_LINE + 1))
_EIGHT_BIT = re.compile(rb"[\x80-\xff]")


class Path(NamedTuple):
    """The argument of MAIL or RCPT."""

    address: str
    parameters: dict[str, str]
    spaced: bool  # a space after the colon, which RFC 5321 forbids


def parse_path(argument: str, keyword: str) -> Path | None:
    """`FROM:<a@example.com> SIZE=10` → its parts, or None when it is not that."""
    prefix, colon, rest = argument.partition(":")
    found = _PATH.match(rest)
    if prefix.upper() != keyword or not colon or found is None:
        return None
    words = (found["parameters"] or "").split()
    pairs = (word.partition("=") for word in words)
    return Path(
        found["address"], {key.upper(): value for key, _, value in pairs}, bool(found["gap"])
    )


def unstuff(data: bytes) -> bytes:
    """Take the transparency dots away (RFC 5321 4.5.2)."""
    return _STUFFED.sub(rb"\1", data)


def content_violations(
    data: bytes,
    *,
    eight_bit: bool,
    utf8: bool,
) -> Iterator[str]:
    """What RFC 5321 forbids in data as it came over the wire, dots still stuffed."""
    if _BARE_LF.search(data):
        yield "bare LF in data"
    if _BARE_CR.search(data):
        yield "bare CR in data"
    if _LONE_DOT.search(data):
        yield "a line begins with a dot that was not doubled"
    if _LONG_LINE.search(unstuff(data)):
        yield f"a line in data is longer than {MAX_TEXT_LINE} bytes"
    if not eight_bit and _EIGHT_BIT.search(data):
        yield "8-bit data without BODY=8BITMIME"
    if not utf8 and _EIGHT_BIT.search(data.partition(b"\r\n\r\n")[0]):
        yield "8-bit header without SMTPUTF8"


def decode_base64(text: str) -> str | None:
    """What a line of an AUTH exchange says, or None when it is not base64 of UTF-8."""
    try:
        return base64.b64decode("" if text == "=" else text, validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def encode_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
