"""The bytes of a raw mail (RFC 5322): its line ends and its header section. Pure.

The checks at acceptance and the composer before sending use these functions on the same normalised
bytes. What the checks read as one line is therefore sent as one line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# A field begins at the start of a line. Blanks before the colon are obsolete syntax, which readers
# still accept.
FIELD = re.compile(rb"^([!-9;-~]+)[ \t]*:", re.MULTILINE)
_BARE_CR = re.compile(rb"\r(?!\n)")


class Field(NamedTuple):
    """A header field: its name in lower case, and its value with folded lines joined."""

    name: bytes
    value: bytes


def has_bare_cr(raw: bytes) -> bool:
    """Whether a CR stands without its LF."""
    return raw.count(b"\r") != raw.count(b"\r\n")


def with_crlf(raw: bytes) -> bytes:
    """Every LF as CRLF; the same object if that changes nothing. A bare CR stays as it is."""
    if raw.count(b"\n") == raw.count(b"\r\n"):
        return raw
    return raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def as_sent(raw: bytes) -> bytes:
    """A stored raw mail with CRLF line ends; the same object if it has them already.

    Only mails that 0.1.0 accepted may lack them. A bare CR in the header section becomes a space,
    so that text within a field cannot become a field. In the body it becomes a line end.
    """
    raw = with_crlf(raw)
    if not has_bare_cr(raw):
        return raw
    end = header_end(raw)
    return _BARE_CR.sub(b" ", raw[:end]) + _BARE_CR.sub(b"\r\n", raw[end:])


def header_end(raw: bytes) -> int:
    """Where the header section ends: after the CRLF of its last line."""
    if raw.startswith(b"\r\n"):
        return 0
    end = raw.find(b"\r\n\r\n")
    if end < 0:
        return len(raw)
    return end + 2


def header_fields(raw: bytes) -> list[Field] | None:
    """The fields of the header section in order, or None if one of its lines belongs to no field.

    A mail without a single field has no header section: the composer writes one before it.
    """
    head = raw[: header_end(raw)]
    if not FIELD.search(head):
        return []
    unfolded = head.removesuffix(b"\r\n").replace(b"\r\n ", b" ").replace(b"\r\n\t", b"\t")
    fields = []
    for line in unfolded.split(b"\r\n"):
        found = FIELD.match(line)
        if found is None:
            return None
        fields.append(Field(found[1].lower(), line[found.end() :]))
    return fields
