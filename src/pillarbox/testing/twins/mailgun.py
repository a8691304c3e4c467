"""A twin of Mailgun: sending for one domain, the domain itself, and signed webhooks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from email.utils import formatdate
from typing import Any

from pillarbox.testing.twins import mailgun_events
from pillarbox.testing.twins.addresses import bare, bare_all, is_address
from pillarbox.testing.twins.base import Kind, Signed, Twin
from pillarbox.testing.twins.dials import Trouble
from pillarbox.testing.twins.form import read_form
from pillarbox.testing.twins.mail import TwinMail, mime_header
from pillarbox.testing.twins.wire import Answer, Request, json_answer

# https://documentation.mailgun.com/docs/mailgun/user-manual/sending-messages
MAX_MESSAGE = 25 * 2**20
MAX_RECIPIENTS = 1000
_SEND = re.compile(r"/v3/([^/]+)/messages(\.mime)?")
_DOMAIN = re.compile(r"/v[34]/domains/([^/]+)")
SAID = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    413: "Message size exceeds the limit",
    429: "Too many requests. Please slow down",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
ACCOUNT_DISABLED = "Your account is disabled. Please contact support"
DOMAIN_DISABLED = "Sending is disabled for this domain"


class MailgunTwin(Twin):
    """`domain` is the one that exists and is verified; `others` exist, too, but are not yet."""

    kind = "mailgun"

    def __init__(
        self,
        *args: Any,
        domain: str = "mg.example.com",
        others: Collection[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.domain, self.others = domain, others
        self.api_key = f"{secrets.token_hex(16)}-{secrets.token_hex(4)}-{secrets.token_hex(4)}"
        self.webhook_signing_key = secrets.token_hex(16)

    @property
    def secret(self) -> str:
        return self.api_key

    @property
    def webhook_secret(self) -> str:
        return self.webhook_signing_key

    def provider_settings(self) -> dict[str, Any]:
        return {"url": self.url, "domain": self.domain, "region": "us"}

    # --- the API

    def is_send(self, request: Request) -> bool:
        return request.method == "POST" and _SEND.fullmatch(request.path) is not None

    def serve(self, request: Request) -> Answer:
        if not self._authenticated(request):
            return self.failure(401)
        if request.method == "POST" and (found := _SEND.fullmatch(request.path)):
            return self._send(found[1].lower(), bool(found[2]), request)
        if request.method == "GET" and (found := _DOMAIN.fullmatch(request.path)):
            return self._show(found[1].lower())
        return self.failure(404)

    def failure(self, status: int) -> Answer:
        if status == 401:
            return Answer(
                401,
                b"Forbidden",
                {"Content-Type": "text/plain", "WWW-Authenticate": 'Basic realm="MG API"'},
            )
        return _says(status, SAID.get(status, SAID[500]))

    def troubled(self, trouble: Trouble, request: Request) -> Answer:
        if trouble == "credential" or not self._authenticated(request):
            return self.failure(401)
        if not self.is_send(request):
            return self._show(self.domain, trouble)
        if trouble == "quota":
            again = formatdate(time.time() + 3600, usegmt=True).replace("GMT", "UTC")
            return self._may_not(
                self.domain, f"recipient limit exceeded, try again after {again}", 420
            )
        return self._may_not(
            self.domain, ACCOUNT_DISABLED if trouble == "suspended" else DOMAIN_DISABLED
        )

    def _authenticated(self, request: Request) -> bool:
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        try:
            given = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            return False
        return scheme.lower() == "basic" and hmac.compare_digest(
            given, f"api:{self.api_key}".encode()
        )

    def _may_not(self, domain: str, why: str, status: int = 403) -> Answer:
        return _says(status, f"Domain {domain} is not allowed to send: {why}")

    def _show(self, domain: str, trouble: Trouble | None = None) -> Answer:
        if domain != self.domain and domain not in self.others:
            return _says(404, f"Domain not found: {domain}")
        state = "active" if domain == self.domain else "unverified"
        disabled = trouble in ("suspended", "paused")
        about = {
            "id": "5c0ffee0c0ffee0c0ffee0c1",
            "name": domain,
            "state": "disabled" if disabled else state,
            "is_disabled": disabled,
            "type": "custom",
            "created_at": "Thu, 01 Jan 2026 00:00:00 GMT",
            "smtp_login": f"postmaster@{domain}",
            "spam_action": "disabled",
            "wildcard": False,
            "web_scheme": "https",
        }
        return json_answer(
            200, {"domain": about, "receiving_dns_records": [], "sending_dns_records": []}
        )

    def _send(self, domain: str, is_mime: bool, request: Request) -> Answer:
        if domain in self.others:
            return self._may_not(domain, "The domain is unverified and requires DNS configuration.")
        if domain != self.domain:
            return _says(404, f"Domain not found: {domain}")
        try:
            fields = read_form(request.headers.get("content-type", ""), request.body)
        except ValueError:
            return _says(400, "to parameter is missing")
        form: dict[str, list[bytes]] = {}
        for name, value in fields:
            form.setdefault(name, []).append(value)
        if wrong := _fault(form, is_mime):
            return wrong
        mail = _mail(form, is_mime, domain, request)
        self.keep(mail)
        return json_answer(200, {"id": mail.id, "message": "Queued. Thank you."})

    # --- its webhooks

    def describe(
        self, mail: TwinMail, kind: Kind, recipient: str | None, more: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        recipients = mail.recipients if recipient is None else [recipient]
        return [mailgun_events.describe(mail, kind, one, self.domain, more) for one in recipients]

    def sign(
        self,
        events: Sequence[dict[str, Any]],
        *,
        forged: bool = False,
        at: float | None = None,
        token: str | None = None,
    ) -> Signed:
        [event] = events
        timestamp, token = (
            str(int(time.time() if at is None else at)),
            token or secrets.token_hex(25),
        )
        key = "not the key" if forged else self.webhook_signing_key
        signature = hmac.new(key.encode(), (timestamp + token).encode(), hashlib.sha256).hexdigest()
        signed = {"timestamp": timestamp, "token": token, "signature": signature}
        body = json.dumps({"signature": signed, "event-data": event}).encode()
        return {"Content-Type": "application/json", "User-Agent": "mailgun/treq-22.2.0"}, body


def _says(status: int, message: str) -> Answer:
    return json_answer(status, {"message": message})


def _texts(form: Mapping[str, list[bytes]], name: str) -> list[str]:
    return [value.decode("utf-8", "replace") for value in form.get(name, [])]


def _first(form: Mapping[str, list[bytes]], name: str) -> str:
    return "".join(_texts(form, name)[:1])


def _recipients(form: Mapping[str, list[bytes]]) -> list[str]:
    return bare_all([*_texts(form, "to"), *_texts(form, "cc"), *_texts(form, "bcc")])


def _fault(form: Mapping[str, list[bytes]], is_mime: bool) -> Answer | None:
    """What Mailgun refuses in a form."""
    needed = ("to", "message") if is_mime else ("from", "to")
    for name in needed:
        if not any(form.get(name, ())):
            return _says(400, f"{name} parameter is missing")
    recipients = _recipients(form)
    if not recipients or not all(is_address(one) for one in recipients):
        return _says(400, "to parameter is not a valid address. please check documentation")
    if len(recipients) > MAX_RECIPIENTS:
        return _says(400, f"to parameter has more than {MAX_RECIPIENTS} recipients")
    if not is_mime and not any(form.get(name) for name in ("text", "html", "template")):
        return _says(400, "Need at least one of 'text' or 'html' parameters specified")
    if sum(len(value) for values in form.values() for value in values) > MAX_MESSAGE:
        return _says(413, SAID[413])
    return None


def _mail(
    form: Mapping[str, list[bytes]], is_mime: bool, domain: str, request: Request
) -> TwinMail:
    mime, own_id = None, None
    sender, subject = _first(form, "from"), _first(form, "subject")
    if is_mime:
        mime = form["message"][0]
        own_id = mime_header(mime, "Message-ID")
        sender = mime_header(mime, "From") or ""
        subject = mime_header(mime, "Subject") or ""
    variables = {name[2:]: _texts(form, name)[0] for name in form if name.startswith("v:")}
    shown = {name: _texts(form, name) for name in form if name != "message"}
    return TwinMail(
        id=own_id
        or f"<{time.strftime('%Y%m%d%H%M%S', time.gmtime())}.{secrets.token_hex(8)}@{domain}>",
        sender=bare(sender),
        recipients=tuple(dict.fromkeys(_recipients(form))),
        subject=subject,
        mime=mime,
        body={name: values if len(values) > 1 else values[0] for name, values in shown.items()},
        message_uuid=variables.get("pillarbox_message"),
        headers=request.headers,
        variables=variables,
    )
