"""What is asked of the API, and how its answers are read. Pure: the shells do the talking."""

from __future__ import annotations

import json
import re
import uuid
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import urlencode, urlsplit

from pillarbox.accept.checks import check, to_json
from pillarbox.accept.mail import Mail, listed
from pillarbox.accept.statements import attachment_fields
from pillarbox.client.problems import error_of, retry_after
from pillarbox.client.reading import Record, read
from pillarbox.errors import InvalidMail, NoAnswer
from pillarbox.wire.messages import Accepted, Changes, FullMessage, MessagePage

Result = TypeVar("Result")
API_PREFIX = "/api/v1"
DEFAULT_URL = "http://127.0.0.1:8025"
# Seconds for one try: the server gives a request a minute to arrive.
TIMEOUT = 30.0
# How often a request is repeated. With the waits between them that bridges a restart of the server
# or its database.
RETRIES = 5
# Seconds before the first repetition when nobody says how long; doubled each time.
FIRST_WAIT = 0.2
# Whoever tells us to wait longer than this means: not now.
MAX_WAIT = 30.0
# Answers of servers and proxies that cannot do it now, but may soon.
_SOON = frozenset({429, 502, 503, 504})
_printable = re.compile(r"[ -~]{1,255}").fullmatch
JSON = {"Content-Type": "application/json"}


class Filters(TypedDict, total=False):
    """Which messages to list: all that fit. `recipient`, `sender` and `subject` match a part, whatever the case."""

    state: str | Sequence[str]
    recipient: str
    sender: str
    subject: str
    tag: str
    kind: str
    class_: str
    provider: str
    since: datetime
    until: datetime
    page_size: int


