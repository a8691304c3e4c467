"""The fields of a mail are declared once: every way in has them all, under the same names."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg

import pillarbox
from pillarbox import Mail
from pillarbox.accept.mail import FIELDS, SQL_TYPES, FieldKind
from pillarbox.api.new_message import NewMessage
from pillarbox.django.convert import OPTIONS

SOURCE = Path(pillarbox.__file__).parent
ARGUMENTS = "SELECT pg_get_function_arguments('pillarbox.enqueue'::regproc)"
# What is given beside the fields of the mail, by HTTP.
OF_TEMPLATES = {"template", "locale", "data"}


async def test_enqueue_has_every_field_with_its_type(connection: asyncpg.Connection) -> None:
    arguments = await connection.fetchval(ARGUMENTS)
    found = dict(re.findall(r'"?(\w+)"? ([a-z\[\] ]+?) DEFAULT', arguments))
    found = {
        name: type_.replace("timestamp with time zone", "timestamptz")
        for name, type_ in found.items()
    }
    assert found == {field.name: SQL_TYPES[field.kind].removeprefix("text::") for field in FIELDS}


async def test_enqueue_many_knows_every_field(connection: asyncpg.Connection) -> None:
    known = await connection.fetchval("SELECT pillarbox._known_fields()")
    assert set(known) == {field.name for field in FIELDS}
    lists = await connection.fetchval("SELECT pillarbox._list_fields()")
    assert set(lists) == {field.name for field in FIELDS if field.kind is FieldKind.STRINGS}


def test_http_and_django_know_every_field() -> None:
    attributes = {field.attribute for field in FIELDS}
    assert (
        NewMessage.model_fields.keys() == attributes - {"tenant", "idempotency_key"} | OF_TEMPLATES
    )
    assert attributes >= OPTIONS
    assert attributes == set(Mail.__dataclass_fields__)
