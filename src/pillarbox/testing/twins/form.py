"""Forms as browsers and clients post them: multipart or URL-encoded."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

_PARAMETER = re.compile(r';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)


def read_form(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    """Names and values in order; ValueError when the body is no form."""
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    if kind == "application/x-www-form-urlencoded":
        return [
            (name, value.encode())
            for name, value in parse_qsl(body.decode(), keep_blank_values=True)
        ]
    boundary = re.search(r'boundary="?([^";]+)"?', parameters)
    if kind != "multipart/form-data" or boundary is None:
        raise ValueError("not a form")
    return [_part(part) for part in _split(body, boundary[1].encode())]


def _split(body: bytes, boundary: bytes) -> list[bytes]:
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise ValueError("the form has no end")
    return [piece.removeprefix(b"\r\n") for piece in pieces[1:-1]]


def _part(part: bytes) -> tuple[str, bytes]:
    head, separator, value = part.partition(b"\r\n\r\n")
    if not separator:
        raise ValueError("a part without a head")
    for line in head.decode("utf-8", "replace").split("\r\n"):
        if line.lower().startswith("content-disposition:"):
            names = {name.lower(): text for name, text in _PARAMETER.findall(line)}
            if "name" in names:
                return names["name"], value
    raise ValueError("a part without a name")
