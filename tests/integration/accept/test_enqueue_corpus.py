"""One corpus of mails through both ways: Python's checks and the SQL functions reach the same verdicts."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from pillarbox import Attachment, Mail
from pillarbox.accept.checks import check
from pillarbox.errors import InvalidMail
from pillarbox.model.address import address_of
from tests.integration.accept.enqueue_corpus import ONLY_THE_DATABASE, PLAIN, Fields, corpus

Verdict = tuple[str, str, str]
ACCEPTED: Verdict = ("accepted", "", "")
LISTS = ("to", "cc", "bcc", "reply_to", "tags", "list_unsubscribe")
JSON = ("headers", "attachments", "metadata")
TYPES = (
    dict.fromkeys(LISTS, "text[]")
    | dict.fromkeys(JSON, "text::jsonb")
    | dict.fromkeys(("send_at", "expires_at"), "text::timestamptz")
    | {"raw": "bytea", "max_attempts": "text::integer"}
)


def by_python(fields: Fields) -> Verdict:
    try:
        check(Mail(**fields))
    except InvalidMail as error:
        return error.code, error.field, error.message
    return ACCEPTED


async def by_sql(connection: asyncpg.Connection, query: str, *values: Any) -> Verdict:
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.fetch(query, *values)
    except asyncpg.PostgresError as error:
        if error.sqlstate not in ("PB400", "PB404"):
            raise
        return error.constraint_name, error.column_name, error.detail
    else:
        return ACCEPTED
    finally:
        await transaction.rollback()


def as_json(value: Any, field: str) -> Any:
    """A field of Mail as one would write it in JSON for the SQL functions."""
    if field == "raw" and isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [as_json(element, "") for element in value]
    if isinstance(value, Attachment):
        content = (
            b64encode(value.content).decode() if isinstance(value.content, bytes) else value.content
        )
        return {
            name: getattr(value, name) for name in ("filename", "content_type", "content_id")
        } | {"content": content}
    return value


def named(fields: Fields) -> Fields:
    return {"class" if name == "class_" else name: value for name, value in fields.items()}


async def by_enqueue_many(connection: asyncpg.Connection, fields: Fields) -> Verdict:
    mail = {name: as_json(value, name) for name, value in named(fields).items()}
    return await by_sql(connection, "SELECT pillarbox.enqueue_many($1)", json.dumps([mail]))


async def by_enqueue(connection: asyncpg.Connection, fields: Fields) -> Verdict | None:
    """None where SQL's own types make the mail impossible to write down."""
    values = {name: _argument(name, value) for name, value in named(fields).items()}
    if IMPOSSIBLE in values.values():
        return None
    casts = (f"${n}::{TYPES.get(name, 'text')}" for n, name in enumerate(values, 1))
    arguments = ", ".join(f'"{name}" => {cast}' for name, cast in zip(values, casts, strict=True))
    return await by_sql(connection, f"SELECT pillarbox.enqueue({arguments})", *values.values())


IMPOSSIBLE = object()


def _argument(name: str, value: Any) -> Any:
    if name in JSON:
        return json.dumps(as_json(value, name)) if value is not None else None
    if name in LISTS:
        value = [value] if isinstance(value, str) else value
        right = isinstance(value, (list, tuple)) and all(
            isinstance(v, (str, type(None))) for v in value
        )
        return list(value) if right else IMPOSSIBLE
    if name == "max_attempts":
        right = value is None or (type(value) is int and abs(value) < 2**31)
        return str(value) if right and value is not None else value if right else IMPOSSIBLE
    if name in ("send_at", "expires_at"):
        return (
            value.isoformat()
            if isinstance(value, datetime)
            else IMPOSSIBLE
            if value is not None
            else None
        )
    return value if isinstance(value, (str, bytes, type(None))) else IMPOSSIBLE


@pytest.fixture(scope="module")
def mails() -> list[Fields]:
    return corpus()


def agree(mine: Verdict, theirs: Verdict) -> bool:
    # Types are SQL's own where Python has others, so the words about them may differ.
    return mine == theirs or (mine[:2] == theirs[:2] and mine[0] in ("bad_type", "bad_attachment"))


