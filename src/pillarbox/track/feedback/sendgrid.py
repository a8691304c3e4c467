"""SendGrid's event webhook: a list of events, signed as a whole with ECDSA.

https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/event
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key

from pillarbox.errors import Forged
from pillarbox.model.outcome import Reason
from pillarbox.track.feedback.base import FeedbackEvent, FeedbackKind, SignedRequest
from pillarbox.track.feedback.event_fields import (
    UNDELIVERED,
    check_time,
    delivery_of,
    id_of,
    message_of,
    moment,
    reason_of,
    text_of,
)

if TYPE_CHECKING:
    from pillarbox.model.provider import Provider

SIGNATURE = "x-twilio-email-event-webhook-signature"
TIMESTAMP = "x-twilio-email-event-webhook-timestamp"

KINDS = {
    "processed": FeedbackKind.ACCEPTED,
    "deferred": FeedbackKind.DEFERRED,
    "delivered": FeedbackKind.DELIVERED,
    "dropped": FeedbackKind.DROPPED,
    "bounce": FeedbackKind.BOUNCED,
    "blocked": FeedbackKind.BOUNCED,
    "open": FeedbackKind.OPENED,
    "click": FeedbackKind.CLICKED,
    "spamreport": FeedbackKind.COMPLAINED,
    "unsubscribe": FeedbackKind.UNSUBSCRIBED,
    "group_unsubscribe": FeedbackKind.UNSUBSCRIBED,
}
# Unsubscribing from a group concerns one kind of mails, and SendGrid keeps it: it is not here.
HARD = {"spamreport", "unsubscribe"}


class SendGridFeedback:
    """Needs the setting `webhook_key`: the public key that SendGrid shows beside the webhook."""

    def __init__(self, provider: Provider, window: float) -> None:
        self._key = _public_key(provider.settings.get("webhook_key"))
        self._window = window

    async def verify(self, request: SignedRequest, now: float) -> None:
        if self._key is None:
            raise Forged("no_key", "the provider has no webhook_key to verify feedback with")
        timestamp = request.headers.get(TIMESTAMP, "")
        if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) < 16):
            raise Forged("unsigned", "the timestamp is missing")
        signed = timestamp.encode() + request.body
        try:
            signature = base64.b64decode(request.headers.get(SIGNATURE, ""), validate=True)
            self._key.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
        except (binascii.Error, ValueError, InvalidSignature):
            raise Forged("signature", "the signature is wrong") from None
        check_time(float(timestamp), now, self._window)

    def parse(self, request: SignedRequest) -> Sequence[FeedbackEvent]:
        payloads = json.loads(request.body)
        if not isinstance(payloads, list):
            raise ValueError("not a list of events")
        return list(_events(payloads))

    async def answer(self, request: SignedRequest) -> None:
        """SendGrid asks for nothing."""

    async def close(self) -> None:
        """Nothing is open."""


def _public_key(text: object) -> ec.EllipticCurvePublicKey | None:
    if not isinstance(text, str):
        return None
    try:
        key = load_der_public_key(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    return None


def _events(payloads: Sequence[Any]) -> Iterator[FeedbackEvent]:
    """The known events; one that cannot be read does not prevent the others."""
    for payload in payloads:
        if isinstance(payload, dict) and str(payload.get("event")) in KINDS:
            try:
                yield _event(payload)
            except ValueError:
                continue


def _event(payload: Mapping[str, Any]) -> FeedbackEvent:
    name = payload["event"]
    kind = KINDS[name]
    event_id = id_of(payload.get("sg_event_id"))
    if event_id is None:
        raise ValueError("an event without an id")
    message_id, recipient_number = delivery_of(payload.get("pillarbox_delivery"))
    message_id = message_id or message_of(payload.get("pillarbox_message"))
    event = FeedbackEvent(
        kind=kind,
        event_id=event_id,
        at=moment(payload.get("timestamp")),
        message_id=message_id or message_of(payload.get("smtp-id")),
        doubtful=message_id is None,
        n=recipient_number,
        recipient=payload.get("email"),
        provider_message_id=id_of(payload.get("sg_message_id")),
        hard=name in HARD or _is_hard_bounce(payload),
        raw=payload,
    )
    if kind not in UNDELIVERED:
        return event
    texts = (payload.get("status"), payload.get("reason"), payload.get("response"))
    return replace(event, reason=_reason(kind, payload, texts), text=text_of(*texts))


def _is_hard_bounce(payload: Mapping[str, Any]) -> bool:
    """SendGrid distinguishes bounces (permanent) and blocks (temporary) by `type`."""
    return (payload["event"], payload.get("type", "bounce")) == ("bounce", "bounce")


def _reason(kind: FeedbackKind, payload: Mapping[str, Any], texts: Sequence[object]) -> Reason:
    reason = str(payload.get("reason", "")).lower()
    if kind is FeedbackKind.DROPPED and ("address" in reason or "unsubscribed" in reason):
        return Reason.SUPPRESSED  # by SendGrid's own list
    return reason_of(*texts)
