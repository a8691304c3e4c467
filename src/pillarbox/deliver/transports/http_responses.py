"""Classifies the responses of HTTP providers. Pure: a response in, an outcome out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from pillarbox.model.outcome import Outcome, Reason, Verdict, accepted, deferred, rejected

# What is kept of a provider's text: enough for the longest explanation with its link.
MAX_TEXT = 1_000
# A provider may ask us to wait, but no longer than our longest wait between two attempts.
MAX_RETRY_AFTER = 3_600.0
# A reset time above the first is in milliseconds (Mailgun), above the second in seconds since 1970;
# below, it is a number of seconds from now.
MILLISECONDS, SINCE_1970 = 1e11, 1e9

# Faults of the mail or the recipient: a later attempt through this provider ends the same.
FINAL = frozenset(
    {
        Reason.INVALID_RECIPIENT,
        Reason.TOO_BIG,
        Reason.POLICY,
        Reason.BLOCKED_SENDER,
        Reason.UNSUPPORTED,
        Reason.MALFORMED,
        Reason.REFUSED,
    }
)
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,9})?", re.ASCII)


@dataclass(slots=True)
class ProviderResponse:
    """A whole response; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Mapping[str, Any]:
        """The object in the body; an empty one if the body is not one."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):  # not JSON, or nested too deep
            return {}
        if isinstance(value, dict):
            return value
        return {}

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ResponseRule:
    """A response with one of these statuses whose text matches has this reason."""

    statuses: range
    reason: Reason
    pattern: re.Pattern[str] | None = None

    def matches(self, status: int, text: str) -> bool:
        if status not in self.statuses:
            return False
        return self.pattern is None or self.pattern.search(text) is not None


def rule(status: int | range, reason: Reason, pattern: str | None = None) -> ResponseRule:
    """A row of a provider's table; the pattern ignores case."""
    if isinstance(status, int):
        status = range(status, status + 1)
    if pattern is None:
        return ResponseRule(status, reason)
    return ResponseRule(status, reason, re.compile(pattern, re.IGNORECASE))


REFUSALS = range(400, 500)
# A gateway stopped waiting for the provider, which may have the mail.
GATEWAY_TIMEOUT = 504
# What every HTTP server means by a status. Follows each provider's own table.
COMMON = [
    rule(401, Reason.CREDENTIAL),
    rule(403, Reason.CREDENTIAL),
    rule(407, Reason.CREDENTIAL),
    rule(404, Reason.PROTOCOL),  # not the address of this API: the settings are wrong, not the mail
    rule(405, Reason.PROTOCOL),
    rule(408, Reason.TIMEOUT),
    rule(413, Reason.TOO_BIG),
    rule(429, Reason.RATE_LIMITED),
    rule(REFUSALS, Reason.REFUSED),
    rule(range(500, 600), Reason.UNAVAILABLE),
]


def classify(
    response: ProviderResponse, text: str, table: Sequence[ResponseRule], now: float
) -> Outcome:
    """The outcome of a response that is not a success: the first rule that matches decides."""
    reason = _reason(response.status, text, table)
    text = printable(text)[:MAX_TEXT]
    if response.status == GATEWAY_TIMEOUT:
        return Outcome(Verdict.UNKNOWN, Reason.TIMEOUT, response.status, text)
    if reason in FINAL:
        return rejected(reason, response.status, text)
    return deferred(reason, response.status, text, retry_after(response.headers, now))


def _reason(status: int, text: str, table: Sequence[ResponseRule]) -> Reason:
    for candidate in (*table, *COMMON):
        if candidate.matches(status, text):
            return candidate.reason
    return Reason.PROTOCOL  # a redirect, which is not followed, or not HTTP


def success(response: ProviderResponse, message_id: object, text: str = "") -> Outcome:
    """The outcome of a 2xx; `message_id` is the provider's id of the mail."""
    kept_id = None
    if isinstance(message_id, str) and message_id:
        kept_id = printable(message_id)[:MAX_TEXT]
    return accepted(response.status, printable(text)[:MAX_TEXT] or None, kept_id)


def is_success(response: ProviderResponse) -> bool:
    return 200 <= response.status < 300


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """How many seconds to wait, if the headers say so; `now` is in seconds since 1970."""
    seconds = None
    if "retry-after" in headers:
        seconds = _seconds(headers["retry-after"], now)
    elif headers.get("x-ratelimit-remaining", "0") == "0":
        seconds = _until_reset(headers.get("x-ratelimit-reset", ""), now)
    if seconds is None:
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def _seconds(value: str, now: float) -> float | None:
    """The header Retry-After: a number of seconds, or a date."""
    number = _number(value)
    if number is not None:
        return number
    try:
        return parsedate_to_datetime(value).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None


def _until_reset(value: str, now: float) -> float | None:
    reset = _number(value)
    if reset is None:
        return None
    if reset > MILLISECONDS:
        reset /= 1000
    if reset > SINCE_1970:
        return reset - now
    return reset


def _number(value: str) -> float | None:
    value = value.strip()
    if not _NUMBER.fullmatch(value):
        return None
    return float(value)


def printable(text: object) -> str:
    """One line without control characters: they break terminals, and PostgreSQL refuses NUL."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(_printable_character(character) for character in line)


def _printable_character(character: str) -> str:
    if character.isprintable():
        return character
    if character.isspace():
        return " "
    return "�"
