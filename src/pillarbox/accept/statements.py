"""What is said to PostgreSQL to enqueue: a call of an SQL function and its arguments, whatever the driver."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from pillarbox.accept.checks import to_json
from pillarbox.accept.mail import Attachment, Mail, listed

# A statement takes a round trip of some 0.1 ms and a mail about as long: after 500 mails it is lost
# in the noise, and neither side has to hold much at a time.
MAX_CHUNK_MAILS = 500
MAX_CHUNK_OCTETS = 4 * 1024 * 1024

# Times and JSON travel as text: no driver, nor a codec that the application has set, gets to
# interpret them.
_CASTS = {
    "to": "text[]", "cc": "text[]", "bcc": "text[]", "reply_to": "text[]", "tags": "text[]",
    "headers": "text::jsonb", "attachments": "text::jsonb", "metadata": "text::jsonb", "mails": "text::jsonb",
    "send_at": "text::timestamptz", "expires_at": "text::timestamptz", "max_attempts": "integer",
    "raw": "bytea", "texts": "text[]", "htmls": "text[]", "raws": "bytea[]",
}  # fmt: skip
# Most mails have one recipient, and drivers write a string in half the time of a list.
ONLY_RECIPIENT = "recipient"
_OPTIONAL = ("sender", "subject", "text", "html", "kind", "max_attempts", "idempotency_key")
_LISTS = ("cc", "bcc", "reply_to", "tags")
_JSON = frozenset({"headers", "attachments", "metadata"})


class SqlCall(NamedTuple):
    """A call of an SQL function with named arguments."""

    function: str
    names: tuple[str, ...]
    values: tuple[Any, ...]

    def statement(self, style: str) -> str:
        """Its SQL with placeholders in the `style` of a driver: `$` numbered, `%s`, or `:` named."""
        return _statement(self.function, self.names, style)


@lru_cache(maxsize=512)
def _statement(function: str, names: tuple[str, ...], style: str) -> str:
    placeholders = {"$": "${number}", "%s": "%s", ":": ":{name}"}[style]
    arguments = (
        _argument(
            name, _cast(placeholders.format(number=number, name=name), _CASTS.get(name, "text"))
        )
        for number, name in enumerate(names, 1)
    )
    return f"SELECT pillarbox.{function}({', '.join(arguments)})"


def _argument(name: str, value: str) -> str:
    return f'"to" => ARRAY[{value}]' if name == ONLY_RECIPIENT else f'"{name}" => {value}'


def _cast(placeholder: str, types: str) -> str:
    for type_ in types.split("::"):
        placeholder = f"CAST({placeholder} AS {type_})"
    return placeholder


def call_for(mail: Mail) -> SqlCall:
    """The call that enqueues one mail."""
    arguments = _arguments(mail)
    if len(arguments["to"]) == 1:
        arguments[ONLY_RECIPIENT] = arguments.pop("to")[0]
    for name in _JSON & arguments.keys():
        arguments[name] = to_json(arguments[name])
    return SqlCall("enqueue", tuple(arguments), tuple(arguments.values()))


def calls_for(mails: Sequence[Mail], in_one: bool = False) -> Iterator[tuple[int, SqlCall]]:
    """The calls that enqueue several mails, in bounded chunks, each with the position of its first mail."""
    chunk: list[dict[str, Any]] = []
    octets = 0
    for position, mail in enumerate(mails):
        arguments = _arguments(mail)
        weight = _weight(arguments)
        if (
            chunk
            and not in_one
            and (len(chunk) >= MAX_CHUNK_MAILS or octets + weight > MAX_CHUNK_OCTETS)
        ):
            yield position - len(chunk), _call_for_chunk(chunk)
            chunk, octets = [], 0
        chunk.append(arguments)
        octets += weight
    if chunk:
        yield len(mails) - len(chunk), _call_for_chunk(chunk)


def _call_for_chunk(chunk: list[dict[str, Any]]) -> SqlCall:
    # Bodies go beside the JSON, as they are: quoting and parsing them would cost as much as storing
    # them.
    texts, htmls, raws = (
        [arguments.pop(name, None) for arguments in chunk] for name in ("text", "html", "raw")
    )
    bodies = {
        name: values
        for name, values in (("texts", texts), ("htmls", htmls), ("raws", raws))
        if any(value is not None for value in values)
    }
    for arguments in chunk:
        if len(arguments["to"]) == 1:  # a string is looked at faster than a list
            arguments["to"] = arguments["to"][0]
    return SqlCall("enqueue_many", ("mails", *bodies), (to_json(chunk), *bodies.values()))


def _weight(arguments: dict[str, Any]) -> int:
    """Roughly how many octets a mail takes in a statement."""
    attachments = arguments.get("attachments", ())
    return sum(len(arguments.get(name) or ()) for name in ("text", "html", "raw")) + sum(
        len(attachment["content"]) for attachment in attachments
    )


def _arguments(mail: Mail) -> dict[str, Any]:
    """The SQL function's arguments for a checked mail, without those that are left out."""
    given = zip(_OPTIONAL, _optional(mail), strict=True)
    arguments: dict[str, Any] = {name: value for name, value in given if value is not None}
    arguments["to"] = list(listed(mail.to))
    for name, values in zip(_LISTS, (mail.cc, mail.bcc, mail.reply_to, mail.tags), strict=True):
        if values:
            arguments[name] = list(listed(values))
    if mail.tenant != "default":
        arguments["tenant"] = mail.tenant
    if mail.class_ is not None:
        arguments["class"] = mail.class_
    if mail.priority != "normal":
        arguments["priority"] = mail.priority
    if mail.raw is not None:
        arguments["raw"] = bytes(mail.raw)
    if (
        mail.headers
        or mail.attachments
        or mail.metadata is not None
        or mail.send_at
        or mail.expires_at
    ):
        _add_rarer(arguments, mail)
    return arguments


_optional = attrgetter(*_OPTIONAL)


def _add_rarer(arguments: dict[str, Any], mail: Mail) -> None:
    if mail.headers:
        arguments["headers"] = dict(mail.headers)
    if mail.attachments:
        arguments["attachments"] = [
            attachment_fields(attachment) for attachment in mail.attachments
        ]
    if mail.metadata is not None:
        arguments["metadata"] = dict(mail.metadata)
    for name in ("send_at", "expires_at"):
        time = getattr(mail, name)
        if time is not None:
            arguments[name] = time.astimezone(UTC).isoformat()


def attachment_fields(attachment: Attachment) -> dict[str, str]:
    """An attachment as it is written in JSON."""
    fields = {
        "filename": attachment.filename,
        "content": b64encode(attachment.content).decode("ascii"),
        "content_type": attachment.content_type,
        "content_id": attachment.content_id,
    }
    return {name: value for name, value in fields.items() if value is not None}
