"""Mailgun's twin: what it refuses, what it says in trouble, and its signed webhooks."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from tests.unit.twin_helpers import MIME, UUID, call, check, listening, mailgun_login, to_mailgun

from pillarbox.model.provider_kinds.mailgun import MailgunSettings
from pillarbox.testing.twins import Dials, MailgunTwin
from pillarbox.testing.twins.form import read_form


@pytest.fixture
async def twin():
    async with MailgunTwin(others={"new.example.com"}) as running:
        yield running


def is_signed(twin: MailgunTwin, body: bytes) -> bool:
    """As Mailgun documents it."""
    given = json.loads(body)["signature"]
    text = given["timestamp"] + given["token"]
    assert twin.webhook_secret
    expected = hmac.new(twin.webhook_secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, given["signature"])


async def test_accepts_mime_with_its_own_id(twin):
    answer = await to_mailgun(twin)
    assert answer.status == 200
    assert answer.json() == {"id": f"<{UUID}@example.com>", "message": "Queued. Thank you."}
    [mail] = twin.mails
    assert mail.mime == MIME
    assert mail.variables == {"pillarbox_message": UUID}
    assert mail.body == {"to": "ada@example.org", "v:pillarbox_message": UUID}
    MailgunSettings(**twin.provider_settings())


async def test_gives_an_id_to_a_mail_without_one(twin):
    parts = [
        ("from", "Shop <shop@example.com>"),
        ("to", "Ada <ada@example.org>, bob@example.org"),
        ("text", "x"),
    ]
    answer = await to_mailgun(
        twin, [*parts, ("subject", "Hi"), ("cc", "cy@example.org")], mime=False
    )
    assert answer.json()["id"].endswith("@mg.example.com>")
    assert twin.mails[0].recipients == ("ada@example.org", "bob@example.org", "cy@example.org")
    assert (twin.mails[0].subject, twin.mails[0].sender) == ("Hi", "shop@example.com")


async def test_takes_url_encoded_forms(twin):
    headers = mailgun_login(twin.secret) | {"Content-Type": "application/x-www-form-urlencoded"}
    body = b"from=shop%40example.com&to=ada%40example.org&subject=Hi&text=hello"
    assert (
        await call("POST", f"{twin.url}/v3/{twin.domain}/messages", headers, body)
    ).status == 200


@pytest.mark.parametrize(
    ("fields", "mime", "words"),
    [
        ([("message", MIME)], True, "to parameter is missing"),
        ([("to", "")], True, "to parameter is missing"),
        ([("to", "ada@example.org")], True, "message parameter is missing"),
        ([("to", "ada@example.org"), ("text", "x")], False, "from parameter is missing"),
        (
            [("from", "a@b.test"), ("to", "ada@example.org")],
            False,
            "at least one of 'text' or 'html'",
        ),
        ([("to", "nobody"), ("message", MIME)], True, "not a valid address"),
        ([("to", "ada@example.org, nobody"), ("message", MIME)], True, "not a valid address"),
        (
            [*(("to", f"reader{n}@example.org") for n in range(1001)), ("message", MIME)],
            True,
            "more than 1000",
        ),
    ],
)
async def test_refuses(twin, fields, mime, words):
    answer = await to_mailgun(twin, fields, mime=mime)
    assert answer.status == 400
    assert words in answer.json()["message"]
    assert twin.accepted == 0


async def test_refuses_what_is_no_form(twin):
    headers = mailgun_login(twin.secret) | {"Content-Type": "multipart/form-data; boundary=x"}
    answer = await call(
        "POST", f"{twin.url}/v3/{twin.domain}/messages.mime", headers, b"--x\r\nnothing"
    )
    assert answer.status == 400


async def test_refuses_more_than_25_megabytes(twin):
    answer = await to_mailgun(
        twin, [("to", "ada@example.org"), ("message", MIME + b"x" * 25 * 2**20)]
    )
    assert answer.status == 413


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({"key": "wrong"}, 401, "Forbidden"),
        ({"domain": "unknown.example"}, 404, "Domain not found"),
        ({"domain": "new.example.com"}, 403, "is not allowed to send: The domain is unverified"),
    ],
)
async def test_refuses_who_may_not_send(twin, options, status, words):
    answer = await to_mailgun(twin, **options)
    assert answer.status == status
    assert words in answer.body.decode()


@pytest.mark.parametrize(("path", "status"), [("v3", 200), ("v4", 200), ("v5", 404)])
async def test_shows_its_domain(twin, path, status):
    answer = await call(
        "GET", f"{twin.url}/{path}/domains/{twin.domain}", mailgun_login(twin.secret)
    )
    assert answer.status == status
    assert status == 404 or answer.json()["domain"]["state"] == "active"


async def test_shows_other_domains(twin):
    for domain, state in [("new.example.com", "unverified"), ("unknown.example", None)]:
        answer = await call("GET", f"{twin.url}/v4/domains/{domain}", mailgun_login(twin.secret))
        assert answer.json().get("domain", {}).get("state") == state


@pytest.mark.parametrize(
    ("trouble", "status", "words", "state"),
    [
        ("credential", 401, "Forbidden", None),
        ("suspended", 403, "account is disabled", "disabled"),
        ("paused", 403, "Sending is disabled", "disabled"),
        ("quota", 420, "recipient limit exceeded, try again after", "active"),
    ],
)
async def test_trouble(twin, trouble, status, words, state):
    twin.dials = Dials(trouble=trouble)
    answer = await to_mailgun(twin)
    assert answer.status == status
    assert words in answer.body.decode()
    told = await check(twin)
    assert told.status == 401 if state is None else told.json()["domain"]["state"] == state


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain", b"to=x"),
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b"--x\r\nno head\r\n--x--\r\n"),
        (
            "multipart/form-data; boundary=x",
            b"--x\r\nContent-Type: a/b\r\n\r\nno name\r\n--x--\r\n",
        ),
    ],
)
def test_what_is_no_form(kind, body):
    with pytest.raises(ValueError):
        read_form(kind, body)


# --- webhooks

EVENTS = {
    "delivered": ("delivered", None),
    "bounced": ("failed", "permanent"),
    "soft_bounced": ("failed", "temporary"),
    "deferred": ("failed", "temporary"),
    "dropped": ("failed", "permanent"),
    "complained": ("complained", None),
    "opened": ("opened", None),
    "clicked": ("clicked", None),
    "unsubscribed": ("unsubscribed", None),
}


@pytest.mark.parametrize("kind", EVENTS)
async def test_an_event_has_our_variables(twin, kind):
    await to_mailgun(twin)
    headers, body = twin.event(twin.mails[0], kind)
    assert is_signed(twin, body)
    event = json.loads(body)["event-data"]
    assert (event["event"], event.get("severity")) == EVENTS[kind]
    assert event["recipient"] == "ada@example.org"
    assert event["user-variables"] == {"pillarbox_message": UUID}
    assert event["message"]["headers"]["message-id"] == f"{UUID}@example.com"
    assert event["domain"]["name"] == twin.domain
    assert headers["Content-Type"] == "application/json"


async def test_each_recipient_has_a_request_and_each_request_a_token(twin):
    async with listening() as listener:
        twin.webhook_url = listener.url
        await to_mailgun(
            twin, [("to", "ada@example.org"), ("to", "bob@example.org"), ("message", MIME)]
        )
        assert await twin.feed(twin.mails[0], "delivered") == 200
        told = [json.loads(body) for _, body in listener.posts]
        assert [one["event-data"]["recipient"] for one in told] == [
            "ada@example.org",
            "bob@example.org",
        ]
        assert len({one["signature"]["token"] for one in told}) == 2


async def test_forged_events_and_those_of_long_ago(twin):
    await to_mailgun(twin)
    assert not is_signed(twin, twin.event(twin.mails[0], "bounced", forged=True)[1])
    _, old = twin.sign(twin.describe(twin.mails[0], "bounced", None, {})[:1], at=1, token="again")
    assert is_signed(twin, old)
    assert json.loads(old)["signature"]["timestamp"] == "1"
