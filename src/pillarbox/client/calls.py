"""The calls of the API for messages, without I/O."""

from __future__ import annotations

import json
import re
import uuid
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypedDict

from pillarbox.accept.checks import check, to_json
from pillarbox.accept.mail import ALL_FIELDS, Mail, listed
from pillarbox.client import api_call
from pillarbox.client.api_call import JSON, ApiCall, HttpRequest, HttpResponse
from pillarbox.client.reading import read
from pillarbox.errors import InvalidMail
from pillarbox.wire.messages import Accepted, Changes, FullMessage, MessagePage

_is_printable = re.compile(r"[ -~]{1,255}").fullmatch


class Filters(TypedDict, total=False):
    """Filters of messages, which must match all of them.

    `recipient`, `sender` and `subject` match a substring, ignoring case.
    """

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


# Names in the API, where they differ.
_FILTERS = {"class_": "class", "page_size": "limit"}


@dataclass(frozen=True, slots=True)
class Sent(Accepted):
    """An accepted mail. It is committed: it will be delivered, or fail with a reason.

    `repeated`: it had been accepted before under the same idempotency key, by another call or by an
    earlier attempt of this call whose answer was lost.
    """

    repeated: bool = False


class TemplateOptions(TypedDict, total=False):
    """The template of a mail, its language, and the values of its variables."""

    template: str
    locale: str | None
    data: Mapping[str, Any] | None


def send(mail: Mail, template: TemplateOptions | None = None) -> ApiCall[Sent]:
    """Submit a mail. All attempts use its idempotency key, or a generated one."""
    text = templated_json(mail, template) if template else mail_json(mail)
    key = new_key() if mail.idempotency_key is None else mail.idempotency_key
    request = HttpRequest("POST", "/messages", text.encode(), JSON | key_header(key))
    return ApiCall(request, _sent)


def resend(message_id: uuid.UUID | str, idempotency_key: str | None) -> ApiCall[Sent]:
    header = key_header(idempotency_key or new_key())
    return ApiCall(HttpRequest("POST", _path(message_id, "/resend"), None, header), _sent)


def get(message_id: uuid.UUID | str) -> ApiCall[FullMessage]:
    return api_call.get(_path(message_id), FullMessage)


def raw(message_id: uuid.UUID | str) -> ApiCall[bytes]:
    return api_call.download(_path(message_id, "/raw"))


def cancel(message_id: uuid.UUID | str) -> ApiCall[Changes]:
    # Not repeatable: the second time, there is nothing to cancel.
    path = _path(message_id, "/cancel")
    return api_call.send_json("POST", path, None, Changes, repeatable=False)


def reschedule(message_id: uuid.UUID | str, send_at: datetime) -> ApiCall[Changes]:
    body = {"send_at": time_text(send_at, "send_at")}
    return api_call.send_json("POST", _path(message_id, "/reschedule"), body, Changes)


def checked_filters(filters: Filters) -> list[tuple[str, str]]:
    """Filters as query parameters; TypeError for an unknown filter."""
    parameters: list[tuple[str, str]] = []
    given: Mapping[str, Any] = filters
    for name, value in given.items():
        if name not in Filters.__annotations__:
            raise TypeError(f"there is no filter {name!r}")
        values = listed(value) if name == "state" else [value]
        texts = [_parameter(each, name) for each in values if each is not None]
        parameters += [(_FILTERS.get(name, name), text) for text in texts]
    return parameters


def page(filters: Sequence[tuple[str, str]], cursor: str | None) -> ApiCall[MessagePage]:
    """One page of a listing; without a cursor, the first."""
    return api_call.get("/messages", MessagePage, [*filters, ("cursor", cursor)])


def mail_json(mail: Mail) -> str:
    """A mail as the JSON of the API; InvalidMail if it is invalid."""
    check(mail)
    return to_json(_fields(mail))


def templated_json(mail: Mail, template: TemplateOptions) -> str:
    """A mail with a template as the JSON of the API; InvalidMail if it is invalid."""
    unknown = sorted(template.keys() - TemplateOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"there is no argument {unknown[0]!r}")
    if not template.get("template"):
        raise InvalidMail("missing", "template", "is required with locale and data", "add it")
    for made in ("subject", "text", "html", "raw"):
        if getattr(mail, made) is not None:
            raise InvalidMail("bad_value", made, "is set by the template", "omit it")
    check(replace(mail, text="set by the template"))
    given = {name: value for name, value in template.items() if value is not None}
    try:
        return to_json(_fields(mail) | given)
    except (TypeError, ValueError):
        raise InvalidMail("bad_value", "data", "cannot be encoded as JSON") from None


def _fields(mail: Mail) -> dict[str, Any]:
    if mail.tenant != "default":
        raise InvalidMail("bad_value", "tenant", "the key determines the tenant", "omit it")
    fields = ALL_FIELDS.given(mail)
    fields.pop("idempotency_key", None)  # it is a header
    if "sender" in fields:
        fields["from"] = fields.pop("sender")
    if "raw" in fields:
        fields["raw"] = b64encode(fields["raw"]).decode("ascii")
    return fields


def new_key() -> str:
    return uuid.uuid4().hex


def key_header(key: str) -> dict[str, str]:
    """The header of an idempotency key; InvalidMail if it cannot be sent."""
    if not _is_printable(key):
        raise InvalidMail(
            "bad_key", "idempotency_key", "must be 1 to 255 printable ASCII characters"
        )
    return {"Idempotency-Key": key}


def _path(message_id: uuid.UUID | str, rest: str = "") -> str:
    return f"/messages/{uuid.UUID(str(message_id))}{rest}"


def time_text(value: datetime, field: str) -> str:
    """A time in the format of the API; InvalidMail if it has no time zone."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidMail(
            "naive_time",
            field,
            "must be a time with time zone",
            "write datetime.now(UTC) + timedelta(…)",
        )
    return value.isoformat()


def _parameter(value: Any, name: str) -> str:
    if name in ("since", "until"):
        return time_text(value, name)
    return str(value)


def _sent(response: HttpResponse) -> Sent:
    sent = read(Sent, json.loads(response.body))
    return replace(sent, repeated=response.headers.get("Idempotency-Replayed") == "true")
