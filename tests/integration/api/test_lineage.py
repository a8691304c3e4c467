"""Keys and logins that a key makes: they never outlive or exceed it, and are revoked with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pillarbox.errors import NotAllowed, NotFound
from pillarbox.model.access import Scope
from pillarbox.store import access, lineage
from pillarbox.store.database import Database
from pillarbox.store.lineage import KeyCreator
from tests.harness import eventually
from tests.integration.api.api_helpers import Api, Client, api_of

MANAGER = (Scope.SEND, Scope.READ, Scope.MANAGE)


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with api_of(database_url, worker_enabled=False) as served:
        yield served


def later(**more: float) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(**more)


async def make(client: Client, path: str = "/keys", **more: Any) -> Any:
    scopes = {} if path.endswith("logins") else {"scopes": ["send", "read", "manage"]}
    answer = await client.post(path, {"name": "child"} | scopes | more)
    assert answer.status == 201, answer.content
    return answer.json


async def status(api: Api, made: Any) -> int:
    return (await api.nobody.using(made["secret"]).get("/keys")).status


def moment(made: Any) -> datetime | None:
    return datetime.fromisoformat(made["expires_at"]) if made["expires_at"] else None


@pytest.mark.parametrize("path", ["/keys", "/smtp-logins"])
async def test_nothing_outlives_the_key_that_made_it(api: Api, path: str) -> None:
    end = later(days=10)
    manager = await api.key("shop", *MANAGER, expires_at=end)
    scopes = {"scopes": ["send"]} if path == "/keys" else {}
    late = await manager.post(
        path, {"name": "late", "expires_at": later(days=11).isoformat()} | scopes
    )
    assert (late.status, late.json["code"], late.json["field"]) == (403, "wider", "expires_at")
    assert moment(await make(manager, path)) == end
    early = await make(manager, path, name="early", expires_at=later(days=1).isoformat())
    assert moment(early) == later(days=1) or moment(early) < end
    assert early["made_by"] == "key"


@pytest.mark.parametrize(
    "path", ["/admin/keys", "/admin/tenants/shop/keys", "/admin/tenants/shop/smtp-logins"]
)
async def test_nor_what_an_administrators_key_makes(api: Api, path: str) -> None:
    end = later(days=10)
    admin = await api.key(None, Scope.ADMIN, expires_at=end)
    scopes = {"scopes": ["admin" if path == "/admin/keys" else "send"]}
    made = await make(admin, path, **({} if path.endswith("logins") else scopes))
    assert moment(made) == end


async def test_a_shorter_parent_shortens_its_descendants(api: Api) -> None:
    manager = await api.key("shop", *MANAGER)
    child = await make(manager)
    grandchild = await make(api.nobody.using(child["secret"]), name="grandchild")
    login = await make(api.nobody.using(grandchild["secret"]), "/smtp-logins")
    assert await status(api, grandchild) == 200
    prefix = str(manager.key).split("_")[1]
    await api.database.execute(
        "UPDATE pillarbox.api_keys SET expires_at = now() WHERE prefix = $1", prefix
    )
    assert [await status(api, one) for one in (child, grandchild)] == [401, 401]
    [who] = await access.find_logins(api.database, [(login["username"], login["password"])])
    assert who is None


async def test_a_narrower_parent_narrows_its_descendants(api: Api) -> None:
    manager = await api.key("shop", *MANAGER)
    child = await make(manager)
    prefix = str(manager.key).split("_")[1]
    await api.database.execute(
        "UPDATE pillarbox.api_keys SET scopes = '{send,manage}', sender_domains = '{shop.example}' WHERE prefix = $1",
        prefix,
    )
    [who] = await access.find_keys(api.database, [child["secret"]])
    assert who
    assert (who.scopes, who.sender_domains) == ({Scope.SEND, Scope.MANAGE}, ("shop.example",))
    exceeding = await lineage.find_excessive(api.database)
    assert [(one.name, one.fields, one.certain) for one in exceeding] == [
        ("child", ("scopes", "sender_domains"), True)
    ]


@pytest.mark.parametrize("by_admin", [True, False])
@pytest.mark.parametrize("keep", [True, False])
async def test_revoking_with_descendants(api: Api, keep: bool, by_admin: bool) -> None:
    manager = await api.key("shop", *MANAGER)
    child = await make(manager)
    grandchild = await make(api.nobody.using(child["secret"]), name="grandchild")
    login = await make(api.nobody.using(grandchild["secret"]), "/smtp-logins")
    other = await make(api.shop, name="of-another")
    prefix = str(manager.key).split("_")[1]
    query = "?keep_descendants=true" if keep else ""
    if by_admin:
        answer = await api.admin("DELETE", f"/admin/keys/{prefix}{query}")
    else:
        answer = await api.shop("DELETE", f"/keys/{prefix}{query}")
    assert answer.status == 204
    expected = 200 if keep else 401
    assert (await manager.get("/keys")).status == 401
    assert [await status(api, one) for one in (child, grandchild, other)] == [
        expected,
        expected,
        200,
    ]
    logins = await access.find_logins(api.database, [(login["username"], login["password"])])
    assert (logins != [None]) == keep


async def test_kept_descendants_still_end_with_their_parent(api: Api) -> None:
    manager = await api.key("shop", *MANAGER, expires_at=later(days=10))
    child = await make(manager)
    prefix = str(manager.key).split("_")[1]
    await api.shop("DELETE", f"/keys/{prefix}?keep_descendants=true")
    [who] = await access.find_keys(api.database, [child["secret"]])
    assert who
    assert who.expires_at == moment(child)


async def test_a_key_is_not_made_by_one_that_is_being_revoked(database: Database) -> None:
    """Whichever comes first, no descendant survives the revoking of its parent."""
    parent, _ = await access.add_key(database, "default", "parent", MANAGER)
    maker = KeyCreator("key", parent.id)
    async with database.transaction() as connection:
        await lineage.lock_parent(connection, maker)
        revoking = asyncio.create_task(access.revoke_key(database, parent.id))

        async def waits() -> bool:
            query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%api_keys%'"
            return bool(await database.fetchval(query))

        await eventually(waits)
        await connection.execute(
            "INSERT INTO pillarbox.api_keys (tenant_id, name, prefix, hash, scopes, parent_id)"
            " VALUES (1, 'child', 'childchild', sha256('x'), '{send}', $1)",
            parent.id,
        )
    assert (await revoking).keys == 1
    assert await access.list_keys(database) == []
    with pytest.raises(NotAllowed):
        await access.add_key(database, "default", "late", [Scope.SEND], maker=maker)
    with pytest.raises(NotFound):
        await access.revoke_key(database, parent.id)


async def test_what_may_exceed_its_maker_after_an_upgrade(database: Database) -> None:
    """Keys of version 0.1.0 have no maker on record: those are listed that exceed one which may have made them."""
    manager, _ = await access.add_key(
        database, "default", "manager", MANAGER, expires_at=later(days=5)
    )
    await access.add_key(database, "default", "lasting", [Scope.SEND])
    await access.add_key(database, "default", "short", [Scope.SEND], expires_at=later(days=1))
    await access.add_login(database, "default", "printer")
    await access.add_key(database, "default", "known", [Scope.SEND])
    for table in ("api_keys", "smtp_logins"):
        await database.execute(f"UPDATE pillarbox.{table} SET made_by = NULL WHERE name <> 'known'")
    found = await lineage.find_excessive(database)
    assert [(one.kind, one.name, one.parent, one.fields, one.certain) for one in found] == [
        ("key", "lasting", manager.prefix, ("expires_at",), False),
        ("login", "printer", manager.prefix, ("expires_at",), False),
    ]
    assert len(await access.list_keys(database)) == 4  # nothing is revoked