@pytest.mark.parametrize("way", [by_enqueue, by_enqueue_many])
async def test_both_ways_agree(
    way: Callable[..., Any], mails: list[Fields], connection: asyncpg.Connection
) -> None:
    assert len(mails) >= 1500
    seen: Counter[tuple[str, str]] = Counter()
    for fields in mails:
        theirs = await way(connection, fields)
        if theirs is not None:
            mine = by_python(fields)
            assert agree(mine, theirs), f"Python: {mine}, SQL: {theirs} for {_shortened(fields)}"
            seen[mine[:2]] += 1
    assert len(seen) > 40, seen  # the corpus reaches all the rules
    assert seen[ACCEPTED[:2]] > len(mails) / 5


def _shortened(fields: Fields) -> str:
    changed = {name: value for name, value in fields.items() if PLAIN.get(name, "") != value}
    return ascii(changed)[:2000]


@pytest.mark.parametrize("way", [by_enqueue, by_enqueue_many])
async def test_what_only_the_database_knows(
    way: Callable[..., Any], connection: asyncpg.Connection
) -> None:
    for changes, expected in ONLY_THE_DATABASE:
        assert by_python(PLAIN | changes) == ACCEPTED
        assert (await way(connection, PLAIN | changes))[:2] == expected, changes


def test_every_accepted_address_can_be_delivered_to(mails: list[Fields]) -> None:
    """What `enqueue` accepts the composer must be able to take apart."""
    for fields in mails:
        if by_python(fields) == ACCEPTED:
            for name in ("sender", "to", "cc", "bcc", "reply_to"):
                value = fields.get(name) or ()
                for mailbox in [value] if isinstance(value, str) else value:
                    address_of(mailbox)


@pytest.mark.parametrize(
    ("mail", "code", "field"),
    [
        ("[1]", "bad_type", "mails"),
        ("{}", "bad_type", "mails"),
        ("null", "bad_type", "mails"),
        ('[{"sendr": "a@b"}]', "unknown_field", "sendr"),
        ('[{"send_at": "tomorrow-ish"}]', "bad_type", "send_at"),
        ('[{"raw": "%%%"}]', "bad_type", "raw"),
        ('[{"max_attempts": 1.5}]', "bad_type", "max_attempts"),
        (
            '[{"sender": "a@b", "to": "a@b", "attachments": [{"content": "?"}]}]',
            "bad_attachment",
            "attachments",
        ),
        (
            '[{"sender": "a@b", "to": "a@b", "attachments": [{"x": "?"}]}]',
            "bad_attachment",
            "attachments",
        ),
    ],
)
async def test_bad_json_gets_a_clear_error(
    mail: str, code: str, field: str, connection: asyncpg.Connection
) -> None:
    assert (await by_sql(connection, "SELECT pillarbox.enqueue_many($1)", mail))[:2] == (
        code,
        field,
    )


async def test_lists_of_lists_are_refused(connection: asyncpg.Connection) -> None:
    for field in (*LISTS,):
        arguments = f"sender => 'a@b', \"{field}\" => '{{{{a@b,a@b}}}}', text => ''"
        if field != "to":
            arguments += ", \"to\" => '{a@b}'"
        verdict = await by_sql(connection, f"SELECT pillarbox.enqueue({arguments})")
        assert verdict[:2] == ("bad_type", field)


async def test_the_database_says_which_of_several(connection: asyncpg.Connection) -> None:
    mails = [{"sender": "a@b", "to": "a@b", "text": ""}] * 3 + [
        {"sender": "a@b", "to": "x", "text": ""}
    ]
    with pytest.raises(asyncpg.PostgresError, match=r"^mails\[3\]\.to: not a legal e-mail address"):
        await connection.fetch("SELECT pillarbox.enqueue_many($1)", json.dumps(mails))
    with pytest.raises(asyncpg.PostgresError, match=r"^to: not a legal e-mail address"):
        await connection.fetch(
            "SELECT pillarbox.enqueue(sender => 'a@b', \"to\" => '{x}', text => '')"
        )
