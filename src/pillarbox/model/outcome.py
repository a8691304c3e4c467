"""The outcome of an attempt for one recipient. Only transports see wire codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    ACCEPTED = "accepted"  # the provider took responsibility
    DEFERRED = "deferred"  # not now; a later attempt can succeed
    REJECTED = "rejected"  # never; no retry
    UNKNOWN = "unknown"  # the mail may have been sent; the answer was not received


class Reason(StrEnum):
    """Why; a short list on purpose. The transcript has the details."""

    # the recipient
    INVALID_RECIPIENT = "invalid_recipient"  # no such mailbox, bad address
    MAILBOX_FULL = "mailbox_full"
    GREYLISTED = "greylisted"
    # the mail
    TOO_BIG = "too_big"
    POLICY = "policy"  # content, reputation, spam
    BLOCKED_SENDER = "blocked_sender"
    UNSUPPORTED = "unsupported"  # needs an extension such as SMTPUTF8 that the server lacks
    MALFORMED = "malformed"  # no valid mail can be composed from the stored content
    # the provider
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"  # refused, dropped, shutting down, other 4xx
    TIMEOUT = "timeout"
    TLS = "tls"  # no TLS or an unverifiable certificate where one is required
    CREDENTIAL = "credential"  # authentication failed
    SUSPENDED = "suspended"  # the provider closed the account
    PAUSED = "paused"  # the account may not send for now
    QUOTA = "quota"  # the account has used up its quota
    PROTOCOL = "protocol"  # the answer was not valid
    REFUSED = "refused"  # other 5xx
    # Pillarbox
    LOST = "lost"  # the connection or the worker ended before the answer was received
    EXPIRED = "expired"  # its expires_at passed while it waited
    EXHAUSTED = "exhausted"  # no attempts are left
    CONTENT_PURGED = "content_purged"  # retention dropped the content
    CANCELLED = "cancelled"
    SUPPRESSED = "suppressed"  # the recipient is on the tenant's suppression list
    NO_PROVIDER = "no_provider"  # no provider of its route can be used now
    BUDGET = "budget"  # the provider's rate or budget is used up for now


# The account is at fault, not the mail: the provider becomes unhealthy, the mail uses another.
TROUBLE = frozenset({Reason.CREDENTIAL, Reason.SUSPENDED, Reason.PAUSED, Reason.QUOTA})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt for one recipient."""

    verdict: Verdict
    reason: Reason | None = None
    code: int | None = None  # the wire's status code, for people
    text: str | None = None  # the provider's text, not yet redacted
    retry_after: float | None = None  # seconds the provider asked us to wait
    provider_message_id: str | None = None


def accepted(
    code: int | None = None, text: str | None = None, provider_message_id: str | None = None
) -> Outcome:
    return Outcome(Verdict.ACCEPTED, None, code, text, None, provider_message_id)


def deferred(
    reason: Reason,
    code: int | None = None,
    text: str | None = None,
    retry_after: float | None = None,
) -> Outcome:
    return Outcome(Verdict.DEFERRED, reason, code, text, retry_after)


def rejected(reason: Reason, code: int | None = None, text: str | None = None) -> Outcome:
    return Outcome(Verdict.REJECTED, reason, code, text)


def unknown(reason: Reason, text: str | None = None) -> Outcome:
    return Outcome(Verdict.UNKNOWN, reason, None, text)
