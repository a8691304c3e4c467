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
    CLOCK_TOLERANCE,
    UNDELIVERED,
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
# Why Mailgun failed a mail permanently, where the cause is the address itself.
HARD_REASONS = {"bounce"}
# The recipients of a message.
MAX_RECIPIENTS = 100
# The reason begins with this where Mailgun's own list has the address: nothing was tried.
SUPPRESSED = "suppress-"


class MailgunFeedback:
    """Needs the webhook secret: the signing key that Mailgun shows in its webhook settings."""

    def __init__(self, provider: Provider, window: float) -> None:
        self._secret = provider.webhook_secret
        self._window = window

    async def verify(self, request: SignedRequest, now: float) -> ReplayToken:
        if self._secret is None:
            raise Forged("no_key", "the provider has no webhook secret to verify feedback with")
        payload = _payload(request)
        timestamp, token, signature = _signature(payload)
        key = self._secret.reveal().encode()
        expected = hmac.digest(key, (timestamp + token).encode(), "sha256").hex()
        if not hmac.compare_digest(expected.encode(), signature.lower().encode()):
            raise Forged("signature", "the signature is wrong")
        check_time(float(timestamp), now, self._window)
        body = request.body
        if is_form(request.headers):
            body = _canonical(payload)  # a form that is sent again has another boundary
        expires_at = moment(float(timestamp) + self._window + CLOCK_TOLERANCE)
        return ReplayToken(token, hashlib.sha256(body).digest(), expires_at)

    def parse(self, request: SignedRequest) -> Sequence[FeedbackEvent]:
        payload = _payload(request)
        details = payload.get("event-data")
        if not isinstance(details, dict):
            raise ValueError("no event")
        kind = _kind(details)
        if kind is None:
            return []
        event_id = id_of(details.get("id"))
        if event_id is None:
            event_id = f"sha256:{hashlib.sha256(_canonical(details)).hexdigest()}"
        event = _event(details, kind, event_id, signed_at=float(_signature(payload)[0]))
        recipients = _recipients(details)
        if len(recipients) == 1:
            return [replace(event, recipient=recipients[0])]
        return [
            replace(event, event_id=f"{event_id[:200]}:{index}", recipient=recipient)
            for index, recipient in enumerate(recipients)
        ]

    async def answer(self, request: SignedRequest) -> None:
        """Mailgun asks for nothing."""

    async def close(self) -> None:
        """Nothing is open."""


def _payload(request: SignedRequest) -> Mapping[str, Any]:
    """The content of a request; Forged if it cannot be Mailgun's."""
    try:
        if is_form(request.headers):
            payload = as_json(fields_of(request.headers, request.body))
        else:
            payload = json.loads(request.body)
    except (ValueError, RecursionError):
        raise Forged("unsigned", "the signature is missing") from None
    if not isinstance(payload, dict):
        raise Forged("unsigned", "the signature is missing")
    return payload


def _canonical(payload: Mapping[str, Any]) -> bytes:
    """The same bytes for the same content."""
    return json.dumps(payload, sort_keys=True).encode()


def _signature(payload: Mapping[str, Any]) -> tuple[str, str, str]:
    """Timestamp, token and signature of a request; Forged if one is missing or malformed."""
    try:
        given = payload["signature"]
        timestamp, token, signature = (
            str(given[name]) for name in ("timestamp", "token", "signature")
        )
    except (ValueError, TypeError, LookupError):
        raise Forged("unsigned", "the signature is missing") from None
    is_number = timestamp.isascii() and timestamp.isdecimal() and len(timestamp) < 16
    is_token = token.isascii() and id_of(token) is not None
    if not is_number or not is_token or not signature.isascii():
        raise Forged("unsigned", "the signature is malformed")
    return timestamp, token, signature


def _kind(details: Mapping[str, Any]) -> FeedbackKind | None:
    if details.get("event") != "failed":
        return KINDS.get(str(details.get("event")))
    if _is_suppressed(details):
        return FeedbackKind.DROPPED
    return FAILURES.get(str(details.get("severity")))


def _is_suppressed(details: Mapping[str, Any]) -> bool:
    return str(details.get("reason", "")).startswith(SUPPRESSED)


def _recipients(details: Mapping[str, Any]) -> list[str | None]:
    """The recipients of an event. A rejected mail names none: it was rejected for all."""
    recipient = details.get("recipient")
    if isinstance(recipient, str) and recipient:
        return [recipient]
    message = part(details, "message")
    texts = [part(details, "envelope").get("targets"), part(message, "headers").get("to")]
    listed = message.get("recipients")
    if isinstance(listed, list):
        texts += listed
    mailboxes = getaddresses([text for text in texts if isinstance(text, str)])
    # A dict keeps the order and drops duplicates.
    addresses: list[str | None] = list(
        dict.fromkeys(address for _, address in mailboxes if "@" in address)
    )
    return addresses[:MAX_RECIPIENTS] or [None]


def _time(details: Mapping[str, Any], signed_at: float) -> datetime:
    """When it happened; when it was signed if the event does not say."""
    try:
        return moment(details.get("timestamp"))
    except ValueError:
        return moment(signed_at)


def _event(
    details: Mapping[str, Any], kind: FeedbackKind, event_id: str, signed_at: float
) -> FeedbackEvent:
    headers = part(part(details, "message"), "headers")
    variables = part(details, "user-variables")
    event = FeedbackEvent(
        kind=kind,
        event_id=event_id,
        at=_time(details, signed_at),
        message_id=message_of(variables.get("pillarbox_message"), headers.get("message-id")),
        provider_message_id=id_of(headers.get("message-id")),
        hard=kind in HARD or (kind is FeedbackKind.BOUNCED and _is_hard(details)),
        raw=details,
    )
    if kind not in UNDELIVERED:
        return event
    status = part(details, "delivery-status")
    texts = (
        status.get("code"),
        status.get("message") or status.get("description"),
        part(details, "reject").get("reason"),
    )
    reason = Reason.SUPPRESSED
    if not _is_suppressed(details):
        reason = reason_of(status.get("enhanced-code"), *texts)
    return replace(event, reason=reason, text=text_of(*texts))


def _is_hard(details: Mapping[str, Any]) -> bool:
    bounce_type = part(details, "delivery-status").get("bounce-type")
    if isinstance(bounce_type, str):
        return bounce_type == "hard"
    return details.get("reason") in HARD_REASONS
