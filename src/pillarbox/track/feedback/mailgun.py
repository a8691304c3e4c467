"""Mailgun's webhooks: one event each, as JSON or as an older form.

The signature covers a token, not the body: a token is good for one body.

https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/securing-webhooks
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from email.utils import getaddresses
from typing import TYPE_CHECKING, Any

from pillarbox.errors import Forged
from pillarbox.model.outcome import Reason
from pillarbox.track.feedback.base import FeedbackEvent, FeedbackKind, ReplayToken, SignedRequest
from pillarbox.track.feedback.event_fields import (
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
from pillarbox.track.feedback.mailgun_forms import as_json, fields_of, is_form

if TYPE_CHECKING:
    from pillarbox.model.provider import Provider

KINDS = {
    "accepted": FeedbackKind.ACCEPTED,
    "delivered": FeedbackKind.DELIVERED,
    "rejected": FeedbackKind.DROPPED,
    "opened": FeedbackKind.OPENED,
    "clicked": FeedbackKind.CLICKED,
    "unsubscribed": FeedbackKind.UNSUBSCRIBED,
    "complained": FeedbackKind.COMPLAINED,
}
FAILURES = {"permanent": FeedbackKind.BOUNCED, "temporary": FeedbackKind.DEFERRED}
HARD = {FeedbackKind.COMPLAINED, FeedbackKind.UNSUBSCRIBED}
# Why Mailgun failed a mail for good, where that is about the address itself.
HARD_REASONS = {"bounce"}
# A message has at most so many recipients.
MOST_RECIPIENTS = 100
# How the reason begins where Mailgun's own list has the address, and nothing was tried.
SUPPRESSED = "suppress-"


class MailgunFeedback:
    """Needs the webhook secret: the signing key that Mailgun shows in its settings of webhooks."""

    def __init__(self, provider: Provider, window: float) -> None:
        self._secret = provider.webhook_secret
        self._window = window

    async def verify(self, posted: SignedRequest, now: float) -> ReplayToken:
        if self._secret is None:
            raise Forged("no_key", "the provider has no webhook secret to verify feedback with")
        told = _told(posted)
        stamp, token, signature = _signature(told)
        right = hmac.digest(
            self._secret.reveal().encode(), (stamp + token).encode(), "sha256"
        ).hex()
        if not hmac.compare_digest(right.encode(), signature.lower().encode()):
            raise Forged("signature", "the signature is wrong")
        check_time(float(stamp), now, self._window)
        # A form that is posted again has another boundary: what counts is what it says.
        body = _canonical(told) if is_form(posted.headers) else posted.body
        return ReplayToken(
            token, hashlib.sha256(body).digest(), moment(float(stamp) + self._window + AHEAD)
        )

    def parse(self, posted: SignedRequest) -> Sequence[FeedbackEvent]:
        told = _told(posted)
        event = told.get("event-data")
        if not isinstance(event, dict):
            raise ValueError("no event")
        kind = _kind(event)
        if kind is None:
            return []
        signed_at = float(_signature(told)[0])
        recipients = _recipients(event)
        event_id = (
            id_of(event.get("id")) or f"sha256:{hashlib.sha256(_canonical(event)).hexdigest()}"
        )
        heard = _one(event, kind, event_id, signed_at)
        if len(recipients) == 1:
            return [replace(heard, recipient=recipients[0])]
        return [
            replace(heard, event_id=f"{event_id[:200]}:{number}", recipient=one)
            for number, one in enumerate(recipients)
        ]

    async def answer(self, posted: SignedRequest) -> None:
        """Mailgun asks for nothing."""

    async def close(self) -> None:
        """Nothing is open."""


def _told(posted: SignedRequest) -> Mapping[str, Any]:
    """What a request says; Forged if it is nothing of Mailgun's."""
    try:
        told = (
            as_json(fields_of(posted.headers, posted.body))
            if is_form(posted.headers)
            else json.loads(posted.body)
        )
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise Forged("unsigned", "the signature is missing")
    return told


def _canonical(told: Mapping[str, Any]) -> bytes:
    """The same bytes for whatever says the same."""
    return json.dumps(told, sort_keys=True).encode()


def _signature(told: Mapping[str, Any]) -> tuple[str, str, str]:
    """Time stamp, token and signature of a request; Forged if they are not there, or not what they can be."""
    try:
        given = told["signature"]
        stamp, token, signature = (str(given[name]) for name in ("timestamp", "token", "signature"))
    except (ValueError, TypeError, LookupError):
        raise Forged("unsigned", "the signature is missing") from None
    is_plain = (
        stamp.isascii()
        and stamp.isdecimal()
        and len(stamp) < 16
        and id_of(token)
        and token.isascii()
    )
    if not is_plain or not signature.isascii():
        raise Forged("unsigned", "the signature is malformed")
    return stamp, token, signature


def _kind(event: Mapping[str, Any]) -> FeedbackKind | None:
    if event.get("event") != "failed":
        return KINDS.get(str(event.get("event")))
    if str(event.get("reason", "")).startswith(SUPPRESSED):
        return FeedbackKind.DROPPED
    return FAILURES.get(str(event.get("severity")))


def _recipients(event: Mapping[str, Any]) -> list[str | None]:
    """Whom an event is about. A rejected mail names no recipient: it was rejected for all of them."""
    recipient = event.get("recipient")
    if isinstance(recipient, str) and recipient:
        return [recipient]
    message = part(event, "message")
    listed = message.get("recipients")
    given = listed if isinstance(listed, list) else []
    texts = [part(event, "envelope").get("targets"), part(message, "headers").get("to"), *given]
    addresses = (
        address for _, address in getaddresses([one for one in texts if isinstance(one, str)])
    )
    found: list[str | None] = list(
        dict.fromkeys(address for address in addresses if "@" in address)
    )
    return found[:MOST_RECIPIENTS] or [None]


def _time(event: Mapping[str, Any], signed_at: float) -> datetime:
    """When it happened; where the event does not say, when it was signed."""
    try:
        return moment(event.get("timestamp"))
    except ValueError:
        return moment(signed_at)


def _one(
    event: Mapping[str, Any], kind: FeedbackKind, event_id: str, signed_at: float
) -> FeedbackEvent:
    headers = part(part(event, "message"), "headers")
    status = part(event, "delivery-status")
    said = (
        status.get("code"),
        status.get("message") or status.get("description"),
        part(event, "reject").get("reason"),
    )
    unhappy = kind in UNHAPPY
    return FeedbackEvent(
        kind=kind,
        event_id=event_id,
        at=_time(event, signed_at),
        message_id=message_of(
            part(event, "user-variables").get("pillarbox_message"), headers.get("message-id")
        ),
        provider_message_id=id_of(headers.get("message-id")),
        hard=kind in HARD or (kind is FeedbackKind.BOUNCED and _is_hard(event, status)),
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
