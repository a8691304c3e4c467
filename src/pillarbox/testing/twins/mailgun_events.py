"""What Mailgun's webhooks say."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from pillarbox.testing.twins.base import Kind
from pillarbox.testing.twins.mail import TwinMail, mime_header

_BROWSER = {
    "ip": "192.0.2.1",
    "geolocation": {"country": "US", "region": "CA", "city": "San Francisco"},
    "client-info": {
        "client-name": "Chrome",
        "client-os": "Linux",
        "client-type": "browser",
        "device-type": "desktop",
    },
}
_EVENTS: Mapping[Kind, dict[str, Any]] = {
    "delivered": {
        "event": "delivered",
        "log-level": "info",
        "delivery-status": {
            "code": 250,
            "message": "OK",
            "description": "",
            "tls": True,
            "mx-host": "mx.example.com",
            "attempt-no": 1,
            "session-seconds": 0.4,
            "utf8": True,
            "certificate-verified": True,
        },
    },
    "bounced": {
        "event": "failed",
        "severity": "permanent",
        "reason": "bounce",
        "log-level": "error",
        "delivery-status": {
            "code": 550,
            "enhanced-code": "5.1.1",
            "message": "5.1.1 The email account that you tried to reach does not exist",
            "description": "",
            "bounce-type": "hard",
            "attempt-no": 1,
        },
    },
    "soft_bounced": {
        "event": "failed",
        "severity": "temporary",
        "reason": "generic",
        "log-level": "warn",
        "delivery-status": {
            "code": 452,
            "enhanced-code": "4.2.2",
            "message": "4.2.2 The email account that you tried to reach is over quota",
            "description": "",
            "bounce-type": "soft",
            "attempt-no": 1,
            "retry-seconds": 600,
        },
    },
    "deferred": {
        "event": "failed",
        "severity": "temporary",
        "reason": "generic",
        "log-level": "warn",
        "delivery-status": {
            "code": 451,
            "enhanced-code": "4.7.1",
            "message": "4.7.1 try again later",
            "description": "",
            "attempt-no": 1,
            "retry-seconds": 600,
        },
    },
    "dropped": {
        "event": "failed",
        "severity": "permanent",
        "reason": "suppress-bounce",
        "log-level": "error",
        "delivery-status": {
            "code": 605,
            "message": "",
            "description": "Not delivering to previously bounced address",
            "attempt-no": 1,
        },
    },
    "complained": {"event": "complained", "log-level": "warn"},
    "opened": {"event": "opened", "log-level": "info", **_BROWSER},
    "clicked": {"event": "clicked", "log-level": "info", "url": "https://example.com/", **_BROWSER},
    "unsubscribed": {"event": "unsubscribed", "log-level": "warn", **_BROWSER},
}


def describe(
    mail: TwinMail, kind: Kind, recipient: str, domain: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """One event, as it stands in `event-data`."""
    event: dict[str, Any] = {
        "id": secrets.token_urlsafe(16),
        "timestamp": round(time.time(), 6),
        "recipient": recipient,
        "recipient-domain": recipient.rpartition("@")[2],
        "account": {"id": "5c0ffee0c0ffee0c0ffee0c0"},
        "domain": {"name": domain},
        "campaigns": [],
        "tags": [],
        "user-variables": dict(mail.variables),
        "flags": {
            "is-routed": False,
            "is-authenticated": True,
            "is-system-test": False,
            "is-test-mode": False,
        },
        "envelope": {
            "transport": "smtp",
            "sender": mail.sender,
            "sending-ip": "192.0.2.1",
            "targets": recipient,
        },
        "message": {
            "headers": {
                "to": mime_header(mail.mime or b"", "To") or ", ".join(mail.recipients),
                "message-id": mail.id.strip("<>"),
                "from": mime_header(mail.mime or b"", "From") or mail.sender,
                "subject": mail.subject,
            },
            "attachments": [],
            "size": len(mail.mime or b""),
        },
    }
    return {**event, **_EVENTS[kind], **more}
