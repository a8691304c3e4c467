"""Masks what secret classes hide: the subject and the content of their mails.

The functions of this room that read messages for people build their results with these two. What
is sent is read elsewhere: by claiming, and by `messages.for_resending`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pillarbox.model.message import Content
from pillarbox.model.secret import MASK

if TYPE_CHECKING:
    import asyncpg

MASKED_BODY = f"{MASK} (masked: the class of this mail is secret)"
_subject_field = re.compile(rb"^subject:.*(\n[ \t].*)*", re.IGNORECASE | re.MULTILINE)


def masked_values(row: asyncpg.Record) -> dict[str, Any]:
    """The columns of a message's row, which include `subject` and `secret`."""
    values: dict[str, Any] = dict(row)
    if values["secret"]:
        values["subject"] = MASK
    return values


def masked_content(content: Content) -> Content:
    """The shown content of a secret class: of a raw mail, its header without the subject."""
    if content.raw is not None:
        head = content.raw.replace(b"\r\n", b"\n").partition(b"\n\n")[0]
        head = _subject_field.sub(b"Subject: " + MASK.encode(), head)
        return Content(raw=head + b"\n\n" + MASKED_BODY.encode() + b"\n")
    text = MASKED_BODY if content.text else content.text
    html = MASKED_BODY if content.html else content.html
    return replace(content, text=text, html=html, attachments=())
