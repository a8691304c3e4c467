"""Encoded words (RFC 2047) in a field that names senders, as different readers decode them."""

from __future__ import annotations

import re
from binascii import Error as BadBase64
from binascii import a2b_base64

# As the standard says, so that every reader takes it for one word.
_STRICT = re.compile(r'=\?[^?\s"()\\]++\?[bBqQ]\?[^?\s"()\\]*+\?=')
# As lenient readers take it: with blanks and quotes in it.
_LENIENT = re.compile(r"=\?([^?]*+)\?([bBqQ])\?([^?]*+)\?=")
_HEX = re.compile(rb"=([0-9A-Fa-f]{2})")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")


class UnknownEncoding(Exception):
    """The charset of an encoded word is not known."""


def without_encoded_words(value: str) -> str:
    """The value with a quote for each encoded word, which belongs to a display name only."""
    return _STRICT.sub('""', value)


def readings(value: str) -> list[str]:
    """The value as mail readers show it: with its charsets decoded, and without."""
    if "=?" not in value:
        return [value]
    by_charset, as_bytes = [], []
    position = 0
    for found in _LENIENT.finditer(value):
        between = value[position : found.start()]
        # Blanks between two encoded words are not shown.
        if position == 0 or between.strip():
            by_charset.append(between)
            as_bytes.append(between)
        data = _content(found[2], found[3])
        by_charset.append(_text(data, found[1]))
        as_bytes.append(data.decode("latin-1"))
        position = found.end()
    return ["".join([*by_charset, value[position:]]), "".join([*as_bytes, value[position:]])]


def _content(encoding: str, text: str) -> bytes:
    if encoding in "qQ":
        data = text.replace("_", " ").encode()
        return _HEX.sub(lambda found: bytes([int(found[1], 16)]), data)
    digits = _NOT_BASE64.sub("", text)
    if len(digits) % 4 == 1:  # a lone digit at the end carries no byte
        digits = digits[:-1]
    try:
        return a2b_base64(digits + "=" * (-len(digits) % 4))
    except BadBase64:
        raise UnknownEncoding from None


def _text(data: bytes, charset: str) -> str:
    try:
        return data.decode(
            charset.partition("*")[0].strip(), "replace"
        )  # RFC 2231: a language may follow
    except (LookupError, ValueError, UnicodeError):
        raise UnknownEncoding from None
