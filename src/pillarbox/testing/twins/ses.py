"""A twin of Amazon SES (v2) with SNS: signed sends, GetAccount, and events in signed envelopes."""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pillarbox.testing.twins import ses_events, sns
from pillarbox.testing.twins.addresses import bare, is_address, may_send
from pillarbox.testing.twins.base import Kind, Signed, Twin
from pillarbox.testing.twins.dials import Trouble
from pillarbox.testing.twins.keys import rsa_key
from pillarbox.testing.twins.mail import TwinMail, mime_header
from pillarbox.testing.twins.sigv4 import Account, Refused, check
from pillarbox.testing.twins.wire import Answer, Request, json_answer

# https://docs.aws.amazon.com/ses/latest/dg/quotas.html
MAX_RECIPIENTS = 50
MAX_MESSAGE = 40 * 2**20
QUOTA = 50_000
_TAG = re.compile(r"[A-Za-z0-9_.@-]{1,256}")
SAID = {
    400: ("BadRequestException", "The input you provided is invalid."),
    403: ("AccessDeniedException", "User is not authorized to perform: ses:SendRawEmail"),
    404: ("NotFoundException", "The resource you attempted to access doesn't exist."),
    429: ("TooManyRequestsException", "Maximum sending rate exceeded."),
    500: ("InternalFailure", "The request processing has failed because of an unknown error."),
    503: ("ServiceUnavailable", "Service is unavailable, try again later."),
}
TROUBLES: Mapping[Trouble, tuple[int, str, str]] = {
    "credential": (
        403,
        "UnrecognizedClientException",
        "The security token included in the request is invalid.",
    ),
    "suspended": (
        400,
        "AccountSuspendedException",
        "Your account is suspended from sending email.",
    ),
    "paused": (
        400,
        "SendingPausedException",
        "Sending paused for this account. For more information, please check the inbox of the email address associated"
        " with your AWS account.",
    ),
    "quota": (400, "LimitExceededException", "Daily message quota exceeded."),
}


class Unfit(Exception):
    """A mail that SES does not take: status, the error's type, and what it says."""

    def __init__(self, message: str, error: str = "BadRequestException", status: int = 400) -> None:
        super().__init__(message)
        self.message, self.error, self.status = message, error, status


