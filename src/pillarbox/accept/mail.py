"""A mail as an application gives it to `enqueue`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pillarbox.model.message import Attachment

__all__ = ["Attachment", "Mail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """What `pillarbox.enqueue` takes, field by field as the SQL function of that name does.

    Addresses are `a@b.example` or `Name <a@b.example>`. Without a sender or class the tenant's
    default is used. Give `text`, `html` or both, or the whole RFC 5322 message as `raw`.
    """

    sender: str | None = None
    to: str | Sequence[str] = ()
    cc: str | Sequence[str] = ()
    bcc: str | Sequence[str] = ()
    reply_to: str | Sequence[str] = ()
    subject: str | None = None
    text: str | None = field(default=None, repr=False)
    html: str | None = field(default=None, repr=False)
    raw: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    attachments: Sequence[Attachment] = ()
    class_: str | None = None
    kind: str | None = None
    priority: str = "normal"
    send_at: datetime | None = None
    expires_at: datetime | None = None
    max_attempts: int | None = None
    idempotency_key: str | None = None
    tags: str | Sequence[str] = ()
    metadata: Mapping[str, Any] | None = None
    tenant: str = "default"


def listed(value: str | Sequence[str] | None) -> Sequence[str]:
    """One string as a list of one, nothing as a list of none."""
    return (value,) if isinstance(value, str) else value or ()
