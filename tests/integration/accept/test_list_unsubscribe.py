"""`list_unsubscribe`: the same header fields whatever the way in, and nothing else can be put into them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import pillarbox
from pillarbox import Mail, enqueue, enqueue_many
from pillarbox.accept.intake import Intake
from pillarbox.api.new_message import NewMessage
from pillarbox.client import calls
from pillarbox.deliver.headers import custom_headers
from pillarbox.errors import InvalidMail
from pillarbox.store.database import Database
from pillarbox.store.migrations import migrate
from pillarbox.telemetry.metrics import Metrics
from tests.integration.accept.intake_helpers import mail, principal

HTTPS, HTTP = "https://shop.example/u?id=7", "http://shop.example/u"
MAILTO = "mailto:stop@shop.example?subject=7"
POST = {"List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}
HEADERS = [
    (HTTPS, {"List-Unsubscribe": f"<{HTTPS}>"} | POST),
    (MAILTO, {"List-Unsubscribe": f"<{MAILTO}>"}),
    ([HTTPS, MAILTO], {"List-Unsubscribe": f"<{HTTPS}>, <{MAILTO}>"} | POST),
    ([HTTP], {"List-Unsubscribe": f"<{HTTP}>"}),
    ([HTTPS, HTTP], {"List-Unsubscribe": f"<{HTTPS}>, <{HTTP}>"}),
    ([HTTPS, HTTPS], {"List-Unsubscribe": f"<{HTTPS}>, <{HTTPS}>"}),
    ((), None),
]
SOURCE = Path(pillarbox.__file__).parent


@pytest.mark.parametrize(("urls", "expected"), HEADERS)
async def test_every_way_in_stores_the_same_header_fields(
    urls: Any, expected: Any, database: Database, connection: asyncpg.Connection
) -> None:
    given = mail(list_unsubscribe=urls)
    intake = Intake(database, Metrics())
    by_http = NewMessage.model_validate_json(calls.mail_json(given)).to_mail()
    ids = [
        await enqueue(connection, given),
        *await enqueue_many(connection, [given, mail()]),
        (await intake.accept(principal(), by_http)).id,
    ]
    await intake.close()
    del ids[2]
    for message_id in ids:
        stored = await connection.fetchval(
            "SELECT headers FROM pillarbox.messages WHERE id = $1", message_id
        )
        assert (stored and json.loads(stored)) == expected


async def test_other_headers_stay(connection: asyncpg.Connection) -> None:
    await enqueue(connection, mail(list_unsubscribe=MAILTO, headers={"X-A": "b"}))
    stored = await connection.fetchval("SELECT headers FROM pillarbox.messages")
    assert json.loads(stored) == {"X-A": "b", "List-Unsubscribe": f"<{MAILTO}>"}


async def test_it_is_a_named_argument_of_sql(connection: asyncpg.Connection) -> None:
    await connection.execute(
        "SELECT pillarbox.enqueue(sender => 'a@b.example', \"to\" => '{c@d.example}', text => 'x',"
        " list_unsubscribe => ARRAY['https://shop.example/u'])"
    )
    stored = json.loads(await connection.fetchval("SELECT headers FROM pillarbox.messages"))
    assert stored == {"List-Unsubscribe": "<https://shop.example/u>"} | POST
    composed = custom_headers(stored)
    assert composed["list-unsubscribe"] == ["List-Unsubscribe: <https://shop.example/u>\r\n"]
    assert composed["list-unsubscribe-post"] == [
        "List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
    ]


@pytest.mark.parametrize(
    "urls",
    [f"{HTTPS}\r\nBcc: x@y.example", f"{HTTPS}>, <x", [HTTPS, " x"], f"{HTTPS}{{{{id}}}}"],
)
async def test_nothing_else_can_be_put_into_the_header(
    urls: Any, connection: asyncpg.Connection
) -> None:
    with pytest.raises(InvalidMail) as caught:
        await enqueue(connection, mail(list_unsubscribe=urls))
    assert (caught.value.code, caught.value.field) == ("bad_url", "list_unsubscribe")


async def test_a_header_of_the_same_name_is_a_contradiction(
    connection: asyncpg.Connection,
) -> None:
    with pytest.raises(InvalidMail) as caught:
        await enqueue(connection, mail(list_unsubscribe=HTTPS, headers={"list-unsubscribe": "<x>"}))
    assert (caught.value.code, caught.value.field) == ("reserved_header", "headers")
    await enqueue(connection, mail(headers={"List-Unsubscribe": f"<{HTTPS}>"}))


async def test_different_urls_are_different_requests(connection: asyncpg.Connection) -> None:
    first = await enqueue(connection, mail(idempotency_key="k", list_unsubscribe=HTTPS))
    assert first == await enqueue(connection, mail(idempotency_key="k", list_unsubscribe=[HTTPS]))
    with pytest.raises(InvalidMail):
        await enqueue(connection, mail(idempotency_key="k", list_unsubscribe=MAILTO))


def test_a_field_is_named_in_few_files() -> None:
    """A field needs its declaration, its rule, and the SQL with its migration; `send` has an option for it."""
    files = [
        path.relative_to(SOURCE).as_posix()
        for suffix in ("*.py", "*.sql")
        for path in SOURCE.rglob(suffix)
        if re.search(r"\blist_unsubscribe\b", path.read_text("utf-8"))
    ]
    assert sorted(files) == [
        "accept/checks.py",
        "accept/mail.py",
        "cli/send.py",
        "store/migrations/0029_list_unsubscribe.sql",
        "store/schema/accept.sql",
    ]


async def test_privileges_on_enqueue_survive_its_new_parameter(empty_database_url: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    await migrate(connection, 13)
    roles = [f"shop_{number}_{connection.get_server_pid()}" for number in (1, 2)]
    for role in roles:
        await connection.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA pillarbox TO {role}")
    first, second = roles
    await connection.execute(
        f"GRANT EXECUTE ON FUNCTION pillarbox.enqueue TO {first};"
        f"GRANT EXECUTE ON FUNCTION pillarbox.enqueue TO {second} WITH GRANT OPTION"
    )
    await migrate(connection)
    allowed = "SELECT has_function_privilege($1, 'pillarbox.enqueue'::regproc, $2)"
    assert await connection.fetchval(allowed, first, "EXECUTE")
    assert not await connection.fetchval(allowed, first, "EXECUTE WITH GRANT OPTION")
    assert await connection.fetchval(allowed, second, "EXECUTE WITH GRANT OPTION")
    assert not await connection.fetchval(allowed, "public", "EXECUTE")
    await connection.execute(f"SET ROLE {first}")
    assert await enqueue(connection, Mail(sender="a@b.example", to="c@d.example", text="x"))
    await connection.execute("RESET ROLE")
    for role in roles:
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    await connection.close()
