"""Mailgun: takes a finished mail for one sending domain."""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from collections.abc import Sequence

from yarl import URL

from pillarbox.deliver.transports.base import OutgoingMail, Recipient, TransportContext
from pillarbox.deliver.transports.http import HttpTransport
from pillarbox.deliver.transports.http_request import ProviderRequest
from pillarbox.deliver.transports.http_responses import (
    REFUSALS,
    ProviderResponse,
    classify,
    is_success,
    printable,
    rule,
    success,
)
from pillarbox.errors import NotPossible
from pillarbox.model.address import ascii_address
from pillarbox.model.outcome import Outcome, Reason
from pillarbox.model.provider_kinds.mailgun import KIND, MailgunSettings

# The reasons of Mailgun's statuses and texts.
TABLE = [
    rule(
        REFUSALS,
        Reason.PAUSED,
        r"temporarily (disabled|paused)|sending (is )?(paused|disabled)|probation",
    ),
    rule(
        REFUSALS,
        Reason.SUSPENDED,
        r"account.{0,40}(disabled|suspended|closed)"
        r"|(disabled|suspended).{0,20}account|activate your mailgun account",
    ),
    rule(
        REFUSALS,
        Reason.QUOTA,
        r"(monthly|daily|message|recipient|sending|plan|account) "
        r"(limit|quota)[^.]{0,30}(exceeded|reached)"
        r"|exceeded (your|the).{0,40}(limit|quota)|quota exceeded|upgrade your plan",
    ),
    rule(402, Reason.QUOTA),
    rule(420, Reason.RATE_LIMITED),
    rule(429, Reason.RATE_LIMITED),
    rule(
        REFUSALS,
        Reason.RATE_LIMITED,
        r"rate.?limit|too many requests|limit exceeded|try again (after|later)",
    ),
    rule(401, Reason.CREDENTIAL),
    rule(404, Reason.CREDENTIAL, r"domain not found"),  # it is not one of this account's
    rule(
        403,
        Reason.BLOCKED_SENDER,
        r"not allowed to send|unverified|not verified|authorized recipients",
    ),
    rule(
        REFUSALS, Reason.TOO_BIG, r"(message|request|size).{0,40}(too (big|large)|exceed)|too large"
    ),
    rule(
        REFUSALS,
        Reason.BLOCKED_SENDER,
        r"\bfrom\b'? parameter|sender.{0,30}(invalid|not (allowed|valid|verified))",
    ),
    rule(
        REFUSALS,
        Reason.INVALID_RECIPIENT,
        r"\bto\b'? parameter|recipient.{0,40}(invalid|not (a )?valid|malformed|does not exist)"
        r"|not a valid address",
    ),
    rule(REFUSALS, Reason.POLICY, r"\bspam|polic(y|ies)|blocked|virus|phish"),
    rule(400, Reason.MALFORMED),
]


# Mailgun adds the values of this header to our variables, by which feedback finds its message: a
# sender must not name the message of another.
_VARIABLES = re.compile(
    rb"^x-mailgun-variables[ \t]*:.*\r\n(?:[ \t].*\r\n)*", re.IGNORECASE | re.MULTILINE
)


class MailgunApi:
    """The requests of one domain. Recipients are the envelope's, so that Bcc stays hidden."""

    limits = KIND.limits

    def __init__(self, settings: MailgunSettings) -> None:
        key = settings.key.reveal() if settings.key else ""
        self._authorization = "Basic " + b64encode(f"api:{key}".encode()).decode()
        root = URL(settings.endpoint.rstrip("/"))
        self._domain = settings.domain
        self._send = root / "v3" / settings.domain / "messages.mime"
        self._about = root / "v3/domains" / settings.domain

    def build_request(
        self, outgoing: OutgoingMail, recipients: Sequence[Recipient]
    ) -> ProviderRequest | Outcome:
        addresses = [ascii_address(recipient.address) for recipient in recipients]
        if not all(address.isprintable() for address in addresses):
            raise ValueError("an address must not contain control characters")
        # Random, so that the content of a mail cannot end its own part.
        boundary = secrets.token_hex(24)
        part = f"--{boundary}\r\nContent-Disposition: form-data; name="
        fields = [f'{part}"to"\r\n\r\n{address}\r\n' for address in addresses]
        fields.append(f'{part}"v:pillarbox_message"\r\n\r\n{outgoing.message_id}\r\n')
        fields.append(
            f'{part}"message"; filename="mail.eml"\r\nContent-Type: message/rfc822\r\n\r\n'
        )
        body = b"".join(
            (
                "".join(fields).encode(),
                _without_variables(outgoing.content),
                f"\r\n--{boundary}--\r\n".encode(),
            )
        )
        headers = {
            "Authorization": self._authorization,
            "Content-Type": f"multipart/form-data; boundary={boundary}",
        }
        return ProviderRequest("POST", self._send, headers, body)

    def interpret(self, response: ProviderResponse, now: float) -> Outcome:
        payload = response.json()
        if is_success(response):
            message_id = payload.get("id")
            if isinstance(message_id, str):
                message_id = message_id.strip("<>")
            return success(response, message_id, str(payload.get("message", "")))
        return classify(response, str(payload.get("message") or response.text), TABLE, now)

    def invalid_recipients(
        self, response: ProviderResponse, outgoing: OutgoingMail, recipients: Sequence[Recipient]
    ) -> Sequence[int]:
        return ()

    def build_check(self) -> ProviderRequest:
        return ProviderRequest("GET", self._about, {"Authorization": self._authorization})

    def read_check(self, response: ProviderResponse, now: float) -> str:
        if not is_success(response):
            outcome = self.interpret(response, now)
            raise NotPossible(f"{outcome.reason}: {response.status} {outcome.text}")
        state = "unknown"
        domain = response.json().get("domain")
        if isinstance(domain, dict):
            state = printable(domain.get("state", state))[:100]
        if state == "disabled":
            raise NotPossible(f"suspended: Mailgun has disabled the domain {self._domain}")
        return f"Mailgun: the domain {self._domain} is {state}"


def _without_variables(mail: bytes) -> bytes:
    """The mail without variables that its sender set."""
    end = mail.find(b"\r\n\r\n") + 2
    if end < 2 or not _VARIABLES.search(mail, 0, end):
        return mail
    return _VARIABLES.sub(b"", mail[:end]) + mail[end:]


def build_transport(settings: MailgunSettings, context: TransportContext) -> HttpTransport:
    api = MailgunApi(settings)
    return HttpTransport(context.http_client(), api, settings.connections, settings.timeout)
