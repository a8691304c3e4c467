"""What real providers send beside the textbook: without ids, times or subjects, as notices, as older forms."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.contract.feedbacks import ADA, BOB, World, world_of

from pillarbox.errors import Forged
from pillarbox.testing.twins import MailgunTwin, SesTwin, TwinMail, sns

Signed = tuple[dict[str, str], bytes]


@pytest.fixture
async def ses(database_url: str) -> AsyncIterator[World]:
    async with world_of("ses", database_url) as world:
        yield world


@pytest.fixture
async def mailgun(database_url: str) -> AsyncIterator[World]:
    async with world_of("mailgun", database_url) as world:
        yield world


async def times(world: World) -> list[datetime]:
    return [
        row["at"]
        for row in await world.app.database.fetch("SELECT at FROM pillarbox.events ORDER BY id")
    ]


# --- SES through SNS


def envelope(world: World, message: str, **more: Any) -> Signed:
    """A notification, with some of its fields changed before it is signed. What is null is not signed."""
    twin = world.twin
    assert isinstance(twin, SesTwin)
    given = sns.notification(message, twin.topic, twin.url) | more
    headers, body = twin._signed(
        {name: value for name, value in given.items() if isinstance(value, str)}, False
    )
    return headers, json.dumps({**given, **json.loads(body)}).encode()


def told(world: World, mail: TwinMail, kind: Any) -> dict[str, Any]:
    [event] = world.twin.describe(mail, kind, mail.recipients[0], {})
    return event


@pytest.mark.parametrize(
    "more",
    [
        {"Subject": None},
        {"MessageAttributes": {"x": {"Type": "String", "Value": "y"}}},
        {"Subject": None, "Extra": None},
    ],
)
async def test_fields_that_are_null_or_no_strings(ses: World, more: dict[str, Any]) -> None:
    mail = await ses.sent()
    assert await ses.take(envelope(ses, json.dumps(told(ses, mail, "bounced")), **more)) == 1
    assert await ses.states(mail) == ["bounced"]


@pytest.mark.parametrize(
    "field", ["Message", "MessageId", "Type", "TopicArn", "Timestamp", "Signature"]
)
@pytest.mark.parametrize("value", [None, 1, ["x"], {}])
async def test_what_is_signed_must_be_there(ses: World, field: str, value: Any) -> None:
    mail = await ses.sent()
    headers, body = envelope(ses, json.dumps(told(ses, mail, "bounced")))
    with pytest.raises(Forged):
        await ses.take((headers, json.dumps(json.loads(body) | {field: value}).encode()))
    assert await ses.states(mail) == ["sent"]


async def test_a_subject_taken_away_is_a_forgery(ses: World) -> None:
    headers, body = envelope(ses, json.dumps(told(ses, await ses.sent(), "bounced")))
    with pytest.raises(Forged, match="signature"):
        await ses.take((headers, json.dumps(json.loads(body) | {"Subject": None}).encode()))


@pytest.mark.parametrize("kind", ["delivered", "bounced", "complained"])
@pytest.mark.parametrize("stamp", [None, "", "yesterday", 5])
async def test_without_a_time_that_of_the_envelope_counts(
    ses: World, kind: str, stamp: Any
) -> None:
    mail = await ses.sent()
    event = told(ses, mail, kind)
    for part in event.values():
        if isinstance(part, dict) and "timestamp" in part:
            part["timestamp"] = stamp
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=10)
    assert await ses.take(envelope(ses, json.dumps(event), Timestamp=sns.timestamp(at))) == 1
    assert await times(ses) == [at]


@pytest.mark.parametrize(
    "notice",
    [
        "Successfully validated SNS topic for Amazon SES event publishing.",
        "",
        "5",
        '"text"',
        "[1]",
        "{x",
    ],
)
async def test_a_notice_is_accepted_and_says_nothing(ses: World, notice: str) -> None:
    before = await ses.everything()
    assert await ses.take(envelope(ses, notice)) == 0
    assert await ses.everything() == before


async def test_a_forged_notice_is_not(ses: World) -> None:
    headers, body = envelope(
        ses, "Successfully validated SNS topic for Amazon SES event publishing."
    )
    with pytest.raises(Forged):
        await ses.take((headers, body.replace(b"Successfully", b"successfully")))


# --- Mailgun


def described(world: World, mail: TwinMail, kind: Any, **more: Any) -> dict[str, Any]:
    [event] = world.twin.describe(mail, kind, mail.recipients[0], more)
    return event


async def test_an_event_without_an_id_counts_once(mailgun: World) -> None:
    mail = await mailgun.sent()
    event = described(mailgun, mail, "bounced")
    del event["id"]
    for _ in range(2):  # posted again with another signature
        assert await mailgun.take(mailgun.twin.sign([event])) == 1
    assert (await mailgun.states(mail), await mailgun.kinds(mail)) == (["bounced"], ["bounced"])
    assert await mailgun.take(mailgun.twin.sign([described(mailgun, mail, "opened", id=None)])) == 1
    assert await mailgun.kinds(mail) == ["bounced", "opened"]


@pytest.mark.parametrize("stamp", [None, "soon", {}])
async def test_without_a_time_that_of_the_signature_counts(mailgun: World, stamp: Any) -> None:
    mail = await mailgun.sent()
    at = time.time() - 600
    twin = mailgun.twin
    assert isinstance(twin, MailgunTwin)
    assert (
        await mailgun.take(
            twin.sign([described(mailgun, mail, "delivered", timestamp=stamp)], at=at)
        )
        == 1
    )
    assert await times(mailgun) == [datetime.fromtimestamp(int(at), UTC)]


def rejected(world: World, mail: TwinMail) -> dict[str, Any]:
    """As Mailgun tells that it took a mail and then did not want it: no recipient, no envelope."""
    event = described(world, mail, "delivered")
    for name in ("recipient", "recipient-domain", "envelope", "delivery-status"):
        event.pop(name, None)
    return event | {
        "event": "rejected",
        "reject": {"reason": "Sandbox subdomains are for tests", "description": ""},
    }


@pytest.mark.parametrize("recipients", [(ADA,), (ADA, BOB, "eve@mail.example")])
async def test_a_rejected_mail_failed_for_all(mailgun: World, recipients: tuple[str, ...]) -> None:
    mail = await mailgun.sent(*recipients)
    signed = mailgun.twin.sign([rejected(mailgun, mail)])
    assert [await mailgun.take(signed), await mailgun.take(signed)] == [len(recipients)] * 2
    assert await mailgun.states(mail) == ["bounced"] * len(recipients)
    assert await mailgun.kinds(mail) == ["dropped"] * len(recipients)
    assert await mailgun.app.database.fetchval("SELECT count(*) FROM pillarbox.suppressions") == 0


def form(
    world: World,
    mail: TwinMail,
    event: str,
    *,
    multipart: bool = True,
    at: float | None = None,
    **more: str,
) -> Signed:
    """An older webhook."""
    twin = world.twin
    assert isinstance(twin, MailgunTwin)
    stamp, token = str(int(at or time.time())), secrets.token_hex(25)
    signature = hmac.new(
        twin.webhook_signing_key.encode(), (stamp + token).encode(), hashlib.sha256
    ).hexdigest()
    fields = {
        "event": event,
        "recipient": mail.recipients[0],
        "domain": "shop.example",
        "message-headers": json.dumps([["Subject", "Hello"], ["Message-Id", f"<{mail.id}>"]]),
        "pillarbox_message": mail.message_uuid,
        "timestamp": stamp,
        "token": token,
        "signature": signature,
        **more,
    }
    return encoded(fields, multipart)


def encoded(fields: dict[str, str], multipart: bool) -> Signed:
    if not multipart:
        return {"Content-Type": "application/x-www-form-urlencoded"}, urlencode(fields).encode()
    boundary = secrets.token_hex(16)
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    file = 'Content-Disposition: form-data; name="attachment-1"; filename="a"\r\n\r\nx\r\n'
    parts.append(f"--{boundary}\r\n{file}--{boundary}--\r\n")
    return {"Content-Type": f"multipart/form-data; boundary={boundary}"}, "".join(parts).encode()


@pytest.mark.parametrize("multipart", [True, False])
@pytest.mark.parametrize(
    ("event", "more", "kind", "state", "suppressed"),
    [
        ("delivered", {}, "delivered", "delivered", False),
        ("bounced", {"code": "550", "error": "5.1.1 no such user"}, "bounced", "bounced", True),
        (
            "dropped",
            {"code": "554", "reason": "hardfail", "description": "5.7.1 no"},
            "dropped",
            "bounced",
            False,
        ),
        ("dropped", {"code": "605", "reason": "hardfail"}, "dropped", "bounced", False),
        ("complained", {}, "complained", "complained", True),
        ("unsubscribed", {}, "unsubscribed", "sent", True),
        ("opened", {}, "opened", "sent", False),
        ("clicked", {"url": "https://shop.example/"}, "clicked", "sent", False),
    ],
)
async def test_older_forms(
    mailgun: World,
    multipart: bool,
    event: str,
    more: dict[str, str],
    kind: str,
    state: str,
    suppressed: bool,
) -> None:
    mail = await mailgun.sent()
    assert await mailgun.take(form(mailgun, mail, event, multipart=multipart, **more)) == 1
    assert (await mailgun.kinds(mail), await mailgun.states(mail)) == ([kind], [state])
    count = await mailgun.app.database.fetchval("SELECT count(*) FROM pillarbox.suppressions")
    assert count == (1 if suppressed else 0)
    if more.get("code") == "605":
        assert (
            await mailgun.app.database.fetchval("SELECT reason FROM pillarbox.deliveries")
            == "suppressed"
        )


async def test_a_form_posted_again_counts_once(mailgun: World) -> None:
    mail = await mailgun.sent()
    for at in (time.time() - 60, time.time()):
        assert await mailgun.take(form(mailgun, mail, "complained", at=at)) == 1
    assert await mailgun.kinds(mail) == ["complained"]


async def test_a_token_of_a_form_is_good_for_one_form(mailgun: World) -> None:
    mail = await mailgun.sent()
    headers, body = form(mailgun, mail, "delivered", multipart=False)
    assert await mailgun.take((headers, body)) == 1
    with pytest.raises(Forged, match="used before"):
        await mailgun.take((headers, body.replace(b"delivered", b"complained")))
    fields = dict(one.split("=", 1) for one in body.decode().split("&"))
    assert (
        await mailgun.take((headers, urlencode(dict(reversed(fields.items())), safe="%+").encode()))
        == 1
    )
    assert await mailgun.kinds(mail) == ["delivered"]


@pytest.mark.parametrize("multipart", [True, False])
async def test_forged_forms_are_refused(mailgun: World, multipart: bool) -> None:
    mail = await mailgun.sent()
    for more in ({"signature": "0" * 64}, {"token": "x"}, {"timestamp": "1"}, {"timestamp": "x"}):
        with pytest.raises(Forged):
            await mailgun.take(form(mailgun, mail, "bounced", multipart=multipart, **more))
    with pytest.raises(Forged):
        await mailgun.take(
            form(mailgun, mail, "bounced", multipart=multipart, at=time.time() - 10 * 86400)
        )
    assert await mailgun.states(mail) == ["sent"]


@pytest.mark.parametrize(
    "kind",
    ["multipart/form-data", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"],
)
@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"--x\r\n", b"a=1&" * 1000, b"--x\r\n\r\n" * 1000, b"signature=1"]
)
async def test_forms_that_are_none(mailgun: World, kind: str, body: bytes) -> None:
    with pytest.raises(Forged):
        await mailgun.take(({"Content-Type": kind}, body))
