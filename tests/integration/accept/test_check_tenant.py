"""A tenant's limits in SQL and in Python: the same mails are refused, with the same words."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pillarbox.accept.drivers import translated
from pillarbox.accept.headers import sender_domains
from pillarbox.errors import InvalidMail, NotAllowed, PillarboxError
from pillarbox.model.access import Principal, Scope, Tenant, check_allowed
from pillarbox.store import schema as SCHEMA
from pillarbox.store import tenants
from pillarbox.store.database import Database
from tests.sender_headers import DOMAINS as DOMAINS_OF_HEADERS
from tests.sender_headers import PYTHON_ONLY, UNCLEAR

DOMAINS = ["shop.example", "*.shop.example", "Bücher.example", "*.δοκιμή.example", "straße.example"]
SENDERS = [
    "a@shop.example", "a@SHOP.Example", "Shop <a@shop.example>", "a@news.shop.example", "a@a.b.shop.example",
    "a@notshop.example", "a@shop.example.evil.example", "a@example", "a@evil.example", "A <a@evil.example>",
    '"a@shop.example"@evil.example', '"a@evil.example"@shop.example', "a@bücher.example", "a@BÜCHER.example",
    "a@xn--bcher-kva.example", "a@XN--BCHER-KVA.example", "a@x.bücher.example", "a@bu\u0308cher.example",
    "a@δοκιμή.example", "a@x.δοκιμή.example", "a@x.xn--jxalpdlp.example", "a@x.ΔΟΚΙΜΉ.example", "a@straße.example",
    "a@strasse.example", "a@xn--strae-oqa.example", "a@_x.δοκιμή.example", "a@[127.0.0.1]", "a@.shop.example",
    "ü@shop.example", "a@пример.example", "a@shop.exämple",
    "ceo@evil.example <a@shop.example>", "CEO @ evil.example <a@shop.example>", "a@evil <a@shop.example>",
    "Ann @ Shop <a@shop.example>", "@shop <a@shop.example>", "a@shop.example. <a@shop.example>",
    "ceo\uff20evil\u3002example <a@shop.example>", "ceo@\u200bevil.example <a@shop.example>",
    "=?utf-8?q?ceo=40evil.example?= <a@shop.example>",
]  # fmt: skip


def in_python(
    tenant: Tenant, sender: str, recipients: Sequence[str], size: int
) -> PillarboxError | None:
    try:
        check_allowed(
            Principal("key", "k", tenant, frozenset({Scope.SEND})), sender, recipients, size
        )
    except (InvalidMail, NotAllowed) as error:
        return error
    return None


async def in_sql(
    database: Database, tenant: Tenant, sender: str, recipients: int, size: int
) -> PillarboxError | None:
    query = "SELECT pillarbox._check_tenant(tenant_id => $1, sender => $2, recipients => $3, size => $4)"
    try:
        await database.fetchval(query, tenant.id, sender, recipients, size)
    except asyncpg.PostgresError as error:
        found = translated(error)
        assert found
        return found[0]
    return None


def told(error: PillarboxError | None) -> Any:
    if error is None:
        return None
    return (
        type(error),
        *(getattr(error, name) for name in ("code", "field", "message", "hint")),
        str(error),
    )


@pytest.mark.parametrize("patterns", [[], DOMAINS, DOMAINS[:1], DOMAINS[2:]], ids=len)
async def test_senders(database: Database, patterns: list[str]) -> None:
    tenant = await tenants.add_tenant(database, "shop", sender_domains=patterns)
    verdicts = set()
    for sender in SENDERS:
        expected = in_python(tenant, sender, ["b@x.example"], 1)
        assert told(await in_sql(database, tenant, sender, 1, 1)) == told(expected), sender
        verdicts.add(type(expected))
    assert verdicts == ({type(None), NotAllowed} if patterns else {type(None)})


@pytest.mark.parametrize("limits", [{}, {"max_recipients": 3}, {"max_message_bytes": 5000},
                                    {"max_recipients": 3, "max_message_bytes": 5000}], ids=str)  # fmt: skip
@pytest.mark.parametrize("recipients", [1, 3, 4])
@pytest.mark.parametrize("size", [1, 5000, 5001])
async def test_numbers(
    database: Database, limits: dict[str, int], recipients: int, size: int
) -> None:
    tenant = await tenants.add_tenant(database, "shop", **limits)
    expected = in_python(tenant, "a@x.example", ["b@x.example"] * recipients, size)
    assert told(await in_sql(database, tenant, "a@x.example", recipients, size)) == told(expected)


async def test_the_first_of_several_faults_is_the_same(database: Database) -> None:
    tenant = await tenants.add_tenant(
        database, "shop", sender_domains=["shop.example"], max_recipients=1, max_message_bytes=5000
    )
    expected = in_python(tenant, "a@x.example", ["b@x.example"] * 2, 6000)
    assert isinstance(expected, NotAllowed)
    assert told(await in_sql(database, tenant, "a@x.example", 2, 6000)) == told(expected)


def shown_in_python(header: bytes) -> set[str] | str:
    try:
        return set(sender_domains(header))
    except InvalidMail as error:
        return str(error)


async def shown_in_sql(database: Database, header: bytes) -> set[str] | str:
    try:
        return {
            row[0]
            for row in await database.fetch("SELECT * FROM pillarbox._sender_domains($1)", header)
        }
    except asyncpg.PostgresError as error:
        found = translated(error)
        assert found
        return str(found[0])


async def test_senders_of_raw_mails(database: Database) -> None:
    for header in [*(header for header, _ in DOMAINS_OF_HEADERS), *UNCLEAR]:
        for raw in (
            header,
            header + b"\r\n",
            header + b"\r\n\r\nFrom: body@evil.example\r\n",
            b"\r\n" + header,
        ):
            found = await shown_in_sql(database, raw)
            if any(word in raw for word in PYTHON_ONLY) and not raw.startswith(b"\r\n"):
                assert "encoding that cannot be read" in found
            else:
                assert found == shown_in_python(raw), raw


async def enqueue(database: Database, raw: bytes) -> Any:
    query = 'SELECT pillarbox.enqueue(sender => $1, "to" => ARRAY[$2], raw => $3, tenant => $4)'
    return await database.fetchval(query, "a@shop.example", "b@x.example", raw, "shop")


@pytest.mark.parametrize(
    ("raw", "code", "field"),
    [
        (b"X: y\rFrom: ceo@evil.example\r\n\r\n", "bare_cr", "raw"),
        (b"From: ceo@evil.example\n\n", "sender_domain", "From"),
        (b"From: =?utf-8?q?ceo=40evil.example?= <a@shop.example>\n\n", "sender_domain", "From"),
        (b"From: a@shop.example\nResent-Sender: ceo@evil.example\n\n", "sender_domain", "From"),
        (b"nonsense\nFrom: a@shop.example\n\n", "bad_header", "raw"),
    ],
)
async def test_sql_refuses_raw_mails_from_elsewhere(
    database: Database, raw: bytes, code: str, field: str
) -> None:
    await tenants.add_tenant(database, "shop", sender_domains=["shop.example"])
    with pytest.raises(asyncpg.PostgresError) as caught:
        await enqueue(database, raw)
    assert (caught.value.constraint_name, caught.value.column_name) == (code, field)  # type: ignore[attr-defined]
    assert caught.value.hint  # type: ignore[attr-defined]
    assert await database.fetchval("SELECT count(*) FROM pillarbox.messages") == 0


async def test_sql_stores_what_is_sent(database: Database) -> None:
    await tenants.add_tenant(database, "shop", sender_domains=["shop.example"])
    await enqueue(database, b"From: a@shop.example\n\n\xff\\r\\015\r\nb\n")
    assert await database.fetchval("SELECT raw FROM pillarbox.contents") == (
        b"From: a@shop.example\r\n\r\n\xff\\r\\015\r\nb\r\n"
    )


@pytest.mark.parametrize("wrong", [{"sender": "a@evil.example"}, {"text": "y" * 5000}])
@pytest.mark.parametrize("more", [{}, {"kind": "news"}], ids=["usual", "with a rarer field"])
async def test_enqueue_many_checks_every_mail(
    connection: asyncpg.Connection, wrong: dict[str, str], more: dict[str, str]
) -> None:
    """Also mails of the usual kind, which are checked and stored together."""
    await connection.execute(
        "INSERT INTO pillarbox.tenants (name, sender_domains, max_message_bytes)"
        " VALUES ('strict', '{shop.example}', 2000)"
    )
    mail = {"tenant": "strict", "to": "b@c.example", "sender": "a@shop.example", "text": "y"} | more
    statement = "SELECT pillarbox.enqueue_many($1::jsonb)"
    assert len(await connection.fetch(statement, json.dumps([mail, mail]))) == 2
    with pytest.raises(asyncpg.PostgresError, match=r"mails\[1\]"):
        await connection.fetch(statement, json.dumps([mail, mail | wrong]))
    assert await connection.fetchval("SELECT count(*) FROM pillarbox.messages") == 2


async def test_checks_are_never_left_out(connection: asyncpg.Connection) -> None:
    """PostgreSQL may leave out a call whose result nothing uses, unless the function is volatile."""
    rows = await connection.fetch(
        "SELECT proname, provolatile FROM pg_proc"
        " WHERE pronamespace = 'pillarbox'::regnamespace AND prorettype = 'void'::regtype"
    )
    schema = "".join(path.read_text() for path in Path(SCHEMA.__path__[0]).glob("*.sql"))
    for row in rows:
        call = rf"(?<!PERFORM )(?<!FUNCTION )pillarbox\.{row['proname']}\("
        if row["provolatile"] != b"v":
            assert not re.search(call, schema), row["proname"]
