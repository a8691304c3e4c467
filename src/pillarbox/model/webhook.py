"""Webhook calls: their body, their signature (Standard Webhooks) and their retry schedule."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pillarbox.errors import InvalidWebhook
from pillarbox.model.secret import Secret

PREFIX = "whsec_"
VERSION = "v1"
# Standard Webhooks asks for 24 to 64 random bytes.
SECRET_BYTES = 32
SHORTEST_SECRET, LONGEST_SECRET = 24, 64
# Largest difference between a call's timestamp and the clock, in seconds; more is a replay.
TOLERANCE = 300
# Seconds before each retry, about three days in total, similar to Standard Webhooks' suggestion.
DELAYS = (5.0, 30.0, 120.0, 600.0, 3600.0, 10800.0, *(21600.0,) * 11)
# Of each wait, in both directions: a receiver that recovers does not get all calls together.
JITTER = 0.2


class WebhookEventType(StrEnum):
    """The types of events that customers can subscribe to."""

    SENT = "message.sent"
    DELIVERED = "message.delivered"
    BOUNCED = "message.bounced"
    COMPLAINED = "message.complained"
    FAILED = "message.failed"
    DEFERRED = "message.deferred"
    HELD = "message.held"
    CANCELLED = "message.cancelled"
    OPENED = "message.opened"
    CLICKED = "message.clicked"
    UNSUBSCRIBED = "message.unsubscribed"


# Cannot be subscribed to: it is sent when a person tests an endpoint.
TEST = "webhook.test"


class CallState(StrEnum):
    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"


class DisabledReason(StrEnum):
    """Why an endpoint gets no calls."""

    FAILING = "failing"  # every call failed for as long as the installation allows
    GONE = "gone"  # it answered 410
    PERSON = "person"


def body(kind: str, at: datetime, data: Mapping[str, Any]) -> bytes:
    """The body of a call."""
    when = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"type": kind, "timestamp": when, "data": data}, ensure_ascii=False).encode()


def secret_of(random: bytes) -> Secret:
    """A signing secret in the form of Standard Webhooks."""
    return Secret(PREFIX + base64.b64encode(random).decode())


def headers(
    call_id: str, timestamp: int, content: bytes, secrets: Sequence[Secret]
) -> dict[str, str]:
    """The headers of a call: id, timestamp, and one signature per secret; one must match."""
    signatures = " ".join(sign(call_id, timestamp, content, secret) for secret in secrets)
    return {
        "webhook-id": call_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signatures,
    }


def sign(call_id: str, timestamp: int, content: bytes, secret: Secret) -> str:
    signed = b".".join((call_id.encode(), str(timestamp).encode(), content))
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return f"{VERSION},{base64.b64encode(digest).decode()}"


def _key(secret: Secret) -> bytes:
    try:
        key = base64.b64decode(secret.reveal().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidWebhook("the secret is not valid: it must be whsec_ and base64") from None
    if not SHORTEST_SECRET <= len(key) <= LONGEST_SECRET:
        raise InvalidWebhook("the secret is not valid: it must have 24 to 64 bytes as base64")
    return key


def verify(
    given: Mapping[str, str], content: bytes, secret: Secret, now: float, tolerance: float
) -> None:
    """Raise InvalidWebhook unless the call was signed with the secret within the tolerance."""
    found = {name.lower(): value for name, value in given.items()}
    try:
        call_id = found["webhook-id"]
        timestamp = found["webhook-timestamp"]
        signatures = found["webhook-signature"]
    except KeyError as missing:
        raise InvalidWebhook(f"the header {missing.args[0]} is missing") from None
    if not (timestamp.isascii() and timestamp.isdigit()) or len(timestamp) > 12:
        raise InvalidWebhook("webhook-timestamp is not a number of seconds")
    if abs(now - int(timestamp)) > tolerance:
        raise InvalidWebhook(
            "webhook-timestamp is too far from now: an old call sent again, or a wrong clock"
        )
    expected = sign(call_id, int(timestamp), content, secret).encode()
    for signature in signatures.split(" "):
        if hmac.compare_digest(expected, signature.encode()):
            return
    raise InvalidWebhook("no signature matches: another secret, or a changed call")


def delay(attempts: int, chance: float) -> float | None:
    """Seconds until the next attempt after so many; None to give up. `chance` is in [0, 1)."""
    if attempts > len(DELAYS):
        return None
    return DELAYS[attempts - 1] * (1 - JITTER + 2 * JITTER * chance)
