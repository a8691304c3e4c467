"""What SendGrid's event webhook says."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from pillarbox.testing.twins.base import Kind
from pillarbox.testing.twins.mail import TwinMail

_PLACE = {"ip": "192.0.2.1", "useragent": "Mozilla/5.0 (compatible; Twin)"}
_EVENTS: Mapping[Kind, dict[str, Any]] = {
    "delivered": {"event": "delivered", "response": "250 2.0.0 OK", "tls": 1, "ip": "192.0.2.1"},
    "bounced": {
        "event": "bounce",
        "type": "bounce",
        "status": "5.1.1",
        "reason": "550 5.1.1 The email account that you tried to reach does not exist",
        "bounce_classification": "Invalid Address",
        "tls": 1,
        "ip": "192.0.2.1",
    },
    "soft_bounced": {
        "event": "bounce",
        "type": "blocked",
        "status": "4.2.2",
        "reason": "452 4.2.2 The email account that you tried to reach is over quota",
        "bounce_classification": "Mailbox Unavailable",
        "tls": 1,
        "ip": "192.0.2.1",
    },
    "deferred": {"event": "deferred", "response": "451 4.7.1 try again later", "attempt": "1"},
    "dropped": {"event": "dropped", "reason": "Bounced Address", "status": "5.0.0"},
    "complained": {"event": "spamreport"},
    "opened": {"event": "open", "sg_machine_open": False, "sg_content_type": "html", **_PLACE},
    "clicked": {
        "event": "click",
        "url": "https://example.com/",
        "url_offset": {"index": 0, "type": "html"},
        **_PLACE,
    },
    "unsubscribed": {"event": "unsubscribe"},
}


def describe(mail: TwinMail, kind: Kind, recipient: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """One event; custom arguments stand beside SendGrid's own fields."""
    personal = mail.personal.get(recipient, {})
    event: dict[str, Any] = {
        "email": recipient,
        "timestamp": int(time.time()),
        "smtp-id": f"<{mail.id}@geopod-ismtpd-0>",
        "sg_event_id": secrets.token_urlsafe(16),
        "sg_message_id": f"{mail.id}.recvd-twin-0-1.0",
    }
    return {**event, **_EVENTS[kind], **mail.variables, **personal, **more}
