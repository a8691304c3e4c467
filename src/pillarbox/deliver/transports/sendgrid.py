"""SendGrid: takes the parts of a mail as JSON, and composes it itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from yarl import URL

from pillarbox.deliver.transports.base import OutgoingMail, Recipient, TransportContext
from pillarbox.deliver.transports.http import HttpTransport
from pillarbox.deliver.transports.http_request import ProviderRequest
from pillarbox.deliver.transports.http_responses import (
    REFUSALS,
    ProviderResponse,
    classify,
    is_success,
    rule,
    success,
)
from pillarbox.deliver.transports.sendgrid_mail import layout, mail
from pillarbox.errors import NotPossible
from pillarbox.model.outcome import Outcome, Reason, rejected
from pillarbox.model.provider_kinds.sendgrid import KIND, SendgridSettings

JSON = "application/json"
# SendGrid counts the whole request, files in base64 included.
MAX_REQUEST = KIND.limits.max_bytes or 0
# The reasons of SendGrid's statuses and errors. The text is "field: message" of each error.
TABLE = [
    rule(
        REFUSALS,
        Reason.QUOTA,
        r"maximum credits|credits? exceeded|sending limit|upgrade your (plan|account)",
    ),
    rule(
        REFUSALS,
        Reason.PAUSED,
        r"under review|sending is paused|temporarily (suspended|disabled|paused)",
    ),
    rule(
        REFUSALS,
        Reason.SUSPENDED,
        r"not authorized to access sendgrid"
        r"|account.{0,60}(suspended|disabled|deactivated|banned|closed|frozen)",
    ),
    rule(REFUSALS, Reason.BLOCKED_SENDER, r"verified sender identity|^from(\.email)?: "),
    rule(401, Reason.CREDENTIAL),
    rule(403, Reason.CREDENTIAL),
    rule(
        400,
        Reason.TOO_BIG,
        r"too (large|big)|(size|attachments?).{0,60}exceed|exceeds.{0,40}(size|limit|bytes)",
    ),
    rule(400, Reason.INVALID_RECIPIENT, r"personalizations\.\d+\.(to|cc|bcc)\b"),
    rule(400, Reason.POLICY, r"\bspam|policy|blocked"),
    rule(400, Reason.MALFORMED),
]
_FIELD = re.compile(r"personalizations\.(\d+)\.(to|cc|bcc)\.(\d+)(?:\.|$)")


class SendGridApi:
    """The requests of one account. Raw mails cannot be sent: SendGrid writes the MIME."""

    limits = KIND.limits

    def __init__(self, settings: SendgridSettings, provider_id: int) -> None:
        key = settings.key.reveal() if settings.key else ""
        self._authorization = f"Bearer {key}"
        self._provider = str(provider_id)
        root = URL(settings.url.rstrip("/"))
        self._send = root / "v3/mail/send"
        self._scopes = root / "v3/scopes"

    def build_request(
        self, outgoing: OutgoingMail, recipients: Sequence[Recipient]
    ) -> ProviderRequest | Outcome:
        message, parts = outgoing.message, outgoing.parts
        if message is None or parts is None or parts.raw is not None:
            return rejected(Reason.UNSUPPORTED, None, "SendGrid's API takes no finished mails")
        body = json.dumps(
            mail(message, parts, recipients, self._provider), separators=(",", ":")
        ).encode()
        if len(body) > MAX_REQUEST:
            return rejected(
                Reason.TOO_BIG, None, f"{len(body):,} bytes; SendGrid takes {MAX_REQUEST:,}"
            )
        return ProviderRequest(
            "POST", self._send, {"Authorization": self._authorization, "Content-Type": JSON}, body
        )

    def interpret(self, response: ProviderResponse, now: float) -> Outcome:
        if is_success(response):
            return success(response, response.headers.get("x-message-id"))
        return classify(response, _text(response), TABLE, now)

    def invalid_recipients(
        self, response: ProviderResponse, outgoing: OutgoingMail, recipients: Sequence[Recipient]
    ) -> Sequence[int]:
        assert outgoing.message is not None
        personalizations = layout(outgoing.message, recipients)
        invalid: set[int] = set()
        for field, _ in _errors(response):
            named = _FIELD.match(field)
            if named is None or int(named[1]) >= len(personalizations):
                continue
            listed = getattr(personalizations[int(named[1])], named[2])
            index = int(named[3])
            if index < len(listed):
                invalid.update(listed[index].indexes)
        return sorted(invalid)

    def build_check(self) -> ProviderRequest:
        return ProviderRequest("GET", self._scopes, {"Authorization": self._authorization})

    def read_check(self, response: ProviderResponse, now: float) -> str:
        if not is_success(response):
            outcome = self.interpret(response, now)
            raise NotPossible(f"{outcome.reason}: {response.status} {outcome.text}")
        scopes = response.json().get("scopes")
        if not isinstance(scopes, list) or "mail.send" not in scopes:
            raise NotPossible(
                "credential: the API key may not send mails: give it the permission Mail Send"
            )
        return f"SendGrid: the API key may send mails, and has {len(scopes)} permissions"


def _errors(response: ProviderResponse) -> list[tuple[str, str]]:
    """Field and message of each error that SendGrid reports."""
    errors: Any = response.json().get("errors")
    if not isinstance(errors, list):
        return []
    return [
        (str(error.get("field") or ""), str(error.get("message") or ""))
        for error in errors
        if isinstance(error, Mapping)
    ]


def _text(response: ProviderResponse) -> str:
    parts = []
    for field, message in _errors(response):
        parts.append(f"{field}: {message}" if field else message)
    return "; ".join(parts) or response.text


def build_transport(settings: SendgridSettings, context: TransportContext) -> HttpTransport:
    api = SendGridApi(settings, context.provider_id)
    return HttpTransport(context.http_client(), api, settings.connections, settings.timeout)
