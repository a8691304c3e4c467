"""Converts Django's messages to mails: field by field if possible, else as raw bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from email.generator import BytesGenerator
from email.message import Message
from typing import Any

from django.core.mail import EmailMessage

from pillarbox.accept.checks import MAX_HEADERS, is_reserved
from pillarbox.accept.mail import FIELDS, Attachment, Mail

# Fields of Mail that `message.pillarbox` can set: Django has no equivalent.
OPTIONS = frozenset(field.attribute for field in FIELDS) - {
    "sender", "to", "cc", "bcc", "reply_to", "subject", "text", "html", "raw", "headers",
    "attachments",
}  # fmt: skip
# Headers of a MIME part that the composer writes itself.
_OF_PARTS = frozenset(
    {
        "content-type",
        "content-transfer-encoding",
        "content-disposition",
        "content-id",
        "mime-version",
        "x-attachment-id",
    }
)


def to_mail(message: Any, tenant: str | None = None) -> Mail:
    """The mail of a Django message; `tenant` is the default tenant."""
    options = _options(message, tenant)
    envelope: dict[str, Any] = {
        "sender": str(message.from_email),
        "to": _strings(message.to),
        "cc": _strings(message.cc),
        "bcc": _strings(message.bcc),
        "subject": str(message.subject),
    }
    bodies = _bodies(message)
    files = _attachments(message)
    headers = {str(name): str(value) for name, value in message.extra_headers.items()}
    if bodies is None or files is None or _is_special(message, headers):
        return Mail(**envelope, raw=_bytes(message), **options)
    replies = _strings(message.reply_to)
    return Mail(
        **envelope, **bodies, reply_to=replies, headers=headers, attachments=files, **options
    )


def _options(message: Any, tenant: str | None) -> dict[str, Any]:
    given: Any = getattr(message, "pillarbox", None) or {}
    if not isinstance(given, Mapping) or not given.keys() <= OPTIONS:
        raise TypeError(
            f"message.pillarbox must be a dict with some of {', '.join(sorted(OPTIONS))}"
        )
    return dict(given) if tenant is None else {"tenant": tenant, **given}


def _strings(values: Sequence[Any]) -> list[str]:
    """Addresses as strings, without empty ones; Django's may be lazy translations."""
    return [str(value) for value in values if value]


def _is_special(message: Any, headers: Mapping[str, str]) -> bool:
    """Whether the fields of a message do not describe it completely."""
    return (
        type(message).message is not EmailMessage.message  # it is signed or encrypted, for example
        or message.encoding is not None
        or message.mixed_subtype != "mixed"
        or len(headers) > MAX_HEADERS
        or any(is_reserved(name) for name in headers)
    )


def _bodies(message: Any) -> dict[str, Any] | None:
    """Text and html; None if there are other bodies."""
    bodies = {message.content_subtype: str(message.body)}
    for content, mimetype in getattr(message, "alternatives", ()):
        kind, _, subtype = mimetype.partition("/")
        if kind != "text" or subtype in bodies or not isinstance(content, str):
            return None
        bodies[subtype] = content
    if not bodies.keys() <= {"plain", "html"}:
        return None
    text: str | None = bodies.get("plain", "")
    if not text and "html" in bodies:
        text = None  # Django omits an empty body beside another
    return {"text": text, "html": bodies.get("html")}


def _attachments(message: Any) -> list[Attachment] | None:
    """The files; None if one of them is not a plain file."""
    files = []
    for attachment in message.attachments:
        file = _part(attachment) if isinstance(attachment, Message) else _file(*attachment)
        if file is None:
            return None
        files.append(file)
    return files


def _file(filename: str | None, content: Any, mimetype: str | None = None) -> Attachment | None:
    if not filename or not mimetype or mimetype.startswith(("message/", "multipart/")):
        return None
    if isinstance(content, str):
        if mimetype.startswith("text/") and "charset" not in mimetype:
            mimetype += '; charset="utf-8"'  # Django uses the charset of the mail
        return Attachment(filename, content.encode(), mimetype)
    if not isinstance(content, (bytes, bytearray)):
        return None
    return Attachment(filename, bytes(content), mimetype)


def _part(part: Message) -> Attachment | None:
    """A MIME part with a file name, and perhaps a Content-ID (an inline image), as a file."""
    filename = part.get_filename()
    content = part.get_payload(decode=True)
    names = {name.lower() for name in part.keys()}  # noqa: SIM118
    if not filename or not isinstance(content, bytes) or not names <= _OF_PARTS:
        return None
    content_id = part.get("Content-ID")
    charset = part.get_content_charset()
    content_type = part.get_content_type()
    if charset:
        content_type += f'; charset="{charset}"'
    if content_id is not None:
        content_id = str(content_id).strip().strip("<>")
    return Attachment(filename, content, content_type, content_id)


def _bytes(message: Any) -> bytes:
    """The mail as Django would send it to an SMTP server."""
    buffer = io.BytesIO()
    BytesGenerator(buffer, mangle_from_=False).flatten(message.message(), linesep="\r\n")
    return buffer.getvalue()
