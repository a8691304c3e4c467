"""What a provider said, fit to be kept: structure and codes stay; people, subjects and links do not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

# Members that hold parts of the mail, or people, and nothing else; or nothing that anybody will ask
# for. Whose mail it is the delivery tells, and redacting addresses costs more than all the rest.
LEFT_OUT = frozenset({
    "headers", "commonHeaders", "subject", "attachments", "useragent", "userAgent", "geolocation", "client-info",
    "envelope", "ip", "ipAddress", "source", "sourceArn", "destination", "flags", "campaigns", "storage", "account",
    "email", "recipient", "emailAddress", "smtp-id", "tags", "recipients",
})  # fmt: skip
# Names and words that can be nobody's, whatever the redactor thinks: it costs much more to ask it.
_NAME = re.compile(r"[A-Za-z_:.-]{1,40}").fullmatch
_WORD = re.compile(r"[A-Za-z_-]{0,15}").fullmatch
# Levels and members of JSON that are kept; providers' events have three levels and a few dozen
# members.
DEEPEST = 8
MOST = 200
# Letters of one value.
LONGEST = 2000


def redacted(value: Any, redact: Callable[[str], str], depth: int = DEEPEST) -> Any:
    """A JSON value without what must not be kept."""
    if isinstance(value, str):
        return redact_text(value, redact)
    if isinstance(value, Mapping):
        members = list(value.items())[:MOST] if depth else ()
        return {
            (name if _NAME(str(name)) else redact_text(str(name), redact)): redacted(
                one, redact, depth - 1
            )
            for name, one in members
            if name not in LEFT_OUT
        }
    if isinstance(value, list | tuple):
        return [redacted(one, redact, depth - 1) for one in value[:MOST]] if depth else []
    return value if value is None or isinstance(value, bool | int) or _is_finite(value) else None


def redact_text(text: str, redact: Callable[[str], str]) -> str:
    """A text without people. Of a link only its host: the rest may be a key to somebody's account."""
    if _WORD(text):
        return text
    text = (
        text[:LONGEST].replace("\0", "").encode("utf-8", "replace").decode()
    )  # half a letter fits into no column
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
