"""Mailgun's older webhooks: form fields instead of JSON, put into the shape of the newer ones.

The signature is the same, as are the custom variables of a mail, which come as fields of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from pillarbox.track.mime_parts import parts_of

URLENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
# Fields of a form: real ones have about twenty, and the custom variables.
MAX_FIELDS = 100
SIGNATURE = ("timestamp", "token", "signature")
# What each becomes; the names of the others are the same.
EVENTS: Mapping[str, Mapping[str, str]] = {
    "bounced": {"event": "failed", "severity": "permanent", "reason": "bounce"},
    "dropped": {"event": "rejected"},
}
# The address is on Mailgun's own list, of bounces, unsubscribes or complaints: nothing was tried.
SUPPRESSED_CODES = ("605", "606", "607")
# May happen more than once to a mail, and differ by their time. A repetition of another event is
# the same event.
REPEATED = ("opened", "clicked")


def is_form(headers: Mapping[str, str]) -> bool:
    """Whether the body of a request is a form."""
    return headers.get("content-type", "").lower().startswith((URLENCODED, MULTIPART))


def fields_of(headers: Mapping[str, str], body: bytes) -> dict[str, str]:
    """The fields of a form by name, without files; ValueError if it is malformed or too large."""
    kind = headers["content-type"]
    if kind.lower().startswith(URLENCODED):
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        return dict(pairs)
    _, *fields = parts_of(b"Content-Type: " + kind.encode("latin-1") + b"\r\n\r\n" + body)
    found = {}
    for field in fields:
        disposition = field.first("content-disposition") or ""
        name = _parameter(disposition, "name")
        if name is not None and 'filename="' not in disposition:
            found[name] = field.body.removesuffix(b"\r").decode()
    return found


def _parameter(disposition: str, name: str) -> str | None:
    before, mark, rest = disposition.partition(f'{name}="')
    if not mark or not before.rstrip().endswith(";"):
        return None
    return rest.partition('"')[0]


def as_json(fields: Mapping[str, str]) -> dict[str, Any]:
    """The form in the shape of the newer webhooks."""
    signature = {name: fields[name] for name in SIGNATURE if name in fields}
    headers = _headers(fields.get("message-headers", ""))
    message_id = (
        fields.get("Message-Id") or fields.get("message-id") or headers.get("message-id", "")
    )
    event: dict[str, Any] = {
        "event": fields.get("event", "").lower(),
        "recipient": fields.get("recipient"),
        "timestamp": fields.get("timestamp"),
        "message": {"headers": {"message-id": message_id.strip("<>")}},
        "user-variables": {"pillarbox_message": fields.get("pillarbox_message")},
        "delivery-status": {
            "code": fields.get("code"),
            "message": fields.get("error")
            or fields.get("description")
            or fields.get("notification"),
        },
        "reject": {"reason": fields.get("reason")},
    }
    if event["event"] not in REPEATED:
        del event["timestamp"]  # the timestamp of the signature
    if fields.get("code") in SUPPRESSED_CODES:
        event["reason"] = "suppress-by-code"
    event.update(EVENTS.get(event["event"], {}))
    return {"signature": signature, "event-data": event}


def _headers(text: str) -> dict[str, str]:
    """The header fields of a mail by name in lower case, from a JSON list of pairs."""
    if not text:
        return {}
    try:
        pairs = json.loads(text)
        return {str(name).lower(): str(value) for name, value in pairs}
    except (ValueError, TypeError, RecursionError):
        return {}
