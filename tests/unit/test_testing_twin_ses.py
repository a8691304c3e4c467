"""The twin of SES and SNS: signatures really checked, what it refuses, and its signed envelopes."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509 import load_pem_x509_certificate
from tests.unit.twin_helpers import (
    MIME,
    UUID,
    aws_headers,
    call,
    check,
    listening,
    ses_mail,
    to_ses,
)

from pillarbox.model.provider_kinds.ses import SesSettings
from pillarbox.testing.twins import Dials, SesTwin
from pillarbox.testing.twins.sigv4 import Account, Refused
from pillarbox.testing.twins.sigv4 import check as check_signature
from pillarbox.testing.twins.sns import message_of
from pillarbox.testing.twins.wire import Request


@pytest.fixture
async def twin():
    async with SesTwin() as running:
        yield running


async def verify(headers: dict[str, str], body: bytes) -> dict[str, str]:
    """As SNS documents it, certificate fetched and all; returns the envelope."""
    envelope = json.loads(body)
    pem = (await call("GET", envelope["SigningCertURL"], {})).body
    key = load_pem_x509_certificate(pem).public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    said = [
        "Message",
        "MessageId",
        "Subject",
        "SubscribeURL",
        "Timestamp",
        "Token",
        "TopicArn",
        "Type",
    ]
    text = "".join(f"{name}\n{envelope[name]}\n" for name in said if name in envelope)
    digest = {"1": hashes.SHA1, "2": hashes.SHA256}[envelope["SignatureVersion"]]()
    key.verify(base64.b64decode(envelope["Signature"]), text.encode(), padding.PKCS1v15(), digest)
    assert headers["x-amz-sns-message-type"] == envelope["Type"]
    assert headers["x-amz-sns-topic-arn"] == envelope["TopicArn"]
    return envelope


async def test_accepts_mime_with_an_id(twin):
    answer = await to_ses(twin)
    assert answer.status == 200
    [mail] = twin.mails
    assert answer.json() == {"MessageId": mail.id}
    assert mail.mime == MIME
    assert mail.variables == {"pillarbox_message": UUID}
    SesSettings(**twin.provider_settings())


# --- Signature Version 4


@pytest.mark.parametrize(
    ("signing", "error"),
    [
        ({"secret": "wrong"}, "InvalidSignatureException"),
        ({"key_id": "AKIAWRONG"}, "UnrecognizedClientException"),
        ({"region": "eu-west-1"}, "InvalidSignatureException"),
    ],
)
async def test_refuses_what_is_not_signed_by_the_account(twin, signing, error):
    answer = await to_ses(twin, **signing)
    assert (answer.status, answer.headers["x-amzn-ErrorType"]) == (403, error)
    assert answer.json()["message"]
    assert twin.accepted == 0


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({}, "MissingAuthenticationTokenException"),
        ({"Authorization": "AWS4-HMAC-SHA256 nonsense"}, "IncompleteSignatureException"),
    ],
)
async def test_refuses_what_is_not_signed(twin, headers, error):
    answer = await call("GET", twin.url + "/v2/email/account", headers)
    assert (answer.status, answer.headers["x-amzn-ErrorType"]) == (403, error)


async def test_every_part_of_a_request_is_signed(twin):
    path, body = "/v2/email/outbound-emails", json.dumps(ses_mail()).encode()
    good = aws_headers(twin, "POST", path, body)
    for headers, sent in [
        (good, body + b" "),
        (
            good
            | {"X-Amz-Date": (datetime.now(UTC) + timedelta(seconds=1)).strftime("%Y%m%dT%H%M%SZ")},
            body,
        ),
        (good | {"Content-Type": "text/plain"}, body),
        (good | {"X-Amz-Extra": "unsigned"}, body),
        (good | {"X-Amz-Content-Sha256": "0" * 64}, body),
    ]:
        assert (await call("POST", twin.url + path, headers, sent)).status == 403
    assert (await call("POST", twin.url + path, good, body)).status == 200


@pytest.mark.parametrize(("minutes", "status"), [(-16, 403), (-14, 200), (14, 200), (16, 403)])
async def test_a_clock_may_be_off_by_a_quarter_of_an_hour(twin, minutes, status):
    assert (await to_ses(twin, at=datetime.now(UTC) + timedelta(minutes=minutes))).status == status


# From Amazon's published test suite of Signature Version 4.
SUITE_ACCOUNT = Account(
    "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "us-east-1", "service"
)
SUITE_TIME = datetime(2015, 8, 30, 12, 36, tzinfo=UTC).timestamp()
SUITE = [
    ("GET", "/", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
    (
        "GET",
        "/?Param2=value2&Param1=value1",
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ),
    ("POST", "/", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
]


@pytest.mark.parametrize(("method", "target", "signature"), SUITE)
def test_agrees_with_amazons_own_examples(method, target, signature):
    authorization = (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders=host;x-amz-date, Signature={signature}"
    )
    headers = {
        "host": "example.amazonaws.com",
        "x-amz-date": "20150830T123600Z",
        "authorization": authorization,
    }
    check_signature(Request(method, target, headers, b""), SUITE_ACCOUNT, SUITE_TIME)
    with pytest.raises(Refused, match="does not match"):
        check_signature(Request(method, target + "x", headers, b""), SUITE_ACCOUNT, SUITE_TIME)


# --- what it refuses


@pytest.mark.parametrize(
    ("mail", "error"),
    [
        (b"{", "SerializationException"),
        (b"[]", "SerializationException"),
        (ses_mail(Content=None), "BadRequestException"),
        (ses_mail(Content={"Raw": {"Data": "***"}}), "SerializationException"),
        (ses_mail(Destination=None), "BadRequestException"),
        (ses_mail("nobody"), "BadRequestException"),
        (ses_mail("jürgen@example.org"), "BadRequestException"),
        (ses_mail(*(f"reader{n}@example.org" for n in range(51))), "BadRequestException"),
        (ses_mail(FromEmailAddress="nobody"), "BadRequestException"),
        (ses_mail(FromEmailAddress=None, mime=b"To: a@b.test\r\n\r\nx"), "BadRequestException"),
        (ses_mail(EmailTags=[{"Name": "with space", "Value": "x"}]), "BadRequestException"),
        (ses_mail(FromEmailAddress="shop@elsewhere.test"), "MessageRejected"),
        (ses_mail(ConfigurationSetName="none"), "NotFoundException"),
    ],
)
async def test_refuses(mail, error):
    async with SesTwin(verified={"example.com"}, configuration_sets={"ours"}) as twin:
        answer = await to_ses(twin, mail)
        assert answer.headers["x-amzn-ErrorType"] == error
        assert answer.status == (404 if error == "NotFoundException" else 400)
        assert twin.accepted == 0


async def test_refuses_more_than_forty_megabytes(twin):
    answer = await to_ses(twin, ses_mail(mime=MIME + b"x" * (40 * 2**20)))
    assert (answer.status, answer.headers["x-amzn-ErrorType"]) == (400, "BadRequestException")
    assert "Message length" in answer.json()["message"]


async def test_refuses_while_the_mail_from_domain_is_not_ready(twin):
    twin.mail_from_ready = False
    answer = await to_ses(twin)
    assert answer.headers["x-amzn-ErrorType"] == "MailFromDomainNotVerifiedException"


async def test_takes_fifty_and_finds_the_sender_in_the_mail(twin):
    mail = ses_mail(*(f"reader{n}@example.org" for n in range(50)), FromEmailAddress=None)
    assert (await to_ses(twin, mail)).status == 200
    assert twin.mails[0].sender == "shop@example.com"


async def test_takes_simple_content(twin):
    simple = {"Simple": {"Subject": {"Data": "Hi"}, "Body": {"Text": {"Data": "hello"}}}}
    assert (await to_ses(twin, ses_mail(Content=simple))).status == 200
    assert (twin.mails[0].subject, twin.mails[0].mime) == ("Hi", None)


@pytest.mark.parametrize(
    ("trouble", "status", "error", "account"),
    [
        ("credential", 403, "UnrecognizedClientException", None),
        (
            "suspended",
            400,
            "AccountSuspendedException",
            {"EnforcementStatus": "SHUTDOWN", "SendingEnabled": False},
        ),
        (
            "paused",
            400,
            "SendingPausedException",
            {"EnforcementStatus": "HEALTHY", "SendingEnabled": False},
        ),
        (
            "quota",
            400,
            "LimitExceededException",
            {"EnforcementStatus": "HEALTHY", "SendingEnabled": True},
        ),
    ],
)
async def test_trouble(twin, trouble, status, error, account):
    twin.dials = Dials(trouble=trouble)
    answer = await to_ses(twin)
    assert (answer.status, answer.headers["x-amzn-ErrorType"]) == (status, error)
    told = await check(twin)
    if account is None:
        assert told.status == 403
    else:
        assert account.items() <= told.json().items()
        quota = told.json()["SendQuota"]
        assert (quota["SentLast24Hours"] == quota["Max24HourSend"]) == (trouble == "quota")


# --- SNS

EVENTS = {
    "delivered": ("Delivery", "delivery", "recipients"),
    "bounced": ("Bounce", "bounce", "bouncedRecipients"),
    "soft_bounced": ("Bounce", "bounce", "bouncedRecipients"),
    "deferred": ("DeliveryDelay", "deliveryDelay", "delayedRecipients"),
    "dropped": ("Reject", "reject", None),
    "complained": ("Complaint", "complaint", "complainedRecipients"),
    "opened": ("Open", "open", None),
    "clicked": ("Click", "click", None),
    "unsubscribed": ("Subscription", "subscription", None),
}


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("kind", EVENTS)
async def test_an_event_comes_in_a_signed_envelope(twin, kind, version):
    twin.signature_version = version
    await to_ses(twin, ses_mail("ada@example.org", "bob@example.org"))
    headers, body = twin.event(twin.mails[0], kind, "bob@example.org")
    envelope = await verify(headers, body)
    assert (envelope["Type"], envelope["TopicArn"]) == ("Notification", twin.topic)
    event = json.loads(envelope["Message"])
    name, place, people = EVENTS[kind]
    assert (event["eventType"], event["mail"]["messageId"]) == (name, twin.mails[0].id)
    assert event["mail"]["tags"]["pillarbox_message"] == [UUID]
    assert event["mail"]["destination"] == ["ada@example.org", "bob@example.org"]
    assert place in event
    if people:
        named = [
            one if isinstance(one, str) else one["emailAddress"] for one in event[place][people]
        ]
        assert named == ["bob@example.org"]
    assert (kind == "bounced") == (event.get("bounce", {}).get("bounceType") == "Permanent")


async def test_an_identitys_own_notification_has_no_tags(twin):
    await to_ses(twin)
    event = message_of(
        twin.event(twin.mails[0], "bounced", identity=True, bounceSubType="NoEmail")[1]
    )
    assert event["notificationType"] == "Bounce"
    assert "tags" not in event["mail"]
    assert event["mail"]["commonHeaders"]["messageId"] == f"<{UUID}@example.com>"
    assert event["bounce"]["bounceSubType"] == "NoEmail"


async def test_forged_and_altered_envelopes_do_not_verify(twin):
    await to_ses(twin)
    with pytest.raises(InvalidSignature):
        await verify(*twin.event(twin.mails[0], "bounced", forged=True))
    headers, body = twin.event(twin.mails[0], "bounced")
    with pytest.raises(InvalidSignature):
        await verify(headers, body.replace(b"Permanent", b"Transient"))


async def test_posts_as_plain_text(twin):
    async with listening() as listener:
        twin.webhook_url = listener.url
        await to_ses(twin)
        assert await twin.feed(twin.mails[0], "delivered") == 200
        [(headers, body)] = listener.posts
        assert headers["Content-Type"].startswith("text/plain")
        await verify(headers, body)


async def test_a_subscription_is_confirmed_by_opening_its_url(twin):
    async with listening() as listener:
        twin.webhook_url = listener.url
        assert await twin.subscribe() == 200
        envelope = await verify(*listener.posts[0])
        assert envelope["Type"] == "SubscriptionConfirmation"
        assert twin.confirmed == []
        assert (await call("GET", envelope["SubscribeURL"] + "0", {})).status == 400
        answer = await call("GET", envelope["SubscribeURL"], {})
        assert answer.status == 200
        assert b"SubscriptionArn" in answer.body
        assert twin.confirmed == [twin.topic]


async def test_dials_do_not_touch_sns(twin):
    twin.dials = Dials(status=503)
    headers, body = twin.confirmation(
        "UnsubscribeConfirmation", topic="arn:aws:sns:us-east-1:1:other"
    )
    assert (await verify(headers, body))["TopicArn"].endswith(":other")


async def test_the_certificate_may_be_said_to_lie_elsewhere(twin):
    twin.certificate_url = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0.pem"
    assert json.loads(twin.confirmation()[1])["SigningCertURL"] == twin.certificate_url
    assert twin.certificate.startswith(b"-----BEGIN CERTIFICATE")
