"""What all feedback is made of: times, ids, reasons, in whatever words a provider puts them."""

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
AHEAD = 300.0
# Letters of what a provider says that are kept; a server's whole answer fits.
LONGEST_TEXT = 1000
# Letters of an id of a provider's; theirs have up to about a hundred.
LONGEST_ID = 255
# Version 7, with or without hyphens, at the beginning or after the bracket of a Message-ID.
_OUR_ID = re.compile(
    r"(?:^|[<\s])([0-9a-f]{8}-?[0-9a-f]{4}-?7[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12})(?=[@.\s>]|$)",
    re.IGNORECASE,
)
_STATUS = re.compile(r"(?<![0-9.])([245])\.([0-9]{1,3})\.([0-9]{1,3})(?![0-9.])")
# By subject and detail of an enhanced status code (RFC 3463), then by subject alone.
_REASONS = {
    "1.8": Reason.BLOCKED_SENDER, "1.7": Reason.BLOCKED_SENDER, "2.2": Reason.MAILBOX_FULL, "2.3": Reason.TOO_BIG,
    "3.4": Reason.TOO_BIG, "4.7": Reason.TIMEOUT, "2.1": Reason.INVALID_RECIPIENT,
}  # fmt: skip
_SUBJECTS = {
    "1": Reason.INVALID_RECIPIENT,
    "3": Reason.UNAVAILABLE,
    "4": Reason.UNAVAILABLE,
    "7": Reason.POLICY,
}


# What did not arrive has a reason, and words for it.
UNHAPPY = frozenset({FeedbackKind.DROPPED, FeedbackKind.BOUNCED, FeedbackKind.DEFERRED})


def part(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object within an object; an empty one where there is none."""
    found = told.get(name)
    return found if isinstance(found, dict) else {}


def check_time(stamp: float, now: float, window: float) -> None:
    """Raise Forged if a request's time stamp is too old, or not yet."""
    if not now - window <= stamp <= now + AHEAD:
        raise Forged("stale", "the time stamp is not of now")


def moment(stamp: object) -> datetime:
    """A time in seconds since 1970; ValueError if it is none."""
    if isinstance(stamp, bool) or not isinstance(stamp, int | float | str):
        raise ValueError("not a time")
    try:
        return datetime.fromtimestamp(float(stamp), UTC)
    except (OverflowError, OSError):
        raise ValueError("not a time") from None


def message_of(*texts: object) -> UUID | None:
    """Our id of a message in the first text that has one: as it is, or as the local part of a Message-ID."""
    for text in texts:
        found = _OUR_ID.search(text[:1000]) if isinstance(text, str) else None
        if found:
            return UUID(found[1])
    return None


def delivery_of(text: object) -> tuple[UUID | None, int | None]:
    """Message and number of our id of a delivery; nothing if it is none."""
    try:
        message_id, n = parse_delivery_id(text) if isinstance(text, str) else (None, None)
    except ValueError:
        return None, None
    return (message_id, n) if n is None or n < 2**15 else (None, None)


def text_of(*parts: object) -> str | None:
    """What a provider says, in one line of bounded length."""
    words = " ".join(str(part) for part in parts if isinstance(part, str | int) and part != "")
    return " ".join(words[: 4 * LONGEST_TEXT].split())[:LONGEST_TEXT] or None


def id_of(value: object) -> str | None:
    """An id of a provider's, if it is one."""
    return (
        value
        if isinstance(value, str) and 0 < len(value) <= LONGEST_ID and value.isprintable()
        else None
    )


def reason_of(*texts: object) -> Reason:
    """Why a mail did not arrive, from the first enhanced status code in what was said."""
    for text in texts:
        found = _STATUS.search(text[:LONGEST_TEXT]) if isinstance(text, str) else None
        if found:
            _, subject, detail = found.groups()
            return _REASONS.get(f"{subject}.{detail}") or _SUBJECTS.get(subject, Reason.REFUSED)
    return Reason.REFUSED


def is_hard(*texts: object) -> bool | None:
    """Whether the first enhanced status code says that the address does not exist; None without a code."""
    for text in texts:
        found = _STATUS.search(text[:LONGEST_TEXT]) if isinstance(text, str) else None
        if found:
            kind, subject, detail = found.groups()
            return kind == "5" and (
                (subject == "1" and detail not in ("7", "8")) or (subject, detail) == ("2", "1")
            )
    return None
