"""A mail that a twin accepted."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.header import decode_header, make_header
from email.message import EmailMessage
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# Headers are searched only so far into a mail: far more than real ones have.
_MAX_HEAD = 65_536
_FOLD = re.compile(r"\r?\n(?=[ \t])")


@dataclass(frozen=True, slots=True)
class TwinMail:
    """What came, as the service understood it."""

    id: str  # the service's own
    sender: str  # the bare address
    recipients: tuple[str, ...]  # bare addresses, copies and blind copies included
    subject: str
    mime: bytes | None = field(repr=False)  # what was sent as MIME, byte for byte
    body: dict[str, Any] | None = field(repr=False)  # what was sent as JSON; a form's fields
    message_uuid: str | None  # Pillarbox's id of the message
    headers: Mapping[str, str] = field(repr=False)  # of the HTTP request, names in lower case
    variables: Mapping[str, str] = field(
        default_factory=dict
    )  # custom arguments, tags, user variables
    personal: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict
    )  # those of one recipient, by address
    at: float = field(default_factory=time.time)

    @property
    def message(self) -> EmailMessage:
        """The MIME, parsed."""
        parsed = message_from_bytes(self.mime or b"", policy=policy.default)
        assert isinstance(parsed, EmailMessage)
        return parsed


def mime_header(mime: bytes, name: str) -> str | None:
    """A header of a mail, decoded; quicker than parsing it all."""
    end = mime.find(b"\r\n\r\n", 0, _MAX_HEAD)
    if end < 0:
        end = mime.find(b"\n\n", 0, _MAX_HEAD)
    if end < 0:
        end = _MAX_HEAD
    found = _pattern(name).search(mime, 0, end)
    if found is None:
        return None
    text = found[1].decode("utf-8", "replace").strip()
    if "\n" in text:
        text = _FOLD.sub("", text)
    if "=?" not in text:
        return text
    return str(make_header(decode_header(text)))


@cache
def _pattern(name: str) -> re.Pattern[bytes]:
    return re.compile(
        rb"^%b:((?:[^\n]|\n[ \t])*)" % re.escape(name.encode()), re.IGNORECASE | re.MULTILINE
    )


class Record(NamedTuple):
    """A line of a twin's file."""

    at: float  # time.monotonic() of the twin's machine
    id: str
    message_uuid: str
    recipients: list[str]


class Recorder:
    """Appends a line per accepted mail to a file, before it is answered."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, mail: TwinMail) -> None:
        recipients = " ".join(mail.recipients)
        fields = (f"{time.monotonic():.6f}", mail.id, mail.message_uuid or "", recipients)
        os.write(self._file, ("\t".join(fields) + "\n").encode())

    def close(self) -> None:
        os.close(self._file)


def read_records(path: str | Path) -> list[Record]:
    """What a recorder wrote; a last line that a kill cut off is left out."""
    lines = Path(path).read_text("utf-8").split("\n")[:-1]
    rows = (line.split("\t") for line in lines)
    return [
        Record(float(at), number, uuid, recipients.split()) for at, number, uuid, recipients in rows
    ]
