"""Keys, logins and tenants at rest: hashed, found in one statement, gone at once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pillarbox.errors import InvalidMail, NotFound, NotPossible, StoreDataError, UnknownName
from pillarbox.model.access import Order, Scope
from pillarbox.store import access, tenants
from pillarbox.store.database import Database
from pillarbox.store.providers import list_classes

SEND = [Scope.SEND]


async def made(
    database: Database, tenant: str | None = "default", name: str = "website", **more: Any
) -> str:
    scopes = more.pop("scopes", SEND if tenant else [Scope.ADMIN])
    return (await access.add_key(database, tenant, name, scopes, **more))[1].reveal()


async def found(database: Database, *tokens: str) -> list[str | None]:
    """The names of the keys that these are."""
    return [one and one.name for one in await access.find_keys(database, tokens)]


async def everything(database: Database) -> str:
    """All that stands in the tables of keys and logins, as text and as hex."""
    rows = []
    for table in ("api_keys", "smtp_logins"):
        rows += await database.fetch(
            f"SELECT k::text, encode(convert_to(k::text, 'UTF8'), 'hex') FROM pillarbox.{table} k"
        )
    return str(rows)


# --- keys


async def test_a_key_tells_who_asks(database: Database) -> None:
    await tenants.add_tenant(
        database, "shop", max_recipients=5, sender_domains=["Bücher.example"], order="strict"
    )
    facts, secret = await access.add_key(
        database, "shop", "website", [Scope.READ, Scope.SEND], sender_domains=["A.example"],
        recipient_domains=["*.b.example"], expires_at=datetime.now(UTC) + timedelta(days=1),
    )  # fmt: skip
    [who] = await access.find_keys(database, [secret.reveal()])
    assert who
    assert (who.kind, who.name, who.id) == ("key", "website", facts.id)
    assert who.scopes == {Scope.SEND, Scope.READ}
    assert (who.sender_domains, who.recipient_domains) == (("a.example",), ("*.b.example",))
    assert who.tenant == await tenants.get_tenant(database, "shop")
    assert who.tenant.sender_domains == ("xn--bcher-kva.example",)
    assert [facts] == await access.list_keys(database, "shop")


async def test_an_administrators_key_has_no_tenant(database: Database) -> None:
    [who] = await access.find_keys(database, [await made(database, None)])
    assert who
    assert who.tenant is None
    assert who.scopes == {Scope.ADMIN}


async def test_secrets_are_not_kept(database: Database) -> None:
    token = await made(database)
    _, password = await access.add_login(database, "default", "printer")
    kept = await everything(database)
    for secret in (token.split("_")[2], password.reveal()):
        assert secret not in kept
        assert secret.encode().hex() not in kept


async def test_a_key_has_the_form_that_scanners_look_for(database: Database) -> None:
    token = await made(database)
    head, prefix, secret = token.split("_")
    assert (head, len(prefix), len(secret)) == ("pbx", 10, 43)
    assert access.prefix_of(token) == prefix


async def test_many_in_one_statement(database: Database) -> None:
    good = [await made(database, name=f"k{number}") for number in range(5)]
    wrong = good[0][:-1] + ("a" if good[0][-1] != "a" else "b")
    asked = [
        good[3],
        "",
        wrong,
        good[0],
        "pbx_",
        "pbx_zzzzzzzzzz_" + "a" * 43,
        good[3],
        "\0",
        "ü" * 60,
        "\udc80",
    ]
    assert await found(database, *asked) == [
        "k3",
        None,
        None,
        "k0",
        None,
        None,
        "k3",
        None,
        None,
        None,
    ]


@pytest.mark.parametrize(
    "change", ["revoked_at = now()", "expires_at = now()", "expires_at = now() - interval '1 day'"]
)
async def test_what_is_out_of_force_fails_at_once(database: Database, change: str) -> None:
    token = await made(database)
    assert await found(database, token) == ["website"]
    await database.execute(f"UPDATE pillarbox.api_keys SET {change}")
    assert await found(database, token) == [None]


async def test_names_are_unique_among_a_tenants_live_keys(database: Database) -> None:
    await tenants.add_tenant(database, "shop")
    await made(database)
    await made(database, "shop")
    await made(database, None)
    with pytest.raises(NotPossible, match="already"):
        await made(database)
    with pytest.raises(NotPossible, match="already"):
        await made(database, None)
    [key] = await access.list_keys(database, "default")
    await access.revoke_key(database, key.id)
    await made(database)
    assert len(await access.list_keys(database, "default", revoked=True)) == 2


async def test_the_name_of_an_expired_key_is_free(database: Database) -> None:
    await made(database)
    await database.execute("UPDATE pillarbox.api_keys SET expires_at = now()")
    again = await made(database)
    assert await found(database, again) == ["website"]


async def test_of_many_who_take_a_name_one_gets_it(database: Database) -> None:
    results = await asyncio.gather(*(made(database) for _ in range(6)), return_exceptions=True)
    assert sum(isinstance(one, str) for one in results) == 1
    assert sum(isinstance(one, NotPossible) for one in results) == 5


async def test_a_tenant_revokes_its_own_keys_only(database: Database) -> None:
    await tenants.add_tenant(database, "shop")
    token = await made(database)
    [key] = await access.list_keys(database)
    with pytest.raises(NotFound):
        await access.revoke_key(database, key.id, "shop")
    with pytest.raises(NotFound):
        await access.revoke_key(database, key.id, "nobody")
    assert await found(database, token) == ["website"]
    await access.revoke_key(database, key.id, "default")
    assert await found(database, token) == [None]
    with pytest.raises(NotFound):
        await access.revoke_key(database, key.id)


@pytest.mark.parametrize(
    ("tenant", "name", "more", "error"),
    [
        ("nobody", "a", {}, NotFound),
        ("default", "a b", {}, InvalidMail),
        ("default", "a", {"sender_domains": ["no domain"]}, InvalidMail),
        ("default", "a", {"recipient_domains": ["*"]}, InvalidMail),
        ("default", "a", {"scopes": [Scope.ADMIN]}, InvalidMail),
        (None, "a", {"scopes": [Scope.SEND]}, InvalidMail),
    ],
)
async def test_a_wrong_key_is_refused_and_nothing_made(
    database: Database, tenant: str | None, name: str, more: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await made(database, tenant, name, **more)
    assert await access.list_keys(database, revoked=True) == []


@pytest.mark.parametrize("scopes", ["{admin}", "{send,admin}", "{}", "{other}"])
async def test_the_database_guards_scopes_too(database: Database, scopes: str) -> None:
    with pytest.raises(StoreDataError):
        await database.execute(
            f"INSERT INTO pillarbox.api_keys (tenant_id, name, prefix, hash, scopes)"
            f" VALUES (1, 'a', 'p', sha256(''), '{scopes}')"
        )


async def test_use_is_noted_to_the_minute(database: Database) -> None:
    await made(database)
    [key] = await access.list_keys(database)
    assert key.last_used_at is None
    await access.note_keys(database, [key.id])
    [first] = await access.list_keys(database)
    assert first.last_used_at
    await access.note_keys(database, [key.id])
    assert [first] == await access.list_keys(database)
    await database.execute(
        "UPDATE pillarbox.api_keys SET last_used_at = now() - interval '61 seconds'"
    )
    await access.note_keys(database, [key.id])
    assert (await access.list_keys(database))[0].last_used_at > first.last_used_at  # type: ignore[operator]


# --- logins


async def test_a_login_tells_who_asks(database: Database) -> None:
    await tenants.add_tenant(database, "shop")
    facts, password = await access.add_login(
        database, "shop", "printer", sender_domains=["a.example"]
    )
    assert facts.username == "printer@shop"
    asked = [
        ("printer@shop", password.reveal()), ("printer@shop", "a" * 43), ("printer@default", password.reveal()),
        ("printer", password.reveal()), ("", ""), ("printer@shop", password.reveal() + "\0"), ("Printer@shop", "x"),
    ]  # fmt: skip
    first, *others = await access.find_logins(database, asked)
    assert first
    assert (first.kind, first.name, first.id, first.scopes) == (
        "login",
        "printer",
        facts.id,
        {Scope.SEND},
    )
    assert first.tenant
    assert first.tenant.name == "shop"
    assert first.sender_domains == ("a.example",)
    assert others == [None] * 6


async def test_a_login_is_gone_at_once_and_its_name_free(database: Database) -> None:
    facts, password = await access.add_login(database, "default", "printer")
    with pytest.raises(NotPossible, match="already"):
        await access.add_login(database, "default", "printer")
    with pytest.raises(NotFound):
        await access.revoke_login(database, facts.id, "nobody")
    await access.revoke_login(database, facts.id)
    assert await access.find_logins(database, [(facts.username, password.reveal())]) == [None]
    await access.add_login(database, "default", "printer")
    assert len(await access.list_logins(database)) == 1
    assert len(await access.list_logins(database, revoked=True)) == 2


async def test_nobody_learns_anothers_user_names(database: Database) -> None:
    await tenants.add_tenant(database, "shop")
    await access.add_login(database, "default", "printer")
    await access.add_login(database, "shop", "printer")
    assert [one.username for one in await access.list_logins(database, "shop")] == ["printer@shop"]


# --- tenants


async def test_a_tenant_has_all_its_settings(database: Database) -> None:
    settings: dict[str, Any] = {
        "default_sender": "Shop <a@shop.example>", "default_class": "bulk", "order": "parallel",
        "max_message_bytes": 10_000, "max_recipients": 3, "sender_domains": ("shop.example",), "rate_per_second": 1,
        "rate_per_hour": 2, "rate_per_day": 3, "content_retention": timedelta(days=2),
        "finished_retention": timedelta(hours=36),
    }  # fmt: skip
    added = await tenants.add_tenant(database, "shop", **settings)
    assert {name: getattr(added, name) for name in settings} == settings
    assert added == await tenants.get_tenant(database, "shop")
    assert [one.name for one in await tenants.list_tenants(database)] == ["default", "shop"]


async def test_a_change_changes_what_is_given(database: Database) -> None:
    await tenants.add_tenant(database, "shop", rate_per_second=5, sender_domains=["shop.example"])
    changed = await tenants.change_tenant(database, "shop", order="strict", rate_per_second=None)
    assert (changed.order, changed.rate_per_second, changed.sender_domains) == (
        Order.STRICT,
        None,
        ("shop.example",),
    )
    cleared = await tenants.change_tenant(database, "shop", sender_domains=())
    assert cleared.sender_domains == ()
    assert await database.fetchval(
        "SELECT sender_domains IS NULL FROM pillarbox.tenants WHERE name = 'shop'"
    )


async def test_concurrent_changes_lose_nothing(database: Database) -> None:
    await asyncio.gather(
        tenants.change_tenant(database, "default", rate_per_second=1),
        tenants.change_tenant(database, "default", rate_per_hour=2),
        tenants.change_tenant(database, "default", rate_per_day=3),
        tenants.change_tenant(database, "default", max_recipients=4),
    )
    now = await tenants.get_tenant(database, "default")
    assert (now.rate_per_second, now.rate_per_hour, now.rate_per_day, now.max_recipients) == (
        1,
        2,
        3,
        4,
    )


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"default_class": "nothing"}, UnknownName),
        ({"rate_per_second": 0}, InvalidMail),
        ({"sender_domains": ["x y"]}, InvalidMail),
        ({"default_sender": "a@b.example", "sender_domains": ["c.example"]}, InvalidMail),
    ],
)
async def test_a_wrong_setting_changes_nothing(
    database: Database, settings: dict[str, Any], error: type[Exception]
) -> None:
    before = await tenants.list_tenants(database)
    with pytest.raises(error):
        await tenants.change_tenant(database, "default", **settings)
    with pytest.raises(error):
        await tenants.add_tenant(database, "new", **settings)
    assert before == await tenants.list_tenants(database)


async def test_names_that_are_taken_or_missing(database: Database) -> None:
    with pytest.raises(NotPossible, match="already"):
        await tenants.add_tenant(database, "default")
    for call in (tenants.get_tenant, tenants.change_tenant):
        with pytest.raises(NotFound, match="tenant list"):
            await call(database, "nobody")
    with pytest.raises(InvalidMail):
        await tenants.add_tenant(database, "no name")


@pytest.mark.parametrize(
    ("settings", "restricted"),
    [
        ({}, False),
        ({"rate_per_second": 5, "order": "strict", "content_retention": timedelta(1)}, False),
        ({"max_message_bytes": 5000}, True),
        ({"max_recipients": 5}, True),
        ({"sender_domains": ["a.example"]}, True),
        ({"default_class": "bulk"}, True),
    ],
)
async def test_what_makes_a_tenant_restricted(
    database: Database, settings: dict[str, Any], restricted: bool
) -> None:
    await tenants.add_tenant(database, "shop", **settings)
    assert (
        await database.fetchval("SELECT restricted FROM pillarbox.tenants WHERE name = 'shop'")
        is restricted
    )
    await tenants.change_tenant(
        database,
        "shop",
        max_message_bytes=None,
        max_recipients=None,
        sender_domains=(),
        default_class="transactional",
    )
    assert not await database.fetchval(
        "SELECT restricted FROM pillarbox.tenants WHERE name = 'shop'"
    )


async def test_development_is_the_default_tenant_with_every_scope(database: Database) -> None:
    who = await access.development_principal(database)
    assert who.kind == "development"
    assert who.tenant == await tenants.get_tenant(database, "default")
    assert who.scopes == set(Scope)


async def test_a_class_in_use_stays(database: Database) -> None:
    await tenants.add_tenant(database, "shop", default_class="bulk")
    with pytest.raises(StoreDataError):
        await database.execute("DELETE FROM pillarbox.classes WHERE name = 'bulk'")
    assert "bulk" in await list_classes(database)
