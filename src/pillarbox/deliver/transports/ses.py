"""Amazon SES, API version 2: takes a finished mail."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
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
    printable,
    rule,
    success,
)
from pillarbox.deliver.transports.sigv4 import AwsCredentials, SigV4Signer
from pillarbox.errors import NotPossible
from pillarbox.model.address import ascii_address
from pillarbox.model.outcome import Outcome, Reason, rejected
from pillarbox.model.provider_kinds.ses import KIND, SesSettings

JSON = "application/json"
ANY = range(400, 600)
# The reasons of SES's error names and messages. The text is "Name: message".
TABLE = [
    rule(ANY, Reason.SUSPENDED, r"^AccountSuspended"),
    rule(
        ANY,
        Reason.PAUSED,
        r"^SendingPaused|^(Account|ConfigurationSet)SendingPaused|sending (is )?(paused|disabled)",
    ),
    rule(ANY, Reason.QUOTA, r"daily (message )?(sending )?quota"),
    rule(
        ANY,
        Reason.RATE_LIMITED,
        r"^(TooManyRequests|Throttling|LimitExceeded|RequestThrottled|SlowDown)",
    ),
    rule(
        ANY,
        Reason.BLOCKED_SENDER,
        r"^MailFromDomainNotVerified|not verified|authority to send from",
    ),
    rule(ANY, Reason.POLICY, r"^MessageRejected"),
    rule(
        ANY,
        Reason.CREDENTIAL,
        r"^(AccessDenied|NotAuthorized|OptInRequired"
        r"|UnrecognizedClient|InvalidClientTokenId|ExpiredToken"
        r"|InvalidSignature|SignatureDoesNotMatch"
        r"|IncompleteSignature|MissingAuthenticationToken|RequestExpired"
        r"|RequestTimeTooSkewed|InvalidAccessKeyId)",
    ),
    rule(
        ANY, Reason.REFUSED, r"^NotFoundException"
    ),  # such as a configuration set that is not there
    rule(REFUSALS, Reason.TOO_BIG, r"^RequestTooLarge|message (length|size)|too (long|large|big)"),
    rule(
        REFUSALS,
        Reason.INVALID_RECIPIENT,
        r"illegal address|missing final '@domain'"
        r"|(domain|local( part)?) (contains|starts|ends|is empty)"
        r"|invalid (email|recipient)|(recipient|address).{0,40}(invalid|malformed|not (a )?valid)",
    ),
    rule(REFUSALS, Reason.MALFORMED, r"^(BadRequest|Validation|InvalidParameter|Serialization)"),
    rule(REFUSALS, Reason.UNAVAILABLE, r"^(Conflict|ConcurrentModification)"),
]


def _now() -> datetime:
    return datetime.now(UTC)


class SesApi:
    """The signed requests of one account in one region.

    Recipients are those of the envelope, so that Bcc stays hidden.
    """

    limits = KIND.limits

    def __init__(self, settings: SesSettings, now: Callable[[], datetime] = _now) -> None:
        secret = settings.secret_key.reveal() if settings.secret_key else ""
        self._signer = SigV4Signer(
            AwsCredentials(settings.access_key_id, secret), settings.region, "ses"
        )
        self._now = now
        root = URL(settings.endpoint.rstrip("/"))
        self._send = root / "v2/email/outbound-emails"
        self._account = root / "v2/email/account"
        self._configuration_set = ""
        if settings.configuration_set:
            name = json.dumps(settings.configuration_set)
            self._configuration_set = f'"ConfigurationSetName":{name},'

    def build_request(
        self, outgoing: OutgoingMail, recipients: Sequence[Recipient]
    ) -> ProviderRequest | Outcome:
        to = [ascii_address(recipient.address) for recipient in recipients]
        sender, from_field = "", ""
        if outgoing.sender:
            sender = ascii_address(outgoing.sender)
            from_field = f'"FromEmailAddress":{json.dumps(sender)},'
        if not all(address.isascii() for address in (sender, *to)):
            return rejected(Reason.UNSUPPORTED, None, "SES takes ASCII addresses only")
        # Written by hand: base64 needs no escaping, and a large mail is not copied once more.
        head = (
            f'{{{from_field}"Destination":{{"ToAddresses":{json.dumps(to)}}},'
            f"{self._configuration_set}"
            f'"EmailTags":[{{"Name":"pillarbox_message","Value":"{outgoing.message_id}"}}],'
            f'"Content":{{"Raw":{{"Data":"'
        )
        body = b"".join((head.encode(), b64encode(outgoing.content), b'"}}}'))
        return self._signed("POST", self._send, body)

    def interpret(self, response: ProviderResponse, now: float) -> Outcome:
        if is_success(response):
            return success(response, response.json().get("MessageId"))
        return classify(response, _text(response), TABLE, now)

    def invalid_recipients(
        self, response: ProviderResponse, outgoing: OutgoingMail, recipients: Sequence[Recipient]
    ) -> Sequence[int]:
        return ()

    def build_check(self) -> ProviderRequest:
        return self._signed("GET", self._account, b"")

    def read_check(self, response: ProviderResponse, now: float) -> str:
        if response.status == 404:  # moto, which stands for SES in tests, has no account
            return "Amazon SES answers, but reports nothing about the account (404)"
        if not is_success(response):
            outcome = self.interpret(response, now)
            raise NotPossible(f"{outcome.reason}: {response.status} {outcome.text}")
        account = response.json()
        if account.get("EnforcementStatus") == "SHUTDOWN":
            raise NotPossible("suspended: SES has shut the account down")
        if account.get("SendingEnabled") is False:
            raise NotPossible("paused: sending is switched off for the account")
        return _described(account)

    def _signed(self, method: str, url: URL, body: bytes) -> ProviderRequest:
        host = url.host_port_subcomponent or ""
        headers = {}
        if body:
            headers["Content-Type"] = JSON
        added = self._signer.sign(method, url.raw_path, headers | {"Host": host}, body, self._now())
        return ProviderRequest(method, url, headers | added, body)


def _described(account: Mapping[str, Any]) -> str:
    quota = account.get("SendQuota")
    if not isinstance(quota, dict):
        quota = {}
    sent, limit = quota.get("SentLast24Hours"), quota.get("Max24HourSend")
    status = printable(account.get("EnforcementStatus", "unknown"))
    line = (
        f"Amazon SES: account {status}; {sent} of {limit} mails in 24 hours,"
        f" {quota.get('MaxSendRate')} a second"
    )
    if not account.get("ProductionAccessEnabled", True):
        line += "; in the sandbox: verified recipients only"
    return line[:500]


def _text(response: ProviderResponse) -> str:
    """`Name: message`; the name is in a header or in the body, perhaps with a prefix or suffix."""
    payload = response.json()
    name = response.headers.get("x-amzn-errortype")
    name = str(name or payload.get("__type") or payload.get("code") or "")
    name = name.partition(":")[0].rpartition("#")[2]
    message = payload.get("message") or payload.get("Message") or response.text
    if not name:
        return str(message)
    return f"{name}: {message}"


def build_transport(settings: SesSettings, context: TransportContext) -> HttpTransport:
    api = SesApi(settings)
    return HttpTransport(context.http_client(), api, settings.connections, settings.timeout)
