"""Webhook calls are signed as Standard Webhooks says, and verified in a way that forgives nothing."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pillarbox
from pillarbox.errors import InvalidWebhook
from pillarbox.model import webhook
from pillarbox.model.secret import Secret
from pillarbox.model.webhook import (
    DELAYS,
    WebhookEventType,
    body,
    delay,
    headers,
    secret_of,
    sign,
    verify,
)

# The example of the specification's own libraries.
SECRET = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
ID, TIMESTAMP, PAYLOAD = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
OTHER = secret_of(b"o" * 32)


def signed(content: bytes = PAYLOAD, at: int = TIMESTAMP, *secrets: Secret) -> dict[str, str]:
    return headers(ID, at, content, secrets or [SECRET])


def test_the_published_example() -> None:
    assert sign(ID, TIMESTAMP, PAYLOAD, SECRET) == SIGNATURE
    assert signed() == {
        "webhook-id": ID,
        "webhook-timestamp": str(TIMESTAMP),
        "webhook-signature": SIGNATURE,
    }
    verify(signed(), PAYLOAD, SECRET, TIMESTAMP + 10, 300)


def test_a_secret_is_as_the_specification_wants_it() -> None:
    secret = secret_of(bytes(range(32)))
    assert secret.reveal().startswith("whsec_")
    assert secret.reveal() not in repr(secret)
    verify(signed(PAYLOAD, TIMESTAMP, secret), PAYLOAD, secret, TIMESTAMP, 300)


def test_during_a_rotation_either_secret_will_do() -> None:
    both = signed(PAYLOAD, TIMESTAMP, OTHER, SECRET)
    assert both["webhook-signature"].count("v1,") == 2
    for secret in (SECRET, OTHER):
        verify(both, PAYLOAD, secret, TIMESTAMP, 300)


def test_signatures_of_other_versions_are_passed_over() -> None:
    given = signed() | {"webhook-signature": f"v1a,abc= v2,xyz {SIGNATURE}"}
    verify(given, PAYLOAD, SECRET, TIMESTAMP, 300)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_missing_header(name: str) -> None:
    given = signed()
    del given[name]
    with pytest.raises(InvalidWebhook, match=name):
        verify(given, PAYLOAD, SECRET, TIMESTAMP, 300)


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "msg_other"},
        {"webhook-timestamp": str(TIMESTAMP + 1)},
        {"webhook-timestamp": "٣"},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "1e9"},
        {"webhook-timestamp": "9" * 5000},
        {"webhook-signature": ""},
        {"webhook-signature": SIGNATURE.removeprefix("v1,")},
        {"webhook-signature": SIGNATURE.replace("v1", "v2")},
        {"webhook-signature": SIGNATURE[:-1]},
        {"webhook-signature": "v1,é"},
    ],
)
def test_what_is_changed_does_not_pass(change: dict[str, str]) -> None:
    with pytest.raises(InvalidWebhook):
        verify(signed() | change, PAYLOAD, SECRET, TIMESTAMP, 300)


@given(st.binary(max_size=40))
def test_no_other_body_passes(content: bytes) -> None:
    if content != PAYLOAD:
        with pytest.raises(InvalidWebhook):
            verify(signed(), content, SECRET, TIMESTAMP, 300)


@pytest.mark.parametrize("late", [301, -301, 86400])
def test_an_old_call_sent_again_does_not_pass(late: int) -> None:
    with pytest.raises(InvalidWebhook, match="too far from now"):
        verify(signed(), PAYLOAD, SECRET, TIMESTAMP + late, 300)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_!!!", "whsec_YQ==", "whsec_" + "YWFh" * 40]
)
def test_what_is_no_secret_is_said_to_be_none(secret: str) -> None:
    with pytest.raises(InvalidWebhook, match="secret is not valid"):
        verify(signed(), PAYLOAD, Secret(secret), TIMESTAMP, 300)


def test_the_helper_for_customers() -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, 6000, UTC)
    content = body(
        WebhookEventType.BOUNCED, at, {"recipient": "ädä@mail.example", "metadata": {"order": 7}}
    )
    sent = headers("one", int(time.time()), content, [SECRET])
    told = pillarbox.verify_webhook(
        {name.title(): value for name, value in sent.items()}, content, SECRET.reveal()
    )
    assert told == {
        "type": "message.bounced",
        "timestamp": "2030-01-02T03:04:05.006Z",
        "data": {"recipient": "ädä@mail.example", "metadata": {"order": 7}},
    }
    assert pillarbox.verify_webhook(sent, content.decode(), SECRET.reveal()) == told
    with pytest.raises(InvalidWebhook):
        pillarbox.verify_webhook(sent, content, OTHER.reveal())
    with pytest.raises(InvalidWebhook, match="too far"):
        pillarbox.verify_webhook(sent, content, SECRET.reveal(), tolerance=-1)
    assert "Ã" not in json.dumps(told)


def test_the_waits_come_to_about_three_days() -> None:
    assert DELAYS[:6] == (5, 30, 120, 600, 3600, 10800)
    assert 2.8 < sum(DELAYS) / 86400 < 3.2
    assert [delay(n, 0.5) for n in (1, 2, 7, 17)] == [5, 30, 21600, 21600]
    assert (delay(1, 0), delay(1, 1)) == pytest.approx((4, 6))
    assert delay(len(DELAYS) + 1, 0.5) is None


def test_every_kind_is_one_of_a_message() -> None:
    assert all(one.startswith("message.") for one in WebhookEventType)
    assert webhook.TEST not in list(WebhookEventType)
