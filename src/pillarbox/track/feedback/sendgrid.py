"""SendGrid's event webhook: a list of events, signed as a whole with ECDSA.

https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/event
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key

from pillarbox.errors import Forged
from pillarbox.model.outcome import Reason
from pillarbox.track.feedback.base import FeedbackEvent, FeedbackKind, SignedRequest
from pillarbox.track.feedback.event_fields import (
    UNHAPPY,
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
# A group's unsubscription is about one kind of mails: SendGrid keeps it, we go on with the others.
HARD = {"spamreport", "unsubscribe"}


class SendGridFeedback:
    """Needs the setting `webhook_key`: the public key that SendGrid shows beside the webhook."""

    def __init__(self, provider: Provider, window: float) -> None:
        self._key = _public_key(provider.settings.get("webhook_key"))
        self._window = window

    async def verify(self, posted: SignedRequest, now: float) -> None:
        if self._key is None:
            raise Forged("no_key", "the provider has no webhook_key to verify feedback with")
        stamp = posted.headers.get(TIMESTAMP, "")
        if not (stamp.isascii() and stamp.isdecimal() and len(stamp) < 16):
            raise Forged("unsigned", "the time stamp is missing")
        try:
            signature = base64.b64decode(posted.headers.get(SIGNATURE, ""), validate=True)
            self._key.verify(signature, stamp.encode() + posted.body, ec.ECDSA(hashes.SHA256()))
        except (binascii.Error, ValueError, InvalidSignature):
            raise Forged("signature", "the signature is wrong") from None
        check_time(float(stamp), now, self._window)

    def parse(self, posted: SignedRequest) -> Sequence[FeedbackEvent]:
        events = json.loads(posted.body)
        if not isinstance(events, list):
            raise ValueError("not a list of events")
        return list(_heard(events))

    async def answer(self, posted: SignedRequest) -> None:
        """SendGrid asks for nothing."""

    async def close(self) -> None:
        """Nothing is open."""


def _public_key(text: object) -> ec.EllipticCurvePublicKey | None:
    try:
        key = (
            load_der_public_key(base64.b64decode(text, validate=True))
            if isinstance(text, str)
            else None
        )
    except (binascii.Error, ValueError):
        return None
    is_right = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    return key if is_right else None  # type: ignore[return-value]  # just looked at


def _heard(events: Sequence[Any]) -> Iterator[FeedbackEvent]:
    """What of the events concerns us; one that cannot be read does not spoil the others."""
    for event in events:
        if isinstance(event, dict) and str(event.get("event")) in KINDS:
            try:
                yield _one(event)
            except ValueError:
                continue


def _one(event: Mapping[str, Any]) -> FeedbackEvent:
    kind, event_id = KINDS[event["event"]], id_of(event.get("sg_event_id"))
    if event_id is None:
        raise ValueError("an event without an id")
    message_id, n = delivery_of(event.get("pillarbox_delivery"))
    message_id = message_id or message_of(event.get("pillarbox_message"))
    said = (event.get("status"), event.get("reason"), event.get("response"))
    return FeedbackEvent(
        kind=kind,
        event_id=event_id,
        at=moment(event.get("timestamp")),
        message_id=message_id or message_of(event.get("smtp-id")),
        doubtful=message_id is None,
        n=n,
        recipient=event.get("email"),
        provider_message_id=id_of(event.get("sg_message_id")),
        hard=event["event"] in HARD or _is_hard_bounce(event),
        reason=_reason(kind, event, *said) if kind in UNHAPPY else None,
        text=text_of(*said) if kind in UNHAPPY else None,
        raw=event,
    )


def _is_hard_bounce(event: Mapping[str, Any]) -> bool:
    """SendGrid tells bounces (for good) from blocks (for now) by `type`."""
    return (event["event"], event.get("type", "bounce")) == ("bounce", "bounce")


def _reason(kind: FeedbackKind, event: Mapping[str, Any], *said: object) -> Reason:
    why = str(event.get("reason", "")).lower()
    if kind is FeedbackKind.DROPPED and ("address" in why or "unsubscribed" in why):
        return Reason.SUPPRESSED  # SendGrid's own list has it
    return reason_of(*said)
