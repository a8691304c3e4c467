"""A tenant's limits in SQL and in Python: the same mails are refused, with the same words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from pillarbox.accept.drivers import translated
from pillarbox.errors import InvalidMail, NotAllowed, PillarboxError
from pillarbox.model.access import Principal, Scope, Tenant, check_allowed
from pillarbox.store import tenants
from pillarbox.store.database import Database

DOMAINS = ["shop.example", "*.shop.example", "Bücher.example", "*.δοκιμή.example", "straße.example"]
SENDERS = [
    "a@shop.example", "a@SHOP.Example", "Shop <a@shop.example>", "a@news.shop.example", "a@a.b.shop.example",
    "a@notshop.example", "a@shop.example.evil.example", "a@example", "a@evil.example", "A <a@evil.example>",
    '"a@shop.example"@evil.example', '"a@evil.example"@shop.example', "a@bücher.example", "a@BÜCHER.example",
    "a@xn--bcher-kva.example", "a@XN--BCHER-KVA.example", "a@x.bücher.example", "a@bu\u0308cher.example",
    "a@δοκιμή.example", "a@x.δοκιμή.example", "a@x.xn--jxalpdlp.example", "a@x.ΔΟΚΙΜΉ.example", "a@straße.example",
    "a@strasse.example", "a@xn--strae-oqa.example", "a@_x.δοκιμή.example", "a@[127.0.0.1]", "a@.shop.example",
    "ü@shop.example", "a@пример.example", "a@shop.exämple",
]  # fmt: skip


def in_python(tenant: Tenant, sender: str, recipients: Sequence[str], size: int) -> PillarboxError | None:
    try:
        check_allowed(Principal("key", "k", tenant, frozenset({Scope.SEND})), sender, recipients, size)
    except (InvalidMail, NotAllowed) as error:
        return error
    return None


async def in_sql(database: Database, tenant: Tenant, sender: str, recipients: int, size: int) -> PillarboxError | None:
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
    return type(error), *(getattr(error, name) for name in ("code", "field", "message", "hint")), str(error)


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
async def test_numbers(database: Database, limits: dict[str, int], recipients: int, size: int) -> None:
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
