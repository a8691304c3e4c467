"""Mailgun's webhooks: one event each. The signature covers a token, not the body: a token is good for one body.

https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/securing-webhooks
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pillarbox.errors import Forged
from pillarbox.model.outcome import Reason
from pillarbox.track.feedback.base import Heard, Kind, Once, Posted
from pillarbox.track.feedback.words import (
    AHEAD,
    UNHAPPY,
    check_time,
    id_of,
    message_of,
    moment,
    part,
    reason_of,
    text_of,
)

if TYPE_CHECKING:
    from pillarbox.model.provider import Provider

KINDS = {
    "accepted": Kind.ACCEPTED,
    "delivered": Kind.DELIVERED,
    "rejected": Kind.DROPPED,
    "opened": Kind.OPENED,
    "clicked": Kind.CLICKED,
    "unsubscribed": Kind.UNSUBSCRIBED,
    "complained": Kind.COMPLAINED,
}
FAILURES = {"permanent": Kind.BOUNCED, "temporary": Kind.DEFERRED}
HARD = {Kind.COMPLAINED, Kind.UNSUBSCRIBED}
# Why Mailgun failed a mail for good, where that is about the address itself.
HARD_REASONS = {"bounce"}
# How the reason begins where Mailgun's own list has the address, and nothing was tried.
SUPPRESSED = "suppress-"


class MailgunFeedback:
    """Needs the webhook secret: the signing key that Mailgun shows in its settings of webhooks."""

    def __init__(self, provider: Provider, window: float) -> None:
        self._secret = provider.webhook_secret
        self._window = window

    async def verify(self, posted: Posted, now: float) -> Once:
        if self._secret is None:
            raise Forged("no_key", "the provider has no webhook secret to verify feedback with")
        stamp, token, signature = _signature(posted.body)
        right = hmac.digest(self._secret.reveal().encode(), (stamp + token).encode(), "sha256").hex()
        if not hmac.compare_digest(right.encode(), signature.lower().encode()):
            raise Forged("signature", "the signature is wrong")
        check_time(float(stamp), now, self._window)
        return Once(token, hashlib.sha256(posted.body).digest(), moment(float(stamp) + self._window + AHEAD))

    def parse(self, posted: Posted) -> Sequence[Heard]:
        event = json.loads(posted.body).get("event-data")
        if not isinstance(event, dict):
            raise ValueError("no event")
        kind = _kind(event)
        return [_one(event, kind)] if kind else []

    async def answer(self, posted: Posted) -> None:
        """Mailgun asks for nothing."""

    async def close(self) -> None:
        """Nothing is open."""


def _signature(body: bytes) -> tuple[str, str, str]:
    """Time stamp, token and signature of a body; Forged if they are not there, or not what they can be."""
    try:
        given = json.loads(body)["signature"]
        stamp, token, signature = (str(given[name]) for name in ("timestamp", "token", "signature"))
    except (ValueError, TypeError, LookupError, RecursionError):
        raise Forged("unsigned", "the signature is missing") from None
    is_plain = stamp.isascii() and stamp.isdecimal() and len(stamp) < 16 and id_of(token) and token.isascii()
    if not is_plain or not signature.isascii():
        raise Forged("unsigned", "the signature is malformed")
    return stamp, token, signature


def _kind(event: Mapping[str, Any]) -> Kind | None:
    if event.get("event") != "failed":
        return KINDS.get(str(event.get("event")))
    if str(event.get("reason", "")).startswith(SUPPRESSED):
        return Kind.DROPPED
    return FAILURES.get(str(event.get("severity")))


def _one(event: Mapping[str, Any], kind: Kind) -> Heard:
    event_id = id_of(event.get("id"))
    if event_id is None:
        raise ValueError("an event without an id")
    headers = part(part(event, "message"), "headers")
    status = part(event, "delivery-status")
    said = (
        status.get("code"),
        status.get("message") or status.get("description"),
        part(event, "reject").get("reason"),
    )
    unhappy = kind in UNHAPPY
    return Heard(
        kind=kind,
        event_id=event_id,
        at=moment(event.get("timestamp")),
        message_id=message_of(part(event, "user-variables").get("pillarbox_message"), headers.get("message-id")),
        recipient=event.get("recipient"),
        provider_message_id=id_of(headers.get("message-id")),
        hard=kind in HARD or (kind is Kind.BOUNCED and _is_hard(event, status)),
        reason=_reason(event, status, *said) if unhappy else None,
        text=text_of(*said) if unhappy else None,
        raw=event,
    )


def _is_hard(event: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    kind = status.get("bounce-type")
    return kind == "hard" if isinstance(kind, str) else event.get("reason") in HARD_REASONS


def _reason(event: Mapping[str, Any], status: Mapping[str, Any], *said: object) -> Reason:
    if str(event.get("reason", "")).startswith(SUPPRESSED):
        return Reason.SUPPRESSED
    return reason_of(status.get("enhanced-code"), *said)
