"""SendGrid's twin: what it refuses, what it says in trouble, and its signed events."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key
from tests.unit.twin_helpers import UUID, check, listening, sendgrid_mail, to_sendgrid

from pillarbox.model.provider_kinds.sendgrid import SendgridSettings
from pillarbox.testing.twins import Dials, SendGridTwin


@pytest.fixture
async def twin():
    async with SendGridTwin() as running:
        yield running


def verify(twin: SendGridTwin, headers: dict[str, str], body: bytes) -> None:
    """As SendGrid documents it."""
    key = load_der_public_key(base64.b64decode(twin.provider_settings()["webhook_key"]))
    assert isinstance(key, ec.EllipticCurvePublicKey)
    signature = base64.b64decode(headers["X-Twilio-Email-Event-Webhook-Signature"])
    said = headers["X-Twilio-Email-Event-Webhook-Timestamp"].encode() + body
    key.verify(signature, said, ec.ECDSA(hashes.SHA256()))


async def test_accepts_with_an_id_and_no_body(twin):
    answer = await to_sendgrid(twin)
    assert (answer.status, answer.body) == (202, b"")
    assert answer.headers["X-Message-Id"] == twin.mails[0].id
    assert twin.mails[0].body == sendgrid_mail()
    SendgridSettings(**twin.provider_settings())


@pytest.mark.parametrize(
    ("mail", "field"),
    [
        (sendgrid_mail(personalizations=None), "personalizations"),
        (sendgrid_mail(personalizations=[]), "personalizations"),
        (
            sendgrid_mail(personalizations=[{"cc": [{"email": "a@b.test"}]}]),
            "personalizations.0.to",
        ),
        (sendgrid_mail("ada@example.org", "nobody"), "personalizations.1.to.0.email"),
        (sendgrid_mail(**{"from": None}), "from.email"),
        (sendgrid_mail(**{"from": {"email": "nobody"}}), "from.email"),
        (sendgrid_mail(subject=None), "subject"),
        (sendgrid_mail(subject=""), "subject"),
        (sendgrid_mail(content=None), "content"),
        (sendgrid_mail(content=[{"type": "text/plain", "value": ""}]), "content.0.value"),
        (sendgrid_mail(content=[{"value": "x"}]), "content.0.type"),
        (
            sendgrid_mail(
                content=[{"type": "text/html", "value": "x"}, {"type": "text/plain", "value": "x"}]
            ),
            "content",
        ),
        (
            sendgrid_mail(
                personalizations=[{"to": [{"email": "a@b.test"}], "cc": [{"email": "A@b.test"}]}]
            ),
            "personalizations",
        ),
        (sendgrid_mail(*(f"reader{n}@example.org" for n in range(1001))), "personalizations"),
        (sendgrid_mail(headers={"Reply-To": "a@b.test"}), "headers.Reply-To"),
        (sendgrid_mail(custom_args={"number": 1}), "custom_args"),
        (sendgrid_mail(custom_args={"long": "x" * 10_001}), "custom_args"),
    ],
)
async def test_refuses(twin, mail, field):
    answer = await to_sendgrid(twin, mail)
    assert answer.status == 400
    assert field in [error["field"] for error in answer.json()["errors"]]
    assert all(error["message"] for error in answer.json()["errors"])
    assert twin.accepted == 0


async def test_says_all_that_is_wrong_at_once(twin):
    answer = await to_sendgrid(twin, {})
    assert [error["field"] for error in answer.json()["errors"]] == [
        "personalizations",
        "from.email",
        "subject",
        "content",
    ]


async def test_takes_a_thousand_and_the_same_person_twice_in_two_personalizations(twin):
    people = [*(f"reader{n}@example.org" for n in range(999)), "reader0@example.org"]
    assert (await to_sendgrid(twin, sendgrid_mail(*people))).status == 202
    assert len(twin.mails[0].recipients) == 999


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 400), (b"[]", 400), (b" " * (30 * 2**20 + 1), 413)]
)
async def test_refuses_what_is_no_mail(twin, body, status):
    answer = await to_sendgrid(twin, body)
    assert answer.status == status
    assert answer.json()["errors"]


async def test_only_verified_senders_may_send():
    async with SendGridTwin(verified={"example.com"}) as twin:
        assert (await to_sendgrid(twin)).status == 202
        answer = await to_sendgrid(
            twin, sendgrid_mail(**{"from": {"email": "shop@elsewhere.test"}})
        )
        assert answer.status == 403
        assert "verified Sender Identity" in answer.json()["errors"][0]["message"]


async def test_a_wrong_key(twin):
    answer = await to_sendgrid(twin, key="SG.wrong")
    assert answer.status == 401
    assert answer.json()["errors"][0]["field"] is None


@pytest.mark.parametrize(
    ("trouble", "status", "words", "checked"),
    [
        ("credential", 401, "authorization grant is invalid", 401),
        ("suspended", 403, "not authorized to access SendGrid", 403),
        ("paused", 403, "under review", 200),
        ("quota", 401, "Maximum credits exceeded", 200),
    ],
)
async def test_trouble(twin, trouble, status, words, checked):
    twin.dials = Dials(trouble=trouble)
    answer = await to_sendgrid(twin)
    assert answer.status == status
    assert words in answer.json()["errors"][0]["message"]
    assert (await check(twin)).status == checked


# --- events

EVENTS = {
    "delivered": "delivered",
    "bounced": "bounce",
    "soft_bounced": "bounce",
    "deferred": "deferred",
    "dropped": "dropped",
    "complained": "spamreport",
    "opened": "open",
    "clicked": "click",
    "unsubscribed": "unsubscribe",
}


@pytest.mark.parametrize("kind", EVENTS)
async def test_an_event_has_our_arguments_at_its_top(twin, kind):
    await to_sendgrid(twin, sendgrid_mail("ada@example.org", "bob@example.org"))
    headers, body = twin.event(twin.mails[0], kind, "bob@example.org")
    verify(twin, headers, body)
    [event] = json.loads(body)
    assert (event["event"], event["email"]) == (EVENTS[kind], "bob@example.org")
    assert (event["pillarbox_message"], event["pillarbox_delivery"]) == (UUID, f"{UUID}.1")
    assert event["sg_message_id"].startswith(twin.mails[0].id + ".")
    assert event["sg_event_id"]
    assert (kind == "bounced") == (event.get("type") == "bounce")


async def test_one_request_tells_of_all_recipients(twin):
    async with listening() as listener:
        twin.webhook_url = listener.url
        await to_sendgrid(twin, sendgrid_mail("ada@example.org", "bob@example.org"))
        assert await twin.feed(twin.mails[0], "delivered") == 200
        [(headers, body)] = listener.posts
        verify(twin, headers, body)
        assert [event["email"] for event in json.loads(body)] == [
            "ada@example.org",
            "bob@example.org",
        ]
        assert headers["Content-Type"] == "application/json"


async def test_forged_and_altered_events_do_not_verify(twin):
    await to_sendgrid(twin)
    headers, body = twin.event(twin.mails[0], "bounced", forged=True)
    with pytest.raises(InvalidSignature):
        verify(twin, headers, body)
    headers, body = twin.event(twin.mails[0], "bounced")
    with pytest.raises(InvalidSignature):
        verify(twin, headers, body + b" ")


async def test_fields_can_be_replaced(twin):
    await to_sendgrid(twin)
    _, body = twin.event(twin.mails[0], "bounced", sg_event_id="again", timestamp=1)
    assert [(event["sg_event_id"], event["timestamp"]) for event in json.loads(body)] == [
        ("again", 1)
    ]