_FILTERS = {"class_": "class", "page_size": "limit"}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is sent to the server. `repeatable`: done twice it is as good as done once."""

    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What came back. The names of headers are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


def _is_finished(answer: HttpResponse) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[Result]):
    """A request, and how to read its answer."""

    request: HttpRequest
    reads: Callable[[HttpResponse], Result]
    is_finished: Callable[[HttpResponse], bool] = _is_finished

    def read(self, outcome: HttpResponse | NoAnswer) -> Result:
        """The result; raises the error that the server answered, or NoAnswer."""
        if isinstance(outcome, NoAnswer):
            raise outcome
        if outcome.status >= 300:
            raise error_of(outcome.status, outcome.headers, outcome.body)
        try:
            return self.reads(outcome)
        except (LookupError, TypeError, ValueError) as error:
            raise NoAnswer("the server's answer is not one of Pillarbox", outcome.status) from error

    def wait(
        self, outcome: HttpResponse | NoAnswer, tried: int, most: int, chance: float
    ) -> float | None:
        """Seconds before asking again; None: this is the answer. `chance` is in [0, 1)."""
        told = None if isinstance(outcome, NoAnswer) else retry_after(outcome.headers)
        if tried >= most or not self._may_help(outcome) or (told or 0.0) > MAX_WAIT:
            return None
        return FIRST_WAIT * 2**tried * (0.5 + chance / 2) if told is None else told

    def _may_help(self, outcome: HttpResponse | NoAnswer) -> bool:
        """Whether to ask again. What must not be done twice is repeated only where it surely was not done once."""
        if isinstance(outcome, NoAnswer):
            return self.request.repeatable or not outcome.reached
        if outcome.status in _SOON:
            return self.request.repeatable or outcome.status == 429
        return outcome.status < 300 and not self.is_finished(outcome)


def reading(kind: type[Record]) -> Callable[[HttpResponse], Record]:
    """Reads an answer as a value of this kind."""
    return lambda answer: read(kind, json.loads(answer.body))


def nothing(answer: HttpResponse) -> None:
    """For answers that say all by their status."""


def address(base_url: str) -> str:
    """Where the API is; ValueError if that cannot be an address."""
    parts = urlsplit(base_url)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or parts.username
    ):
        raise ValueError("base_url must be like https://mail.example.com")
    return base_url.rstrip("/").removesuffix(API_PREFIX) + API_PREFIX


def headers(api_key: str | None, version: str) -> dict[str, str]:
    """What every request carries."""
    common = {"Accept": "application/json", "User-Agent": f"pillarbox-python/{version}"}
    if api_key is None:
        return common
    if not api_key.isascii() or not api_key.isprintable() or not api_key.strip():
        raise ValueError("api_key must be a key such as pbx_…")
    return common | {"Authorization": f"Bearer {api_key.strip()}"}


@dataclass(frozen=True, slots=True)
class Sent(Accepted):
    """A mail that was accepted: it is committed, and will be delivered or visibly fail.

    `repeated`: it had been accepted before under the same idempotency key, by another call or by an
    earlier attempt of this call whose answer was lost.
    """

    repeated: bool = False


class TemplateOptions(TypedDict, total=False):
    """Which template makes the words of a mail, in which language, of what."""

    template: str
    locale: str | None
    data: Mapping[str, Any] | None


def send(mail: Mail, words: TemplateOptions | None = None) -> ApiCall[Sent]:
    """Hand a mail over. Its idempotency key, or one made here, is the same for every try."""
    body = (templated_json(mail, words) if words else mail_json(mail)).encode()
    key = new_key() if mail.idempotency_key is None else mail.idempotency_key
    return ApiCall(HttpRequest("POST", "/messages", body, JSON | key_header(key)), _sent)


def resend(message_id: uuid.UUID | str, idempotency_key: str | None) -> ApiCall[Sent]:
    return ApiCall(
        HttpRequest(
            "POST", _path(message_id, "/resend"), None, key_header(idempotency_key or new_key())
        ),
        _sent,
    )


def get(message_id: uuid.UUID | str) -> ApiCall[FullMessage]:
    return ApiCall(HttpRequest("GET", _path(message_id)), reading(FullMessage))


def raw(message_id: uuid.UUID | str) -> ApiCall[bytes]:
    return ApiCall(
        HttpRequest("GET", _path(message_id, "/raw"), headers={"Accept": "*/*"}),
        lambda answer: answer.body,
    )


def cancel(message_id: uuid.UUID | str) -> ApiCall[Changes]:
    # Done twice, the second says that there is nothing to cancel.
    return ApiCall(
        HttpRequest("POST", _path(message_id, "/cancel"), repeatable=False), reading(Changes)
    )


def reschedule(message_id: uuid.UUID | str, send_at: datetime) -> ApiCall[Changes]:
    body = to_json({"send_at": time_text(send_at, "send_at")}).encode()
    return ApiCall(
        HttpRequest("POST", _path(message_id, "/reschedule"), body, JSON), reading(Changes)
    )


def checked_filters(filters: Filters) -> list[tuple[str, str]]:
    """Filters as parameters of the query; TypeError for one that does not exist."""
    found: list[tuple[str, str]] = []
    for name, value in filters.items():
        if name not in Filters.__annotations__:
            raise TypeError(f"there is no filter {name!r}")
        values: Sequence[Any] = listed(value) if name == "state" else [value]  # type: ignore[arg-type]
        found += [
            (_FILTERS.get(name, name), _parameter(one, name)) for one in values if one is not None
        ]
    return found


def page(filters: Sequence[tuple[str, str]], cursor: str | None) -> ApiCall[MessagePage]:
    """One page of a listing; without a cursor, the first."""
    query = urlencode([*filters, *([("cursor", cursor)] if cursor else [])])
    path = f"/messages?{query}" if query else "/messages"
    return ApiCall(HttpRequest("GET", path), reading(MessagePage))


def mail_json(mail: Mail) -> str:
    """A mail as the API takes it; InvalidMail if it breaks a rule."""
    check(mail)
    return to_json(_fields(mail))


def templated_json(mail: Mail, words: TemplateOptions) -> str:
    """A mail whose words a template makes, as the API takes it; InvalidMail if it breaks a rule."""
    if unknown := sorted(words.keys() - TemplateOptions.__annotations__.keys()):
        raise TypeError(f"there is no {unknown[0]!r}")
    if not words.get("template"):
        raise InvalidMail("missing", "template", "locale and data are for a template", "name one")
    for made in ("subject", "text", "html", "raw"):
        if getattr(mail, made) is not None:
            raise InvalidMail("bad_value", made, "is made by the template", "leave it out")
    check(replace(mail, text="made by the template"))
    given = {name: value for name, value in words.items() if value is not None}
    try:
        return to_json(_fields(mail) | given)
    except (TypeError, ValueError):
        raise InvalidMail("bad_value", "data", "cannot be written as JSON") from None


def _fields(mail: Mail) -> dict[str, Any]:
    if mail.tenant != "default":
        raise InvalidMail("bad_value", "tenant", "the key says whose mail it is", "leave it out")
    fields = {
        "from": mail.sender,
        "to": list(listed(mail.to)),
        "cc": list(listed(mail.cc)),
        "bcc": list(listed(mail.bcc)),
        "reply_to": list(listed(mail.reply_to)),
        "subject": mail.subject,
        "text": mail.text,
        "html": mail.html,
        "raw": None if mail.raw is None else b64encode(mail.raw).decode("ascii"),
        "headers": dict(mail.headers or {}),
        "attachments": [attachment_fields(one) for one in mail.attachments or ()],
        "class": mail.class_,
        "kind": mail.kind,
        "tags": list(listed(mail.tags)),
        "priority": mail.priority,
        "send_at": mail.send_at and time_text(mail.send_at, "send_at"),
        "expires_at": mail.expires_at and time_text(mail.expires_at, "expires_at"),
        "max_attempts": mail.max_attempts,
    }
    given: dict[str, Any] = {
        name: value for name, value in fields.items() if value is not None and value != []
    }
    return given if mail.metadata is None else given | {"metadata": dict(mail.metadata)}


def new_key() -> str:
    return uuid.uuid4().hex


def key_header(key: str) -> dict[str, str]:
    """The header of an idempotency key; InvalidMail if it cannot be sent."""
    if not _printable(key):
        raise InvalidMail(
            "bad_key", "idempotency_key", "must be 1 to 255 printable ASCII characters"
        )
    return {"Idempotency-Key": key}


def _path(message_id: uuid.UUID | str, rest: str = "") -> str:
    return f"/messages/{uuid.UUID(str(message_id))}{rest}"


def time_text(value: datetime, field: str) -> str:
    """A time as the API takes it; InvalidMail if it has no zone."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidMail(
            "naive_time",
            field,
            "must be a time with time zone",
            "write datetime.now(UTC) + timedelta(…)",
        )
    return value.isoformat()


def _parameter(value: Any, name: str) -> str:
    return time_text(value, name) if name in ("since", "until") else str(value)


def _sent(answer: HttpResponse) -> Sent:
    found = read(Sent, json.loads(answer.body))
    return Sent(found.id, found.deliveries, answer.headers.get("Idempotency-Replayed") == "true")
