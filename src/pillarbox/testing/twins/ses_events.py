"""What SES publishes to SNS about a mail."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pillarbox.testing.twins.base import Kind
from pillarbox.testing.twins.mail import TwinMail, mime_header
from pillarbox.testing.twins.sns import ACCOUNT, timestamp

# Our word: SES's event, and where its details stand.
_NAMES: Mapping[Kind, tuple[str, str]] = {
    "delivered": ("Delivery", "delivery"),
    "bounced": ("Bounce", "bounce"),
    "soft_bounced": ("Bounce", "bounce"),
    "deferred": ("DeliveryDelay", "deliveryDelay"),
    "dropped": ("Reject", "reject"),
    "complained": ("Complaint", "complaint"),
    "opened": ("Open", "open"),
    "clicked": ("Click", "click"),
    "unsubscribed": ("Subscription", "subscription"),
}
_PLACE = {"ipAddress": "192.0.2.1", "userAgent": "Mozilla/5.0 (compatible; Twin)"}


def describe(
    mail: TwinMail, kind: Kind, recipients: list[str], region: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """One event; with `identity`, as a notification of an identity: another name, no tags."""
    options = dict(more)
    identity = options.pop("identity", False)
    name, place = _NAMES[kind]
    about = _mail(mail, region)
    if identity:
        del about["tags"]
    said = {"notificationType" if identity else "eventType": name, "mail": about}
    return {**said, place: {**_details(kind, recipients), **options}}


def _mail(mail: TwinMail, region: str) -> dict[str, Any]:
    mime = mail.mime or b""
    names = ("From", "To", "Cc", "Subject", "Message-ID", "Date")
    headers = {name: value for name in names if (value := mime_header(mime, name)) is not None}
    common: dict[str, Any] = {"from": [headers.get("From", mail.sender)], "subject": mail.subject}
    common["messageId"] = headers.get("Message-ID", mail.id)
    domain = mail.sender.rpartition("@")[2]
    tags = {
        "ses:source-ip": ["192.0.2.1"],
        "ses:from-domain": [domain],
        "ses:caller-identity": ["twin"],
        **{name: [value] for name, value in mail.variables.items()},
    }
    return {
        "timestamp": timestamp(datetime.fromtimestamp(mail.at, UTC)),
        "source": headers.get("From", mail.sender),
        "sourceArn": f"arn:aws:ses:{region}:{ACCOUNT}:identity/{domain}",
        "sendingAccountId": ACCOUNT,
        "messageId": mail.id,
        "destination": list(mail.recipients),
        "headersTruncated": False,
        "headers": [{"name": name, "value": value} for name, value in headers.items()],
        "commonHeaders": {**common, "to": list(mail.recipients)},
        "tags": tags,
    }


def _details(kind: Kind, recipients: list[str]) -> dict[str, Any]:
    now = timestamp()
    match kind:
        case "delivered":
            return {
                "timestamp": now,
                "processingTimeMillis": 546,
                "recipients": recipients,
                "smtpResponse": "250 2.6.0 Message received",
                "reportingMTA": "a8-70.smtp-out.amazonses.com",
            }
        case "bounced" | "soft_bounced":
            return _bounce(recipients, now, hard=kind == "bounced")
        case "deferred":
            return {
                "timestamp": now,
                "delayType": "TransientCommunicationFailure",
                "expirationTime": timestamp(
                    datetime.fromtimestamp(datetime.now(UTC).timestamp() + 50_400, UTC)
                ),
                "delayedRecipients": [
                    {
                        "emailAddress": one,
                        "status": "4.4.1",
                        "diagnosticCode": "smtp; 421 4.4.1 Unable to connect",
                    }
                    for one in recipients
                ],
            }
        case "dropped":
            return {"reason": "Bad content"}
        case "complained":
            return {
                "timestamp": now,
                "feedbackId": _feedback_id(),
                "complainedRecipients": [{"emailAddress": one} for one in recipients],
                "complaintFeedbackType": "abuse",
                "complaintSubType": None,
                "arrivalDate": now,
                "userAgent": "AnyCompany Feedback Loop (V0.01)",
            }
        case "opened":
            return {"timestamp": now, **_PLACE}
        case "clicked":
            return {"timestamp": now, "link": "https://example.com/", "linkTags": None, **_PLACE}
        case "unsubscribed":
            return {
                "contactList": "ContactListName",
                "timestamp": now,
                "source": "UnsubscribeHeader",
                "newTopicPreferences": {"unsubscribeAll": True},
                "oldTopicPreferences": {"unsubscribeAll": False},
            }


def _bounce(recipients: list[str], now: str, *, hard: bool) -> dict[str, Any]:
    code = "550 5.1.1 user unknown" if hard else "452 4.2.2 mailbox full"
    return {
        "bounceType": "Permanent" if hard else "Transient",
        "bounceSubType": "General" if hard else "MailboxFull",
        "bouncedRecipients": [
            {
                "emailAddress": one,
                "action": "failed",
                "status": code.split()[1],
                "diagnosticCode": f"smtp; {code}",
            }
            for one in recipients
        ],
        "timestamp": now,
        "feedbackId": _feedback_id(),
        "reportingMTA": "dsn; a8-70.smtp-out.amazonses.com",
    }


def _feedback_id() -> str:
    return f"0100{secrets.token_hex(6)}-{uuid.uuid4()}-000000"
