"""How an attempt ended for one recipient, in our own words. Only transports see wire codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    ACCEPTED = "accepted"  # the provider took responsibility
    DEFERRED = "deferred"  # not now; a later attempt can succeed
    REJECTED = "rejected"  # never; no retry
    UNKNOWN = "unknown"  # the mail may have left; nobody saw the answer


class Reason(StrEnum):
    """Why; a short list on purpose. Anything finer stands in the conversation."""

    # the recipient
    INVALID_RECIPIENT = "invalid_recipient"  # no such mailbox, bad address
    MAILBOX_FULL = "mailbox_full"
    GREYLISTED = "greylisted"
    # the mail
    TOO_BIG = "too_big"
    POLICY = "policy"  # content, reputation, spam
    BLOCKED_SENDER = "blocked_sender"
    UNSUPPORTED = "unsupported"  # needs SMTPUTF8 or the like, which the server lacks
    MALFORMED = "malformed"  # stored content cannot be made into a legal mail
    # the provider
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"  # refused, dropped, shutting down, 4xx without a better word
    TIMEOUT = "timeout"
    TLS = "tls"  # no TLS or an unverifiable certificate where one is required
    CREDENTIAL = "credential"  # authentication failed
    SUSPENDED = "suspended"  # the provider closed the account
    PAUSED = "paused"  # the account may not send for now
    QUOTA = "quota"  # the account has used up what it may send
    PROTOCOL = "protocol"  # the answer made no sense
    REFUSED = "refused"  # 5xx without a better word
    # ourselves
    LOST = "lost"  # the connection or the worker ended before the answer was seen
    EXPIRED = "expired"  # its expires_at passed while it waited
    EXHAUSTED = "exhausted"  # no attempts are left
    CONTENT_PURGED = "content_purged"  # retention dropped the content
    CANCELLED = "cancelled"
    SUPPRESSED = "suppressed"  # the recipient is on the tenant's suppression list
    NO_PROVIDER = "no_provider"  # none of its route can be used now
    BUDGET = "budget"  # what the provider may send or cost is used up for now


# What is wrong with the account, not with the mail: the provider is marked, and the mail goes
# elsewhere.
TROUBLE = frozenset({Reason.CREDENTIAL, Reason.SUSPENDED, Reason.PAUSED, Reason.QUOTA})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one recipient's attempt came to."""

    verdict: Verdict
    reason: Reason | None = None
    code: int | None = None  # the wire's status code, for people
    text: str | None = None  # the provider's words, not yet redacted
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
