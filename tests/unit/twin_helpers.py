"""Clients of the twins for their tests: written from the services' documents, apart from our transports."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from typing import Any
from uuid import uuid4

import aiohttp
from aiohttp import web

from pillarbox.testing.twins import MailgunTwin, SendGridTwin, SesTwin, Twin

UUID = str(uuid4())
MIME = (
    b"From: Shop <shop@example.com>\r\nTo: Ada <ada@example.org>\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n"
    b"Message-ID: <%b@example.com>\r\n\r\nhello\r\n" % UUID.encode()
)


@dataclass(frozen=True)
class Told:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def call(method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Told:
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method, url, headers=headers, data=BytesIO(body) if body else None
        ) as answer,
    ):
        return Told(answer.status, answer.headers, await answer.read())


# --- SendGrid


def sendgrid_mail(*recipients: str, **changes: Any) -> dict[str, Any]:
    people = [
        {"to": [{"email": one}], "custom_args": {"pillarbox_delivery": f"{UUID}.{n}"}}
        for n, one in enumerate(recipients or ("ada@example.org",))
    ]
    mail = {
        "personalizations": people,
        "from": {"email": "shop@example.com", "name": "Shop"},
        "subject": "Grüße",
        "content": [{"type": "text/plain", "value": "hello"}],
        "custom_args": {"pillarbox_message": UUID, "pillarbox_provider": "1"},
    }
    return {name: value for name, value in (mail | changes).items() if value is not None}


async def to_sendgrid(twin: SendGridTwin, mail: Any = None, key: str | None = None) -> Told:
    headers = {"Authorization": f"Bearer {key or twin.secret}", "Content-Type": "application/json"}
    body = (
        mail
        if isinstance(mail, bytes)
        else json.dumps(sendgrid_mail() if mail is None else mail).encode()
    )
    return await call("POST", twin.url + "/v3/mail/send", headers, body)


# --- SES


def aws_headers(
    twin: SesTwin, method: str, path: str, body: bytes, *, secret: str | None = None, at: datetime | None = None,
    key_id: str | None = None, region: str | None = None,
) -> dict[str, str]:  # fmt: skip
    """Signature Version 4, step by step."""
    now = (at or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    signed = {
        "content-type": "application/json",
        "host": twin.url.removeprefix("http://"),
        "x-amz-date": now,
    }
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    request = "\n".join([method, path, "", lines, names, hashlib.sha256(body).hexdigest()])
    scope = f"{now[:8]}/{region or twin.region}/ses/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = b"AWS4" + (secret or twin.secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    credential = f"{key_id or twin.access_key_id}/{scope}"
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return {"Content-Type": "application/json", "X-Amz-Date": now, "Authorization": authorization}


def ses_mail(*recipients: str, mime: bytes = MIME, **changes: Any) -> dict[str, Any]:
    mail = {
        "FromEmailAddress": "shop@example.com",
        "Destination": {"ToAddresses": list(recipients or ("ada@example.org",))},
        "Content": {"Raw": {"Data": base64.b64encode(mime).decode()}},
        "EmailTags": [{"Name": "pillarbox_message", "Value": UUID}],
    }
    return {name: value for name, value in (mail | changes).items() if value is not None}


async def to_ses(twin: SesTwin, mail: Any = None, **signing: Any) -> Told:
    path = "/v2/email/outbound-emails"
    body = (
        mail
        if isinstance(mail, bytes)
        else json.dumps(ses_mail() if mail is None else mail).encode()
    )
    return await call(
        "POST", twin.url + path, aws_headers(twin, "POST", path, body, **signing), body
    )


# --- Mailgun


def mailgun_login(key: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"api:{key}".encode()).decode()}


async def to_mailgun(
    twin: MailgunTwin,
    fields: Any = None,
    *,
    domain: str | None = None,
    key: str | None = None,
    mime: bool = True,
) -> Told:
    given = (
        [("to", "ada@example.org"), ("v:pillarbox_message", UUID), ("message", MIME)]
        if fields is None
        else fields
    )
    form = aiohttp.FormData(default_to_multipart=True)
    for name, value in given:
        if isinstance(value, bytes):
            form.add_field(name, BytesIO(value), filename="m.eml")
        else:
            form.add_field(name, value)
    path = f"/v3/{domain or twin.domain}/messages{'.mime' if mime else ''}"
    async with (
        aiohttp.ClientSession(headers=mailgun_login(key or twin.secret)) as session,
        session.post(twin.url + path, data=form) as answer,
    ):
        return Told(answer.status, answer.headers, await answer.read())


async def send(twin: Twin, *recipients: str) -> Told:
    """A good mail to any twin."""
    people = recipients or ("ada@example.org",)
    if isinstance(twin, SendGridTwin):
        return await to_sendgrid(twin, sendgrid_mail(*people))
    if isinstance(twin, SesTwin):
        return await to_ses(twin, ses_mail(*people))
    assert isinstance(twin, MailgunTwin)
    fields = [*(("to", one) for one in people), ("v:pillarbox_message", UUID), ("message", MIME)]
    return await to_mailgun(twin, fields)


async def check(twin: Twin) -> Told:
    """Ask for the account."""
    if isinstance(twin, SendGridTwin):
        return await call(
            "GET", twin.url + "/v3/scopes", {"Authorization": f"Bearer {twin.secret}"}
        )
    if isinstance(twin, SesTwin):
        path = "/v2/email/account"
        return await call("GET", twin.url + path, aws_headers(twin, "GET", path, b""))
    assert isinstance(twin, MailgunTwin)
    return await call("GET", f"{twin.url}/v3/domains/{twin.domain}", mailgun_login(twin.secret))


# --- who gets the feedback


@dataclass
class Listener:
    """Takes what twins post."""

    url: str = ""
    posts: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)
    statuses: list[int] = field(
        default_factory=list
    )  # to answer with, one after the other; then 200

    async def take(self, request: web.Request) -> web.Response:
        self.posts.append((request.headers, await request.read()))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 200)


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    listener = Listener()
    app = web.Application()
    app.router.add_post("/hook", listener.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    listener.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield listener
    finally:
        await runner.cleanup()
