"""Django's e-mails as mails of ours: field by field where that says the same, else as the bytes Django makes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from email.generator import BytesGenerator
from email.message import Message
from typing import Any

from django.core.mail import EmailMessage

from pillarbox.accept.checks import MAX_HEADERS, is_reserved
from pillarbox.accept.mail import Attachment, Mail

# What `message.pillarbox` can say: the fields of Mail for which Django has no place.
OPTIONS = frozenset(
    {
        "class_",
        "kind",
        "priority",
        "send_at",
        "expires_at",
        "max_attempts",
        "idempotency_key",
        "tags",
        "metadata",
        "tenant",
    }
)
# Headers of a MIME part that our composer writes itself.
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
    """The mail that a message of Django's becomes; `tenant` is whose, unless the message says."""
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
    """Addresses as strings; Django leaves out empty ones, and translates lazily."""
    return [str(value) for value in values if value]


def _is_special(message: Any, headers: Mapping[str, str]) -> bool:
    """Whether a message means more than its fields say."""
    return (
        type(message).message is not EmailMessage.message  # somebody signs or encrypts it, say
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
    # Django leaves an empty body out beside another.
    text = bodies.get("plain") or (None if "html" in bodies else "")
    return {"text": text, "html": bodies.get("html")}


def _attachments(message: Any) -> list[Attachment] | None:
    """The files; None if one of them is more than a file."""
    found = list(_files(message.attachments))
    return None if None in found else found  # type: ignore[return-value]


def _files(attachments: Sequence[Any]) -> Iterator[Attachment | None]:
    for one in attachments:
        yield _part(one) if isinstance(one, Message) else _file(*one)


def _file(filename: str | None, content: Any, mimetype: str | None = None) -> Attachment | None:
    if not filename or not mimetype or mimetype.startswith(("message/", "multipart/")):
        return None
    if isinstance(content, str):
        # What is text has no charset of its own here: Django writes it in that of the mail.
        is_text = mimetype.startswith("text/") and "charset" not in mimetype
        return Attachment(
            filename, content.encode(), mimetype + '; charset="utf-8"' if is_text else mimetype
        )
    return (
        Attachment(filename, bytes(content), mimetype)
        if isinstance(content, (bytes, bytearray))
        else None
    )


def _part(part: Message) -> Attachment | None:
    """A MIME part that is a file with a name, and perhaps with a Content-ID: an inline image."""
    filename = part.get_filename()
    content = part.get_payload(decode=True)
    if (
        not filename
        or not isinstance(content, bytes)
        or not {name.lower() for name in part.keys()} <= _OF_PARTS  # noqa: SIM118
    ):
        return None
    content_id = part.get("Content-ID")
    charset = part.get_content_charset()
    content_type = part.get_content_type() + (f'; charset="{charset}"' if charset else "")
    return Attachment(
        filename, content, content_type, content_id and str(content_id).strip().strip("<>")
    )


def _bytes(message: Any) -> bytes:
    """The mail as Django would give it to an SMTP server."""
    buffer = io.BytesIO()
    BytesGenerator(buffer, mangle_from_=False).flatten(message.message(), linesep="\r\n")
    return buffer.getvalue()
