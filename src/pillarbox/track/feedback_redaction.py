"""Redacts raw feedback for storage: structure and codes stay; people, subjects and links do not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

# Members that contain parts of the mail, or people, or nothing useful. The delivery says whose mail
# it is, and redacting addresses costs more than everything else.
LEFT_OUT = frozenset({
    "headers", "commonHeaders", "subject", "attachments", "useragent", "userAgent", "geolocation",
    "client-info", "envelope", "ip", "ipAddress", "source", "sourceArn", "destination", "flags",
    "campaigns", "storage", "account", "email", "recipient", "emailAddress", "smtp-id", "tags",
    "recipients",
})  # fmt: skip
# Names and words that cannot be personal; calling the redactor for them would cost much more.
_NAME = re.compile(r"[A-Za-z_:.-]{1,40}").fullmatch
_WORD = re.compile(r"[A-Za-z_-]{0,15}").fullmatch
# Levels and members of JSON that are kept; events of providers have three levels and a few dozen
# members.
MAX_DEPTH = 8
MAX_MEMBERS = 200
# Characters of one value.
MAX_LENGTH = 2000


def redacted(value: Any, redact: Callable[[str], str], depth: int = MAX_DEPTH) -> Any:
    """A JSON value without personal data."""
    if isinstance(value, str):
        return redact_text(value, redact)
    if isinstance(value, Mapping):
        return _redacted_members(value, redact, depth)
    if isinstance(value, list | tuple):
        if not depth:
            return []
        return [redacted(item, redact, depth - 1) for item in value[:MAX_MEMBERS]]
    if value is None or isinstance(value, bool | int) or _is_finite(value):
        return value
    return None


def _redacted_members(
    value: Mapping[Any, Any], redact: Callable[[str], str], depth: int
) -> dict[Any, Any]:
    members: dict[Any, Any] = {}
    if not depth:
        return members
    for name, member in list(value.items())[:MAX_MEMBERS]:
        if name in LEFT_OUT:
            continue
        if not _NAME(str(name)):
            name = redact_text(str(name), redact)
        members[name] = redacted(member, redact, depth - 1)
    return members


def redact_text(text: str, redact: Callable[[str], str]) -> str:
    """A text without personal data. Of a link only the host: the rest may grant access."""
    if _WORD(text):
        return text
    # A column cannot store NUL or half of a surrogate pair.
    text = text[:MAX_LENGTH].replace("\0", "").encode("utf-8", "replace").decode()
    if text.startswith(("http://", "https://")):
        return _origin(text)
    return redact(text)


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{(parts.hostname or '')[:255]}/"
    except ValueError:
        return "http://"


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and value - value == 0
