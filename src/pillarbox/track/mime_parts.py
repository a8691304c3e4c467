"""Finds the parts of an untrusted mail in one pass, bounded in size, depth and number.

The standard library's parser has no bounds: it builds everything, however deep.
"""

from __future__ import annotations

import binascii
import quopri
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# Bytes of a whole report: it may contain the returned mail.
LARGEST = 16 * 2**20
# Parts and levels: a report has three parts, the first perhaps with two of its own.
MAX_PARTS = 50
MAX_DEPTH = 5
# Bytes of a header section, or of fields, that are read.
MAX_HEAD = 64 * 1024

_END_OF_HEAD = re.compile(rb"\r?\n[ \t]*\r?\n|\A\r?\n")
_UNFOLD = re.compile(r"\r?\n[ \t]+")
_FIELD = re.compile(r"^([!-9;-~]{1,80})[ \t]{0,9}:(.*)$", re.MULTILINE)
_BOUNDARY = re.compile(r'boundary[ \t]*=[ \t]*(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)

Fields = Mapping[str, list[str]]


class MimePart(NamedTuple):
    """A part of a mail, or the mail: its type, its fields by lower-case name, its decoded body."""

    kind: str
    fields: Fields
    body: bytes

    def first(self, *names: str) -> str | None:
        """The value of the first of these fields that exists."""
        return next((self.fields[name][0] for name in names if name in self.fields), None)


def parts_of(mail: bytes) -> Iterator[MimePart]:
    """The mail itself, then its parts in order; ValueError if it is too large.

    Parts beyond MAX_PARTS and MAX_DEPTH are left out.
    """
    if len(mail) > LARGEST:
        raise ValueError("the report is too large")
    waiting = [(mail, 0)]
    for _ in range(MAX_PARTS):
        if not waiting:
            return
        content, depth = waiting.pop()
        part = _part(content)
        yield part
        if depth < MAX_DEPTH and part.kind.startswith("multipart/"):
            children = [(child, depth + 1) for child in _split(part)]
            waiting += reversed(children)


def fields_of(text: bytes) -> Fields:
    """Fields of a header or report by lower-case name, unfolded; other lines are skipped."""
    plain = _UNFOLD.sub(" ", decoded(text[:MAX_HEAD]))
    found: dict[str, list[str]] = {}
    for name, value in _FIELD.findall(plain):
        found.setdefault(name.lower(), []).append(value.strip())
    return found


def decoded(text: bytes) -> str:
    """The text of bytes in UTF-8, or else in Latin-1."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("latin-1")


def _part(content: bytes) -> MimePart:
    end = _END_OF_HEAD.search(content[: 2 * MAX_HEAD])
    head, body = content[:MAX_HEAD], b""
    if end:
        head, body = content[: end.start()], content[end.end() :]
    fields = fields_of(head)
    kind = fields.get("content-type", ["text/plain"])[0].partition(";")[0].strip().lower()
    encoding = fields.get("content-transfer-encoding", [""])[0].strip().lower()
    if not kind.startswith("multipart/"):
        body = _decode_body(body, encoding)
    return MimePart(kind, fields, body)


def _decode_body(body: bytes, encoding: str) -> bytes:
    if encoding == "base64":
        try:
            return binascii.a2b_base64(body)
        except binascii.Error:
            return b""
    if encoding == "quoted-printable":
        return quopri.decodestring(body)
    return body


def _split(part: MimePart) -> Iterator[bytes]:
    """The contents between the boundaries of a multipart; the last one may lack its end."""
    found = _BOUNDARY.search(part.fields["content-type"][0])
    if found is None:
        return
    mark = b"\n--" + (found[1] or found[2]).encode()
    pieces = (b"\n" + part.body).split(mark, MAX_PARTS + 1)
    for piece in pieces[1:]:
        if piece.startswith(b"--"):
            return
        yield piece.partition(b"\n")[2]
