"""A Message as accepted, and its Content: what the composer turns into bytes. Never edited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file in a mail. With a `content_id` it is inline: the HTML refers to it as `cid:…`."""

    filename: str
    content: bytes = field(repr=False)
    content_type: str = "application/octet-stream"
    content_id: str | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """The bodies and files of a message, or its raw bytes. Retention and erasure can drop it."""

    text: str | None = None
    html: str | None = None
    raw: bytes | None = None
    attachments: Sequence[Attachment] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """What was accepted. Addresses are as given: `a@b.example` or `Name <a@b.example>`."""

    id: UUID
    sender: str
    to: Sequence[str]
    subject: str
    created_at: datetime
    cc: Sequence[str] = ()
    reply_to: Sequence[str] = ()
    headers: Mapping[str, str] | Sequence[Sequence[str]] = field(default_factory=dict)
