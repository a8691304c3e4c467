"""What an HTTP provider answered, and what it means in our words. Pure: a response in, an outcome out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from pillarbox.model.outcome import Outcome, Reason, Verdict, accepted, deferred, rejected

# What is kept of a provider's words: enough for the longest explanation with its link, and no more.
MAX_TEXT = 1_000
# A provider may ask for patience, but no longer than our longest wait between two attempts.
MAX_RETRY_AFTER = 3_600.0

# Reasons that are the mail's or the recipient's own: no later attempt, here, can end otherwise.
FINAL = frozenset({
    Reason.INVALID_RECIPIENT, Reason.TOO_BIG, Reason.POLICY, Reason.BLOCKED_SENDER, Reason.UNSUPPORTED,
    Reason.MALFORMED, Reason.REFUSED,
})  # fmt: skip


@dataclass(slots=True)
class ProviderResponse:
    """A whole response; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Mapping[str, Any]:
        """The body's object; an empty one where it is none."""
        try:
            found = json.loads(self.body)
        except (
            ValueError,
            RecursionError,
        ):  # not JSON, or nested deeper than Python reads: its status says enough
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ResponseRule:
    """A response with one of these statuses whose words match means this reason."""

    statuses: range
    reason: Reason
    words: re.Pattern[str] | None = None

    def fits(self, status: int, words: str) -> bool:
        return status in self.statuses and (
            self.words is None or self.words.search(words) is not None
        )


def rule(status: int | range, reason: Reason, words: str | None = None) -> ResponseRule:
    """A line of a table; `words` is a pattern, without regard to case."""
    statuses = status if isinstance(status, range) else range(status, status + 1)
    return ResponseRule(statuses, reason, re.compile(words, re.IGNORECASE) if words else None)


REFUSALS = range(400, 500)
# Somebody on the way gave up waiting for the provider, which may have the mail.
GATEWAY_TIMEOUT = 504
# What every HTTP server means by a status. Stands behind each provider's own table.
COMMON = [
    rule(401, Reason.CREDENTIAL),
    rule(403, Reason.CREDENTIAL),
    rule(407, Reason.CREDENTIAL),
    rule(
        404, Reason.PROTOCOL
    ),  # not the address of this API: a matter of settings, not of the mail
    rule(405, Reason.PROTOCOL),
    rule(408, Reason.TIMEOUT),
    rule(413, Reason.TOO_BIG),
    rule(429, Reason.RATE_LIMITED),
    rule(REFUSALS, Reason.REFUSED),
    rule(range(500, 600), Reason.UNAVAILABLE),
]


def classify(
    response: ProviderResponse, words: str, table: Sequence[ResponseRule], now: float
) -> Outcome:
    """The outcome of a response that is no success: the first rule that fits decides."""
    found = next((one for one in (*table, *COMMON) if one.fits(response.status, words)), None)
    reason = (
        found.reason if found else Reason.PROTOCOL
    )  # a redirect, which we do not follow, or no HTTP at all
    text = printable(words)[:MAX_TEXT]
    if response.status == GATEWAY_TIMEOUT:
        return Outcome(Verdict.UNKNOWN, Reason.TIMEOUT, response.status, text)
    if reason in FINAL:
        return rejected(reason, response.status, text)
    return deferred(reason, response.status, text, retry_after(response.headers, now))


def success(response: ProviderResponse, message_id: object, text: str = "") -> Outcome:
    """The outcome of a 2xx; the id is whatever the provider calls the mail."""
    name = printable(message_id)[:MAX_TEXT] if isinstance(message_id, str) and message_id else None
    return accepted(response.status, printable(text)[:MAX_TEXT] or None, name)


def is_success(response: ProviderResponse) -> bool:
    return 200 <= response.status < 300


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """How long to wait, if it says so; `now` is the time in seconds since 1970."""
    if (said := headers.get("retry-after")) is not None:
        return _bounded(_seconds(said, now))
    if (reset := headers.get("x-ratelimit-reset")) is not None and headers.get(
        "x-ratelimit-remaining", "0"
    ) == "0":
        at = _number(reset)
        if at is None:
            return None
        at = at / 1000 if at > 1e11 else at  # Mailgun tells milliseconds
        return _bounded(at - now if at > 1e9 else at)
    return None


def _seconds(said: str, now: float) -> float | None:
    if (number := _number(said)) is not None:
        return number
    try:
        return parsedate_to_datetime(said).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None


def _number(said: str) -> float | None:
    return float(said) if re.fullmatch(r"\d{1,15}(\.\d{1,9})?", said.strip(), re.ASCII) else None


def _bounded(seconds: float | None) -> float | None:
    return None if seconds is None else min(max(seconds, 0.0), MAX_RETRY_AFTER)


def printable(text: object) -> str:
    """One line without control characters: they break terminals, and PostgreSQL refuses NUL."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else " " if one.isspace() else "�" for one in line)
