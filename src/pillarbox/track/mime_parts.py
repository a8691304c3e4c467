"""The parts of a mail that nobody vouches for: found in one pass, bounded in size, depth and number.

Not the standard library's parser: that one builds everything it is given, however deep.
"""

from __future__ import annotations

import binascii
import quopri
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# Octets of a whole report: it may bring the mail it is about.
LARGEST = 16 * 2**20
# Parts and levels; a report has three parts, the first perhaps with two of its own.
MOST_PARTS = 50
DEEPEST = 5
# Octets of a header section, or of fields, that are looked at.
MOST_HEAD = 64 * 1024

_END_OF_HEAD = re.compile(rb"\r?\n[ \t]*\r?\n|\A\r?\n")
_UNFOLD = re.compile(r"\r?\n[ \t]+")
_FIELD = re.compile(r"^([!-9;-~]{1,80})[ \t]{0,9}:(.*)$", re.MULTILINE)
_BOUNDARY = re.compile(r'boundary[ \t]*=[ \t]*(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)

Fields = Mapping[str, list[str]]


class MimePart(NamedTuple):
    """A part of a mail, or the whole of it: its type, its fields by name in lower case, and its bytes, decoded."""

    kind: str
    fields: Fields
    body: bytes

    def first(self, *names: str) -> str | None:
        """The value of the first of these fields that is there."""
        return next((self.fields[name][0] for name in names if name in self.fields), None)


def parts_of(mail: bytes) -> Iterator[MimePart]:
    """The mail itself, then all its parts in order; ValueError if it is too large. What is too deep is left out."""
    if len(mail) > LARGEST:
        raise ValueError("the report is too large")
    waiting = [(mail, 0)]
    for _ in range(MOST_PARTS):
        if not waiting:
            return
        content, depth = waiting.pop()
        part = _part(content)
        yield part
        if depth < DEEPEST and part.kind.startswith("multipart/"):
            waiting += [(one, depth + 1) for one in reversed(list(_split(part)))]


def fields_of(text: bytes) -> Fields:
    """Header fields, or such as stand in a report: by name in lower case, unfolded; what is none is left out."""
    plain = _UNFOLD.sub(" ", decoded(text[:MOST_HEAD]))
    found: dict[str, list[str]] = {}
    for name, value in _FIELD.findall(plain):
        found.setdefault(name.lower(), []).append(value.strip())
    return found


def decoded(text: bytes) -> str:
    """Text of a mail, whatever its bytes are."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("latin-1")


def _part(content: bytes) -> MimePart:
    end = _END_OF_HEAD.search(content[: 2 * MOST_HEAD])
    head, body = (
        (content[: end.start()], content[end.end() :]) if end else (content[:MOST_HEAD], b"")
    )
    fields = fields_of(head)
    kind = fields.get("content-type", ["text/plain"])[0].partition(";")[0].strip().lower()
    how = fields.get("content-transfer-encoding", [""])[0].strip().lower()
    return MimePart(kind, fields, body if kind.startswith("multipart/") else _plain(body, how))


def _plain(body: bytes, how: str) -> bytes:
    if how == "base64":
        try:
            return binascii.a2b_base64(body)
        except binascii.Error:
            return b""
    return quopri.decodestring(body) if how == "quoted-printable" else body


def _split(part: MimePart) -> Iterator[bytes]:
    """What stands between a multipart's boundaries; the last may lack its end."""
    found = _BOUNDARY.search(part.fields["content-type"][0])
    if found is None:
        return
    mark = b"\n--" + (found[1] or found[2]).encode()
    pieces = (b"\n" + part.body).split(mark, MOST_PARTS + 1)
    for piece in pieces[1:]:
        if piece.startswith(b"--"):
            return
        yield piece.partition(b"\n")[2]
