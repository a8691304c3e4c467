"""The SQL that enqueues mails: a call of an SQL function with its arguments, for any driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pillarbox.accept.checks import to_json
from pillarbox.accept.mail import ALL_FIELDS, FIELDS, SQL_TYPES, Mail

# A statement takes a round trip of some 0.1 ms and a mail about as long: after 500 mails it is lost
# in the noise, and neither side has to hold much at a time.
MAX_CHUNK_MAILS = 500
MAX_CHUNK_OCTETS = 4 * 1024 * 1024

# Most mails have one recipient, and drivers write a string in half the time of a list.
ONLY_RECIPIENT = "recipient"
# The arrays of `enqueue_many`, beside its JSON.
_BODIES = {"text": "texts", "html": "htmls", "raw": "raws"}
# Of the arguments of both functions; see `SQL_TYPES`.
ARGUMENT_TYPES = {field.name: SQL_TYPES[field.kind] for field in FIELDS} | {
    "mails": "text::jsonb", "texts": "text[]", "htmls": "text[]", "raws": "bytea[]",
}  # fmt: skip
_JSON = frozenset(name for name, type_ in ARGUMENT_TYPES.items() if type_ == "text::jsonb")


class SqlCall(NamedTuple):
    """A call of an SQL function with named arguments."""

    function: str
    names: tuple[str, ...]
    values: tuple[Any, ...]

    def statement(self, style: str) -> str:
        """The SQL with placeholders in the `style` of a driver: `$` numbered, `%s`, `:` named."""
        return _statement(self.function, self.names, style)


@lru_cache(maxsize=512)
def _statement(function: str, names: tuple[str, ...], style: str) -> str:
    placeholders = {"$": "${number}", "%s": "%s", ":": ":{name}"}[style]
    arguments = (
        _argument(
            name,
            _cast(placeholders.format(number=number, name=name), ARGUMENT_TYPES.get(name, "text")),
        )
        for number, name in enumerate(names, 1)
    )
    return f"SELECT pillarbox.{function}({', '.join(arguments)})"


def _argument(name: str, value: str) -> str:
    if name == ONLY_RECIPIENT:
        return f'"to" => ARRAY[{value}]'
    return f'"{name}" => {value}'


def _cast(placeholder: str, types: str) -> str:
    for type_ in types.split("::"):
        placeholder = f"CAST({placeholder} AS {type_})"
    return placeholder


def call_for(mail: Mail) -> SqlCall:
    """The call that enqueues one mail."""
    arguments = ALL_FIELDS.given(mail)
    if len(arguments.get("to", ())) == 1:
        arguments[ONLY_RECIPIENT] = arguments.pop("to")[0]
    for name in _JSON & arguments.keys():
        arguments[name] = to_json(arguments[name])
    return SqlCall("enqueue", tuple(arguments), tuple(arguments.values()))


def calls_for(mails: Sequence[Mail], in_one: bool = False) -> Iterator[tuple[int, SqlCall]]:
    """The calls that enqueue mails, in bounded chunks, each with the position of its first mail."""
    chunk: list[dict[str, Any]] = []
    octets = 0
    for position, mail in enumerate(mails):
        arguments = ALL_FIELDS.given(mail)
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
    # Bodies go beside the JSON: quoting and parsing them would cost as much as storing them.
    bodies: dict[str, list[Any]] = {}
    for name, array in _BODIES.items():
        values = [arguments.pop(name, None) for arguments in chunk]
        if values.count(None) < len(values):
            bodies[array] = values
    for arguments in chunk:
        if len(arguments.get("to", ())) == 1:  # PostgreSQL reads a string faster than a list
            arguments["to"] = arguments["to"][0]
    return SqlCall("enqueue_many", ("mails", *bodies), (to_json(chunk), *bodies.values()))


def _weight(arguments: dict[str, Any]) -> int:
    """Roughly how many octets a mail takes in a statement."""
    attachments = arguments.get("attachments", ())
    return sum(len(arguments.get(name) or ()) for name in _BODIES) + sum(
        len(attachment["content"]) for attachment in attachments
    )