class SesTwin(Twin):
    """`verified` are the domains and addresses that may send; all unless given. `mail_from_ready=False` stands for a
    MAIL FROM domain whose records are missing."""

    kind = "ses"

    def __init__(
        self,
        *args: Any,
        region: str = "us-east-1",
        verified: Collection[str] | None = None,
        configuration_sets: Collection[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.region, self.verified = region, verified
        self.configuration_sets = configuration_sets  # that exist; any unless given
        self.mail_from_ready = True
        self.access_key_id = "AKIA" + secrets.token_hex(8).upper()
        self.secret_access_key = secrets.token_urlsafe(30)
        self.topic = f"arn:aws:sns:{region}:{sns.ACCOUNT}:ses-events"
        self.signature_version = "1"  # what SNS uses unless a topic asks for 2
        self.certificate_url: str | None = None  # in envelopes; the twin's own unless set
        self.confirmed: list[str] = []  # topics whose subscription was confirmed
        self._tokens: dict[str, str] = {}  # of confirmations asked for, with their topics

    @property
    def secret(self) -> str:
        return self.secret_access_key

    def provider_settings(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "region": self.region,
            "access_key_id": self.access_key_id,
            "topics": [self.topic],
        }

    # --- the API

    def is_send(self, request: Request) -> bool:
        return request.target == "/v2/email/outbound-emails" and request.method == "POST"

    def serve(self, request: Request) -> Answer:
        try:
            check(request, Account(self.access_key_id, self.secret_access_key, self.region))
            if self.is_send(request):
                return self._send(request)
        except Refused as refused:
            return _error(403, refused.error, refused.message)
        except Unfit as unfit:
            return _error(unfit.status, unfit.error, unfit.message)
        if request.path == "/v2/email/account" and request.method == "GET":
            return json_answer(200, self._account(), _request_id())
        return _error(404, "UnknownOperationException", "")

    def failure(self, status: int) -> Answer:
        return _error(status, *SAID.get(status, SAID[500 if status >= 500 else 400]))

    def troubled(self, trouble: Trouble, request: Request) -> Answer:
        if trouble != "credential" and not self.is_send(request):
            answer = self.serve(request)
            if answer.status == 200:
                return json_answer(200, self._account(trouble), _request_id())
            return answer
        return _error(*TROUBLES[trouble])

    def _account(self, trouble: Trouble | None = None) -> dict[str, Any]:
        sent = QUOTA if trouble == "quota" else min(self.accepted, QUOTA - 1)
        return {
            "DedicatedIpAutoWarmupEnabled": False,
            "EnforcementStatus": "SHUTDOWN" if trouble == "suspended" else "HEALTHY",
            "ProductionAccessEnabled": True,
            "SendQuota": {
                "Max24HourSend": float(QUOTA),
                "MaxSendRate": 14.0,
                "SentLast24Hours": float(sent),
            },
            "SendingEnabled": trouble not in ("paused", "suspended"),
            "SuppressionAttributes": {"SuppressedReasons": ["BOUNCE", "COMPLAINT"]},
        }

    def _send(self, request: Request) -> Answer:
        try:
            body = request.json()
        except ValueError:
            raise Unfit("", "SerializationException") from None
        if not isinstance(body, dict):
            raise Unfit("", "SerializationException")
        mail = self._mail(body, request)
        self.keep(mail)
        return json_answer(200, {"MessageId": mail.id}, _request_id())

    def _mail(self, body: dict[str, Any], request: Request) -> TwinMail:
        mime, subject = _content(body.get("Content"))
        recipients = _recipients(body.get("Destination") or {})
        sender = bare(body.get("FromEmailAddress") or (mime and mime_header(mime, "From")) or "")
        self._check_sender(sender)
        tags = _tags(body.get("EmailTags") or [])
        named = body.get("ConfigurationSetName")
        if (
            named is not None
            and self.configuration_sets is not None
            and named not in self.configuration_sets
        ):
            raise Unfit(f"Configuration set <{named}> does not exist.", "NotFoundException", 404)
        return TwinMail(
            id=f"0100{secrets.token_hex(6)}-{uuid.uuid4()}-000000",
            sender=sender,
            recipients=recipients,
            subject=subject,
            mime=mime,
            body=body,
            message_uuid=tags.get("pillarbox_message"),
            headers=request.headers,
            variables=tags,
        )

    def _check_sender(self, sender: str) -> None:
        if not is_address(sender):
            raise Unfit("Missing required header 'From'." if not sender else "Illegal address")
        if not may_send(sender, self.verified):
            raise Unfit(
                "Email address is not verified. The following identities failed the check in region"
                f" {self.region.upper()}: {sender}",
                "MessageRejected",
            )
        if not self.mail_from_ready:
            raise Unfit(
                "The message can't be sent because the sending domain isn't verified.",
                "MailFromDomainNotVerifiedException",
            )

    # --- SNS

    def beside(self, request: Request) -> Answer | None:
        if request.target == self._certificate_path and request.method == "GET":
            return Answer(200, rsa_key("sns").certificate, {"Content-Type": "binary/octet-stream"})
        query = request.query if request.target.startswith("/?") else {}
        if query.get("Action") != "ConfirmSubscription":
            return None
        topic = self._tokens.get(query.get("Token", ""))
        if topic is None or topic != query.get("TopicArn"):
            return Answer(
                400, b"<ErrorResponse><Error><Code>InvalidParameter</Code></Error></ErrorResponse>"
            )
        self.confirmed.append(topic)
        return Answer(200, sns.confirmed(topic), {"Content-Type": "text/xml"})

    @property
    def certificate(self) -> bytes:
        """PEM of the certificate that SNS signs with."""
        return rsa_key("sns").certificate

    @property
    def _certificate_path(self) -> str:
        return f"/SimpleNotificationService-{rsa_key('sns').fingerprint}.pem"

    def describe(
        self, mail: TwinMail, kind: Kind, recipient: str | None, more: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        recipients = list(mail.recipients) if recipient is None else [recipient]
        return [ses_events.describe(mail, kind, recipients, self.region, more)]

    def sign(
        self, events: Sequence[dict[str, Any]], *, forged: bool = False, topic: str | None = None
    ) -> Signed:
        [event] = events
        return self._signed(
            sns.notification(json.dumps(event), topic or self.topic, self.url), forged
        )

    def confirmation(
        self,
        kind: str = "SubscriptionConfirmation",
        *,
        topic: str | None = None,
        forged: bool = False,
    ) -> Signed:
        """The signed request, not sent, that asks to confirm a subscription or its end."""
        envelope = sns.confirmation(kind, topic or self.topic, self.url)
        self._tokens[envelope["Token"]] = envelope["TopicArn"]
        return self._signed(envelope, forged)

    async def subscribe(self, *, topic: str | None = None) -> int:
        """Ask the endpoint to confirm a subscription; whether it did is seen in `confirmed`."""
        return await self.post(*self.confirmation(topic=topic))

    def _signed(self, envelope: Mapping[str, str], forged: bool) -> Signed:
        where = self.certificate_url or self.url + self._certificate_path
        return sns.signed(
            envelope, rsa_key("forger" if forged else "sns"), self.signature_version, where
        )


def _error(status: int, error: str, message: str) -> Answer:
    return json_answer(status, {"message": message}, {"x-amzn-ErrorType": error, **_request_id()})


def _request_id() -> dict[str, str]:
    return {"x-amzn-RequestId": str(uuid.uuid4())}


def _content(content: Any) -> tuple[bytes | None, str]:
    """The MIME, where there is one, and the subject."""
    content = content if isinstance(content, dict) else {}
    if isinstance(simple := content.get("Simple"), dict):
        return None, str((simple.get("Subject") or {}).get("Data", ""))
    if not isinstance(raw := content.get("Raw"), dict) or not isinstance(raw.get("Data"), str):
        raise Unfit("One of Raw, Simple or Template must be provided.")
    try:
        mime = base64.b64decode(raw["Data"], validate=True)
    except binascii.Error:
        raise Unfit("", "SerializationException") from None
    if len(mime) > MAX_MESSAGE:
        raise Unfit(f"Message length is more than {MAX_MESSAGE} bytes long: '{len(mime)}'.")
    return mime, mime_header(mime, "Subject") or ""


def _recipients(destination: dict[str, Any]) -> tuple[str, ...]:
    fields = ("ToAddresses", "CcAddresses", "BccAddresses")
    mailboxes = [one for field in fields for one in destination.get(field) or ()]
    if len(mailboxes) > MAX_RECIPIENTS:
        raise Unfit(f"Recipient count exceeds {MAX_RECIPIENTS}.")
    addresses = tuple(bare(one) for one in mailboxes)
    if not addresses:
        raise Unfit("Destination must have at least one recipient.")
    if not all(is_address(one) for one in addresses):
        raise Unfit("Illegal address")
    if not all(one.isascii() for one in addresses):
        raise Unfit("Local address contains control or whitespace or is not ASCII")
    return addresses


def _tags(tags: list[dict[str, str]]) -> dict[str, str]:
    for tag in tags:
        for part in ("Name", "Value"):
            if not _TAG.fullmatch(str(tag.get(part, ""))):
                raise Unfit(
                    f"Invalid tag {part.lower()} <{tag.get(part)}>: only alphanumeric ASCII characters, '_', '-'."
                )
    return {tag["Name"]: tag["Value"] for tag in tags}
