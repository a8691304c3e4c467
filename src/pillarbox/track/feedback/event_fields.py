"""Reads the fields that all feedback has: times, ids, reasons."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pillarbox.errors import Forged
from pillarbox.model.delivery import parse_delivery_id
from pillarbox.model.outcome import Reason
from pillarbox.track.feedback.base import FeedbackKind

# Seconds that a provider's clock may be ahead of ours.
CLOCK_TOLERANCE = 300.0
# Characters of a provider's text that are kept; a server's whole reply fits.
MAX_TEXT = 1000
# Characters of a provider's id; real ones have up to about a hundred.
MAX_ID = 255
# Delivery numbers are smallint.
MAX_RECIPIENT_NUMBER = 2**15 - 1
# Version 7, with or without hyphens, at the beginning or after the bracket of a Message-ID.
_OUR_ID = re.compile(
    r"(?:^|[<\s])"
    r"([0-9a-f]{8}-?[0-9a-f]{4}-?7[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12})"
    r"(?=[@.\s>]|$)",
    re.IGNORECASE,
)
_STATUS = re.compile(r"(?<![0-9.])([245])\.([0-9]{1,3})\.([0-9]{1,3})(?![0-9.])")
# By subject and detail of an enhanced status code (RFC 3463), then by subject alone.
_REASONS = {
    "1.7": Reason.BLOCKED_SENDER,
    "1.8": Reason.BLOCKED_SENDER,
    "2.1": Reason.INVALID_RECIPIENT,
    "2.2": Reason.MAILBOX_FULL,
    "2.3": Reason.TOO_BIG,
    "3.4": Reason.TOO_BIG,
    "4.7": Reason.TIMEOUT,
}
_SUBJECTS = {
    "1": Reason.INVALID_RECIPIENT,
    "3": Reason.UNAVAILABLE,
    "4": Reason.UNAVAILABLE,
    "7": Reason.POLICY,
}
# About the sender although the subject is the address.
_SENDER_DETAILS = ("7", "8")

# These events have a reason and a text.
UNDELIVERED = frozenset({FeedbackKind.DROPPED, FeedbackKind.BOUNCED, FeedbackKind.DEFERRED})


def part(payload: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object within an object; an empty one where there is none."""
    value = payload.get(name)
    if isinstance(value, dict):
        return value
    return {}


def check_time(timestamp: float, now: float, window: float) -> None:
    """Raise Forged if the timestamp of a request is too old, or in the future."""
    if not now - window <= timestamp <= now + CLOCK_TOLERANCE:
        raise Forged("stale", "the timestamp is too old or in the future")


def moment(timestamp: object) -> datetime:
    """A time in seconds since 1970; ValueError if it is not one."""
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float | str):
        raise ValueError("not a time")
    try:
        return datetime.fromtimestamp(float(timestamp), UTC)
    except (OverflowError, OSError):
        raise ValueError("not a time") from None


def message_of(*texts: object) -> UUID | None:
    """Our message id in the first text that has one, alone or in a Message-ID."""
    for text in texts:
        if not isinstance(text, str):
            continue
        found = _OUR_ID.search(text[:1000])
        if found:
            return UUID(found[1])
    return None


def delivery_of(text: object) -> tuple[UUID | None, int | None]:
    """Message id and recipient number of our delivery id; (None, None) if it is not one."""
    if not isinstance(text, str):
        return None, None
    try:
        message_id, number = parse_delivery_id(text)
    except ValueError:
        return None, None
    if number is not None and number > MAX_RECIPIENT_NUMBER:
        return None, None
    return message_id, number


def text_of(*parts: object) -> str | None:
    """A provider's text on one line of bounded length."""
    words = " ".join(str(part) for part in parts if isinstance(part, str | int) and part != "")
    return " ".join(words[: 4 * MAX_TEXT].split())[:MAX_TEXT] or None


def id_of(value: object) -> str | None:
    """A provider's id; None if the value cannot be one."""
    if isinstance(value, str) and 0 < len(value) <= MAX_ID and value.isprintable():
        return value
    return None


def _status_of(texts: tuple[object, ...]) -> re.Match[str] | None:
    """The first enhanced status code in the texts."""
    for text in texts:
        found = _STATUS.search(text[:MAX_TEXT]) if isinstance(text, str) else None
        if found:
            return found
    return None


def reason_of(*texts: object) -> Reason:
    """Why a mail did not arrive, by the first enhanced status code in the texts."""
    status = _status_of(texts)
    if status is None:
        return Reason.REFUSED
    _, subject, detail = status.groups()
    return _REASONS.get(f"{subject}.{detail}") or _SUBJECTS.get(subject, Reason.REFUSED)


def is_hard(*texts: object) -> bool | None:
    """Whether the first enhanced status code means an unknown address; None without a code."""
    status = _status_of(texts)
    if status is None:
        return None
    code_class, subject, detail = status.groups()
    if code_class != "5":
        return False
    if subject == "1":
        return detail not in _SENDER_DETAILS
    return (subject, detail) == ("2", "1")
