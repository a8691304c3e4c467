"""A twin of SendGrid: POST /v3/mail/send, GET /v3/scopes, and its signed event webhook."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pillarbox.testing.twins.addresses import may_send
from pillarbox.testing.twins.base import Kind, Signed, Twin
from pillarbox.testing.twins.dials import Trouble
from pillarbox.testing.twins.keys import ecdsa_key
from pillarbox.testing.twins.mail import TwinMail
from pillarbox.testing.twins.sendgrid_events import describe
from pillarbox.testing.twins.sendgrid_rules import Fault, faults, people
from pillarbox.testing.twins.wire import Answer, Request, json_answer

# https://www.twilio.com/docs/sendgrid/api-reference/mail-send/limitations: 30 MB for the whole
# request.
MAX_REQUEST = 30 * 2**20
SCOPES = [
    "2fa_required",
    "alerts.read",
    "mail.batch.create",
    "mail.send",
    "sender_verification_eligible",
]
SAID = {
    400: "Bad Request",
    401: "The provided authorization grant is invalid, expired, or revoked",
    403: "access forbidden",
    404: "not found",
    413: "Request Entity Too Large",
    415: "Content-Type should be application/json.",
    429: "too many requests",
    500: "Internal server error",
    503: "service unavailable",
}
TROUBLES: Mapping[Trouble, tuple[int, str]] = {
    "credential": (401, SAID[401]),
    "suspended": (403, "You are not authorized to access SendGrid, please contact Support."),
    "paused": (403, "Your account is temporarily under review. Sending is paused."),
    "quota": (401, "Maximum credits exceeded"),
}
UNVERIFIED = (
    "The from address does not match a verified Sender Identity. Mail cannot be sent until this error is resolved."
    " Visit https://sendgrid.com/docs/for-developers/sending-email/sender-identity/ to see the Sender Identity"
    " requirements"
)


class SendGridTwin(Twin):
    """`verified` are the domains and addresses that may send; all unless given."""

    kind = "sendgrid"
    batch = 100

    def __init__(self, *args: Any, verified: Collection[str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.verified = verified
        self.api_key = f"SG.{secrets.token_urlsafe(16)}.{secrets.token_urlsafe(32)}"

    @property
    def secret(self) -> str:
        return self.api_key

    @property
    def webhook_key(self) -> str:
        """The public key of its webhook, as SendGrid shows it: DER in base64."""
        return ecdsa_key("sendgrid").public

    def provider_settings(self) -> dict[str, Any]:
        return {"url": self.url, "webhook_key": self.webhook_key}

    # --- the API

    def is_send(self, request: Request) -> bool:
        return request.target == "/v3/mail/send" and request.method == "POST"

    def serve(self, request: Request) -> Answer:
        if request.headers.get("authorization") != f"Bearer {self.api_key}":
            return self.failure(401)
        if self.is_send(request):
            return self._send(request)
        if request.path == "/v3/scopes" and request.method == "GET":
            return json_answer(200, {"scopes": SCOPES})
        return self.failure(404)

    def failure(self, status: int) -> Answer:
        headers = (
            {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": f"{time.time() + 60:.0f}"}
            if status == 429
            else {}
        )
        return _errors(status, [Fault(SAID.get(status, "Internal server error"))], headers)

    def troubled(self, trouble: Trouble, request: Request) -> Answer:
        if trouble in ("paused", "quota") and not self.is_send(request):
            return self.serve(request)  # the account itself is fine
        status, message = TROUBLES[trouble]
        return _errors(status, [Fault(message)])

    def _send(self, request: Request) -> Answer:
        if len(request.body) > MAX_REQUEST:
            return self.failure(413)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return self.failure(415)
        try:
            body = request.json()
        except ValueError:
            return self.failure(400)
        if not isinstance(body, dict):
            return self.failure(400)
        if found := faults(body):
            return _errors(400, found)
        if not may_send(body["from"]["email"], self.verified):
            return _errors(403, [Fault(UNVERIFIED, "from")])
        mail = _mail(body, request)
        self.keep(mail)
        return Answer(202, headers={"X-Message-Id": mail.id})

    # --- its webhook

    def describe(
        self, mail: TwinMail, kind: Kind, recipient: str | None, more: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        recipients = mail.recipients if recipient is None else [recipient]
        return [describe(mail, kind, one, more) for one in recipients]

    def sign(
        self, events: Sequence[dict[str, Any]], *, forged: bool = False, at: float | None = None
    ) -> Signed:
        body = json.dumps(events).encode()
        timestamp = str(int(time.time() if at is None else at))
        key = ecdsa_key("forger" if forged else "sendgrid")
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "SendGrid Event API",
            "X-Twilio-Email-Event-Webhook-Signature": key.sign(timestamp.encode() + body),
            "X-Twilio-Email-Event-Webhook-Timestamp": timestamp,
        }
        return headers, body


def _errors(
    status: int, found: Sequence[Fault], headers: Mapping[str, str] | None = None
) -> Answer:
    return json_answer(status, {"errors": [fault.shown() for fault in found]}, headers)


def _mail(body: dict[str, Any], request: Request) -> TwinMail:
    recipients: dict[str, None] = {}
    personal: dict[str, dict[str, str]] = {}
    for personalization in body["personalizations"]:
        own = personalization.get("custom_args") or {}
        for address in people(personalization):
            recipients[address] = None
            if own:
                personal[address] = own
    variables = body.get("custom_args") or {}
    first = body["personalizations"][0]
    return TwinMail(
        id=secrets.token_urlsafe(16),
        sender=body["from"]["email"],
        recipients=tuple(recipients),
        subject=first.get("subject") or body.get("subject", ""),
        mime=None,
        body=body,
        message_uuid=variables.get("pillarbox_message")
        or (first.get("custom_args") or {}).get("pillarbox_message"),
        headers=request.headers,
        variables=variables,
        personal=personal,
    )
