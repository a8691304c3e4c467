"""What HTTP providers' answers mean. Pure: no sockets."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from uuid import uuid4

import pytest
from yarl import URL

from pillarbox.deliver.transports.base import OutgoingMail, Recipient
from pillarbox.deliver.transports.http_request import HttpTranscript, ProviderRequest
from pillarbox.deliver.transports.http_responses import ProviderResponse, retry_after
from pillarbox.deliver.transports.http_send import ProviderApi
from pillarbox.deliver.transports.mailgun import MailgunApi
from pillarbox.deliver.transports.sendgrid import SendGridApi
from pillarbox.deliver.transports.ses import SesApi
from pillarbox.model.outcome import Outcome, Reason, Verdict
from pillarbox.model.provider_kinds.mailgun import MailgunSettings
from pillarbox.model.provider_kinds.sendgrid import SendgridSettings
from pillarbox.model.provider_kinds.ses import SesSettings

NOW = 1_800_000_000.0
SENDGRID = SendGridApi(SendgridSettings(), 1)
SES = SesApi(SesSettings("eu-west-1", "AKIAIOSFODNN7EXAMPLE"))
MAILGUN = MailgunApi(MailgunSettings("mg.shop.example"))


def judged(api: ProviderApi, status: int, body: Any = None, **headers: str) -> Outcome:
    data = (
        body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
    )
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.interpret(ProviderResponse(status, named, data), NOW)


def sendgrid(status: int, message: str, field: str | None = None) -> Outcome:
    return judged(
        SENDGRID, status, {"errors": [{"message": message, "field": field, "help": None}]}
    )


def ses(status: int, name: str, message: str = "") -> Outcome:
    return judged(
        SES,
        status,
        {"message": message},
        x_amzn_errortype=f"{name}:http://internal.amazon.com/coral/",
    )


def mailgun(status: int, message: str) -> Outcome:
    return judged(MAILGUN, status, {"message": message})


@pytest.mark.req("REQ-QUEUE-N002")
@pytest.mark.req("REQ-QUEUE-E005")
@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (sendgrid(400, "Does not contain a valid address.", "personalizations.0.to.0.email"), Reason.INVALID_RECIPIENT),
        (sendgrid(400, "The from email does not contain a valid address.", "from.email"), Reason.BLOCKED_SENDER),
        (sendgrid(403, "The from address does not match a verified Sender Identity.", "from"), Reason.BLOCKED_SENDER),
        (sendgrid(413, "Request Entity Too Large"), Reason.TOO_BIG),
        (sendgrid(400, "The attachments exceed the maximum size", "attachments"), Reason.TOO_BIG),
        (sendgrid(400, "The subject is required.", "subject"), Reason.MALFORMED),
        (sendgrid(406, "Missing Accept header."), Reason.REFUSED),
        (ses(400, "MessageRejected", "Email address is not verified. The following identities"), Reason.BLOCKED_SENDER),
        (ses(400, "MessageRejected", "Transaction failed: Attachment has a virus"), Reason.POLICY),
        (ses(400, "MailFromDomainNotVerifiedException", "The domain isn't"), Reason.BLOCKED_SENDER),
        (ses(400, "BadRequestException", "Missing final '@domain'"), Reason.INVALID_RECIPIENT),
        (ses(400, "BadRequestException", "Message length is more than 41943040 bytes long"), Reason.TOO_BIG),
        (ses(400, "BadRequestException", "Missing required header 'From'."), Reason.MALFORMED),
        (ses(404, "NotFoundException", "Configuration set <x> does not exist."), Reason.REFUSED),
        (mailgun(400, "'to' parameter is not a valid address. please check documentation"), Reason.INVALID_RECIPIENT),
        (mailgun(400, "'from' parameter is not a valid address. please check documentation"), Reason.BLOCKED_SENDER),
        (mailgun(403, "Domain x.example is not allowed to send: The domain is unverified"), Reason.BLOCKED_SENDER),
        (mailgun(413, "Message size exceeds the limit"), Reason.TOO_BIG),
        (mailgun(400, "message parameter is missing"), Reason.MALFORMED),
    ],
)  # fmt: skip
def test_what_is_the_mails_own_fault_is_final(outcome: Outcome, reason: Reason) -> None:
    assert (outcome.verdict, outcome.reason) == (Verdict.REJECTED, reason)
    assert outcome.text


@pytest.mark.req("REQ-QUEUE-E004")
@pytest.mark.req("REQ-QUEUE-E005")
@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (sendgrid(401, "The provided authorization grant is invalid, expired, or revoked"), Reason.CREDENTIAL),
        (sendgrid(401, "Maximum credits exceeded"), Reason.QUOTA),
        (sendgrid(403, "access forbidden"), Reason.CREDENTIAL),
        (sendgrid(403, "Your account has been suspended."), Reason.SUSPENDED),
        (sendgrid(429, "too many requests"), Reason.RATE_LIMITED),
        (sendgrid(404, "not found"), Reason.PROTOCOL),
        (ses(429, "TooManyRequestsException", "Maximum sending rate exceeded."), Reason.RATE_LIMITED),
        (ses(400, "LimitExceededException", "Too many"), Reason.RATE_LIMITED),
        (ses(400, "ThrottlingException", "Rate exceeded"), Reason.RATE_LIMITED),
        (ses(400, "LimitExceededException", "Daily message quota exceeded."), Reason.QUOTA),
        (ses(400, "AccountSuspendedException", "no"), Reason.SUSPENDED),
        (ses(400, "SendingPausedException", "no"), Reason.PAUSED),
        (ses(403, "InvalidSignatureException", "The request signature we calculated"), Reason.CREDENTIAL),
        (ses(403, "AccessDeniedException", "User is not authorized"), Reason.CREDENTIAL),
        (ses(400, "RequestExpired", ""), Reason.CREDENTIAL),
        (ses(500, "InternalFailure"), Reason.UNAVAILABLE),
        (ses(503, "ServiceUnavailable"), Reason.UNAVAILABLE),
        (mailgun(429, "Too many requests"), Reason.RATE_LIMITED),
        (mailgun(402, "Request failed"), Reason.QUOTA),
        (mailgun(404, "Domain not found: mg.shop.example"), Reason.CREDENTIAL),
        (judged(MAILGUN, 401, b"Forbidden"), Reason.CREDENTIAL),
        (judged(SENDGRID, 408), Reason.TIMEOUT),
        (judged(SENDGRID, 302), Reason.PROTOCOL),
        (judged(SENDGRID, 777), Reason.PROTOCOL),
    ],
)  # fmt: skip
def test_what_can_end_otherwise_later_is_deferred(outcome: Outcome, reason: Reason) -> None:
    assert (outcome.verdict, outcome.reason) == (Verdict.DEFERRED, reason)


def test_nobody_knows_what_became_of_a_mail_behind_a_gateway_that_gave_up() -> None:
    outcome = judged(MAILGUN, 504, b"<html>gateway</html>")
    assert (outcome.verdict, outcome.reason, outcome.code) == (Verdict.UNKNOWN, Reason.TIMEOUT, 504)


def test_errors_of_ses_may_stand_in_the_body() -> None:
    outcome = judged(
        SES, 400, {"__type": "com.amazonaws.ses#SendingPausedException", "Message": "no"}
    )
    assert outcome.reason is Reason.PAUSED


@pytest.mark.parametrize("api", [SENDGRID, SES, MAILGUN])
@pytest.mark.parametrize(
    "body", [b"", b"\xff\x00not json", b"[1]", b'{"errors": 5}', b'{"errors": [null]}', b"null"]
)
def test_odd_bodies_harm_nobody(api: ProviderApi, body: bytes) -> None:
    assert judged(api, 202, body).verdict is Verdict.ACCEPTED
    outcome = judged(api, 400, body)
    assert outcome.verdict is Verdict.REJECTED
    assert "\x00" not in str(outcome.text)


@pytest.mark.req("REQ-QUEUE-E003")
def test_each_provider_has_a_name_for_an_accepted_mail() -> None:
    assert judged(SENDGRID, 202, None, x_message_id="sg-1").provider_message_id == "sg-1"
    assert judged(SES, 200, {"MessageId": "0100-1"}).provider_message_id == "0100-1"
    assert (
        judged(MAILGUN, 200, {"id": "<1@mg>", "message": "Queued."}).provider_message_id == "1@mg"
    )
    assert judged(SES, 200, {"MessageId": 5}).provider_message_id is None


@pytest.mark.req("REQ-QUEUE-S005")
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "17"}, 17.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "99999999"}, 3600.0),
        ({"retry-after": format_datetime(datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=90), True)}, 90.0),
        ({"retry-after": format_datetime(datetime.fromtimestamp(NOW, UTC) - timedelta(seconds=90), True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"x-ratelimit-reset": f"{NOW + 42:.0f}", "x-ratelimit-remaining": "0"}, 42.0),
        ({"x-ratelimit-reset": f"{NOW * 1000 + 42_000:.0f}"}, 42.0),
        ({"x-ratelimit-reset": "42"}, 42.0),
        ({"x-ratelimit-reset": f"{NOW + 42:.0f}", "x-ratelimit-remaining": "5"}, None),
        ({"x-ratelimit-reset": "x"}, None),
    ],
)  # fmt: skip
def test_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == pytest.approx(seconds)


@pytest.mark.req("REQ-QUEUE-N003")
def test_a_record_holds_what_was_said_and_no_header_of_ours() -> None:
    record = HttpTranscript(10.0)
    call = ProviderRequest(
        "POST", URL("https://api.example/v3/send"), {"Authorization": "Bearer k"}, b"x" * 2048
    )
    record.sent(10.0, call, "id/1")
    record.received(
        10.25,
        ProviderResponse(
            429, {"retry-after": "3", "set-cookie": "c"}, b"slow\r\ndown" + b"!" * 9999
        ),
    )
    record.remark(10.5, "gave up")
    lines = record.text().splitlines()
    assert lines[:3] == [
        "    +0 ms → POST /v3/send HTTP/1.1",
        "    +0 ms → Host: api.example",
        "    +0 ms → X-Pillarbox-Attempt: id/1",
    ]
    assert lines[3] == "    +0 ms → (2,048 bytes)"
    assert lines[4:6] == [
        "  +250 ms ← HTTP/1.1 429 Too Many Requests",
        "  +250 ms ← retry-after: 3",
    ]
    assert lines[6].startswith("  +250 ms ← slow  down!!!")
    assert len(lines[6]) < 5000
    assert lines[7:] == ["  +500 ms ! gave up"]
    assert "Bearer" not in record.text() + repr(call)


def test_a_sender_adds_no_variables_of_its_own() -> None:
    """By `pillarbox_message` feedback finds its message: whoever could name another's could make that one bounce."""
    theirs = b'x-mailgun-Variables: {\r\n "pillarbox_message": "theirs"}\r\n'
    head = b"From: a@x.test\r\n" + theirs + b"X-Mailgun-Tag: t\r\nSubject: s\r\n"
    outgoing = OutgoingMail(
        uuid4(),
        1,
        "a@x.test",
        [Recipient(0, "b@x.test")],
        head + b"\r\nX-Mailgun-Variables: said\r\n",
    )
    call = MAILGUN.build_request(outgoing, outgoing.recipients)
    assert isinstance(call, ProviderRequest)
    assert b"theirs" not in call.body
    assert (
        b"From: a@x.test\r\nX-Mailgun-Tag: t\r\nSubject: s\r\n\r\nX-Mailgun-Variables: said\r\n"
        in call.body
    )
    assert call.body.count(b"pillarbox_message") == 1


@pytest.mark.parametrize("api", [SENDGRID, SES, MAILGUN])
@pytest.mark.parametrize(
    "body", [b"[" * 2000 + b"]" * 2000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b"[" * 100_000]
)
def test_an_answer_nested_too_deeply_is_judged_by_its_status(api: ProviderApi, body: bytes) -> None:
    """The provider has answered: what becomes of the mail is known."""
    assert judged(api, 400, body).verdict is Verdict.REJECTED
    assert judged(api, 503, body).verdict is Verdict.DEFERRED
