"""Who is let in: keys and their scopes, the keyless door of development, foreign hosts and origins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pillarbox.model.access import Scope
from tests.integration.api.api_helpers import EVERY, MAIL, Api, Client, api_of, new_key


@pytest.fixture
async def development(database_url: str) -> AsyncIterator[Api]:
    async with api_of(database_url, development="on") as api:
        yield api


def refused(answer: Any, status: int, kind: str) -> None:
    assert (answer.status, answer.json["type"]) == (status, f"/problems/{kind}"), answer.content
    assert answer.headers["content-type"] == "application/problem+json"


# --- keys


WRONG = (
    "", "Bearer", "Bearer ", "Bearer x", "Basic dXNlcjpwYXNz", "Bearer pbx_aaaaaaaaaa_" + "A" * 43,
    "Bearer pbx_" + "é" * 10, "pbx_aaaaaaaaaa_" + "A" * 43,
)  # fmt: skip


@pytest.mark.parametrize("header", WRONG)
async def test_without_a_valid_key_nothing(api: Api, header: str) -> None:
    answer = await api.nobody.get("/messages", headers={"Authorization": header})
    refused(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == 'Bearer realm="pillarbox"'


async def test_no_key_at_all(api: Api) -> None:
    refused(await api.nobody.get("/messages"), 401, "unauthorized")
    refused(await api.nobody.post("/messages", MAIL), 401, "unauthorized")


async def test_a_revoked_key_is_refused_at_once(api: Api) -> None:
    made = (await api.shop.post("/keys", {"name": "new", "scopes": ["read"]})).json
    client = api.nobody.using(made["secret"])
    assert (await client.get("/messages")).status == 200
    assert (await api.shop("DELETE", f"/keys/{made['prefix']}")).status == 204
    refused(await client.get("/messages"), 401, "unauthorized")
    refused(await api.shop("DELETE", f"/keys/{made['prefix']}"), 404, "not-found")


async def test_an_expired_key_is_refused(api: Api) -> None:
    secret = await new_key(api.database, "shop", Scope.READ)
    await api.database.execute(
        "UPDATE pillarbox.api_keys SET expires_at = now() WHERE prefix = $1", secret[4:14]
    )
    refused(await api.nobody.using(secret).get("/messages"), 401, "unauthorized")


async def test_many_wrong_keys_are_throttled(database_url: str) -> None:
    async with api_of(database_url, auth_failures_per_minute=2) as api:
        wrong = api.nobody.using("pbx_aaaaaaaaaa_" + "A" * 43)
        answers = [await wrong.get("/messages") for _ in range(4)]
        assert [one.status for one in answers] == [401, 401, 429, 429]
        refused(answers[-1], 429, "throttled")
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
        assert (await api.shop.get("/messages")).status == 200


SCOPED = [
    ("POST", "/messages", Scope.SEND), ("POST", "/messages/batch", Scope.SEND), ("GET", "/messages", Scope.READ),
    ("GET", "/messages/{id}", Scope.READ), ("GET", "/messages/{id}/raw", Scope.READ),
    ("POST", "/messages/{id}/cancel", Scope.MANAGE), ("GET", "/keys", Scope.MANAGE),
    ("GET", "/admin/tenants", Scope.ADMIN),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "scope"), SCOPED)
async def test_each_scope_opens_its_own_doors(
    api: Api, method: str, path: str, scope: Scope
) -> None:
    path = path.replace("{id}", await api.shop.sent_id())
    body = (
        MAIL
        if path == "/messages" and method == "POST"
        else {"messages": [MAIL]}
        if "batch" in path
        else None
    )
    for one in EVERY:
        client = await api.key("shop", one)
        answer = await client(method, path, body)
        if one is scope:
            assert answer.status < 300, answer.content
        else:
            refused(answer, 403, "not-allowed")
            assert answer.json["code"] == "scope"


async def test_resending_needs_both_scopes(api: Api) -> None:
    path = f"/messages/{await api.shop.sent_id()}/resend"
    for scopes, status in (
        ([Scope.SEND], 403),
        ([Scope.MANAGE], 403),
        ([Scope.MANAGE, Scope.SEND], 202),
    ):
        assert (await (await api.key("shop", *scopes)).post(path)).status == status


async def test_an_administrators_key_sends_no_mail(api: Api) -> None:
    for method, path, body in (
        ("POST", "/messages", MAIL),
        ("GET", "/messages", None),
        ("GET", "/keys", None),
    ):
        answer = await api.admin(method, path, body)
        refused(answer, 403, "not-allowed")


async def test_whoever_may_not_is_refused_before_the_body_is_looked_at(api: Api) -> None:
    reader = await api.key("shop", Scope.READ)
    answer = await reader(
        "POST", "/messages", data=b"{", headers={"Content-Type": "application/json"}
    )
    refused(answer, 403, "not-allowed")


# --- the keyless door of development


async def test_on_this_machine_development_needs_no_key(development: Api) -> None:
    answer = await development.nobody.send()
    assert answer.status == 202
    assert (await development.nobody.get(f"/messages/{answer.json['id']}")).status == 200
    assert (await development.nobody.get("/admin/tenants")).status == 200
    tenant = await development.database.fetchval(
        "SELECT t.name FROM pillarbox.messages m JOIN pillarbox.tenants t ON t.id = m.tenant_id"
    )
    assert tenant == "default"


async def test_with_a_key_development_asks_for_a_right_one(development: Api) -> None:
    refused(await development.nobody.using("wrong").get("/messages"), 401, "unauthorized")
    assert (await development.shop.get("/messages")).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "10.0.0.1"}, {"Forwarded": "for=10.0.0.1"}, {"Via": "1.1 proxy"}, {"X-Real-IP": "10.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)  # fmt: skip
async def test_whoever_only_seems_to_be_here_needs_a_key(
    development: Api, headers: dict[str, str]
) -> None:
    refused(await development.nobody.get("/messages", headers=headers), 401, "unauthorized")
    assert (await development.shop.get("/messages", headers=headers)).status == 200


async def test_another_name_of_this_server_needs_a_key(database_url: str) -> None:
    async with api_of(database_url, development="on", http_hosts="mail.internal") as api:
        named = {"Host": "mail.internal:8025"}
        refused(await api.nobody.get("/messages", headers=named), 401, "unauthorized")
        assert (await api.shop.get("/messages", headers=named)).status == 200
        assert (
            await api.shop.get("/messages", headers=named | {"Origin": "https://mail.internal"})
        ).status == 200


# --- hosts and origins


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "", "localhost@evil.example"]
)
async def test_foreign_hosts_are_refused(development: Api, host: str) -> None:
    for client in (development.nobody, development.shop):
        refused(await client.get("/messages", headers={"Host": host}), 421, "wrong-host")


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://localhost.evil.example",
        "file://",
        "http://[",
        "http://10.0.0.1",
        "x",
    ],
)
async def test_foreign_origins_are_refused(development: Api, origin: str) -> None:
    for client in (development.nobody, development.shop):
        answer = await client("POST", "/messages", MAIL, headers={"Origin": origin})
        refused(answer, 403, "foreign-origin")
    assert await development.database.fetchval("SELECT count(*) FROM pillarbox.messages") == 0


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1:8025", "https://[::1]:1"]
)
async def test_pages_of_this_machine_may_ask(development: Api, origin: str) -> None:
    assert (
        await development.nobody("POST", "/messages", MAIL, headers={"Origin": origin})
    ).status == 202


async def test_any_host_where_that_was_said(database_url: str) -> None:
    async with api_of(database_url, development="on", http_hosts="*") as api:
        foreign = {"Host": "any.example"}
        assert (await api.shop.get("/messages", headers=foreign)).status == 200
        refused(await api.nobody.get("/messages", headers=foreign), 401, "unauthorized")
        other = foreign | {"Origin": "http://evil.example"}
        refused(await api.shop.get("/messages", headers=other), 403, "foreign-origin")


# --- a tenant's own keys and logins


async def test_a_key_makes_none_that_may_do_more(api: Api) -> None:
    manager = await api.key("shop", Scope.MANAGE, Scope.READ, sender_domains=["*.shop.example"])
    for body, field in (
        ({"scopes": ["send"]}, "scopes"),
        ({"scopes": ["admin"]}, "scopes"),
        ({"scopes": ["read"], "sender_domains": ["other.example"]}, "sender_domains"),
        ({"scopes": ["read"], "sender_domains": ["shop.example"]}, "sender_domains"),
    ):
        answer = await manager.post("/keys", {"name": "x", **body})
        refused(answer, 403, "not-allowed")
        assert (answer.json["code"], answer.json["field"]) == ("wider", field)
    refused(await manager.post("/smtp-logins", {"name": "x"}), 403, "not-allowed")
    made = (await manager.post("/keys", {"name": "x", "scopes": ["read"]})).json
    assert made["sender_domains"] == ["*.shop.example"]
    narrower = {
        "name": "y",
        "scopes": ["read"],
        "sender_domains": ["a.shop.example", "*.b.shop.example"],
    }
    assert (await manager.post("/keys", narrower)).status == 201


async def test_keys_and_logins_are_shown_once(api: Api) -> None:
    key = await api.shop.post(
        "/keys", {"name": "k", "scopes": ["send", "read"], "expires_at": "2100-01-01T00:00:00Z"}
    )
    login = await api.shop.post(
        "/smtp-logins", {"name": "l", "recipient_domains": ["mail.example"]}
    )
    assert (key.status, login.status) == (201, 201)
    assert key.json["secret"].startswith(f"pbx_{key.json['prefix']}_")
    assert (login.json["username"], login.json["tenant"]) == ("l@shop", "shop")
    for answer in (await api.shop.get("/keys"), await api.shop.get("/smtp-logins")):
        assert key.json["secret"].encode() not in answer.content
        assert login.json["password"].encode() not in answer.content
    listed = {one["name"]: one for one in (await api.shop.get("/keys")).json["keys"]}
    assert listed["k"]["scopes"] == ["send", "read"]
    assert [one["username"] for one in (await api.shop.get("/smtp-logins")).json["logins"]] == [
        "l@shop"
    ]
    for path, body in (
        ("/keys", {"name": "k", "scopes": ["read"]}),
        ("/smtp-logins", {"name": "l"}),
    ):
        refused(await api.shop.post(path, body), 409, "taken")
    assert (await api.shop("DELETE", "/smtp-logins/l@shop")).status == 204
    assert (await api.shop.get("/smtp-logins")).json["logins"] == []


@pytest.mark.parametrize(
    ("body", "kind", "field"),
    [
        ({"name": "x"}, "invalid-request", "scopes"), ({"name": "x", "scopes": []}, "invalid-request", "scopes"),
        ({"name": "x", "scopes": ["fly"]}, "invalid-request", "scopes[0]"),
        ({"name": "a b", "scopes": ["read"]}, "invalid-request", "name"),
        ({"name": "x", "scopes": ["read"], "expires_at": "2001-01-01T00:00:00Z"}, "invalid-setting", "expires_at"),
        ({"name": "x", "scopes": ["read"], "sender_domains": ["a b"]}, "invalid-setting", "sender_domains"),
    ],
)  # fmt: skip
async def test_keys_that_cannot_be(api: Api, body: Any, kind: str, field: str) -> None:
    answer = await api.shop.post("/keys", body)
    refused(answer, 422, kind)
    assert answer.json["field"] == field


# --- administrators


async def test_tenants(api: Api) -> None:
    given = {
        "name": "new", "default_sender": "a@new.example", "order": "strict", "max_message_bytes": 4096,
        "max_recipients": 5, "sender_domains": ["new.example"], "rate_per_second": 10,
        "content_retention_seconds": 3600.0, "default_class": "bulk",
    }  # fmt: skip
    added = await api.admin.post("/admin/tenants", given)
    assert added.status == 201
    assert added.json == added.json | given
    refused(await api.admin.post("/admin/tenants", given), 409, "taken")
    changed = await api.admin(
        "PATCH", "/admin/tenants/new", {"max_recipients": None, "rate_per_hour": 7}
    )
    assert changed.json == added.json | {"max_recipients": None, "rate_per_hour": 7}
    assert (await api.admin.get("/admin/tenants/new")).json == changed.json
    names = [one["name"] for one in (await api.admin.get("/admin/tenants")).json["tenants"]]
    assert {"default", "shop", "other", "new"} == set(names)
    refused(await api.admin.get("/admin/tenants/nonesuch"), 404, "not-found")
    refused(await api.admin("PATCH", "/admin/tenants/nonesuch", {}), 404, "not-found")


@pytest.mark.parametrize(
    ("body", "kind", "field"),
    [
        ({"default_class": "nonesuch"}, "invalid-setting", "default_class"),
        ({"order": "x"}, "invalid-request", "order"),
        ({"default_sender": "x"}, "invalid-setting", "default_sender"), ({"bogus": 1}, "invalid-request", "bogus"),
        ({"max_recipients": 0}, "invalid-request", "max_recipients"),
        ({"max_message_bytes": 2**31}, "invalid-request", "max_message_bytes"),
        ({"content_retention_seconds": 0.1}, "invalid-setting", "content_retention_seconds"),
        ({"default_class": None}, "invalid-request", "default_class"), ({"name": "x"}, "invalid-request", "name"),
    ],
)  # fmt: skip
async def test_settings_that_cannot_be(api: Api, body: Any, kind: str, field: str) -> None:
    answer = await api.admin("PATCH", "/admin/tenants/shop", body)
    refused(answer, 422, kind)
    assert answer.json["field"] == field


async def test_keys_and_logins_of_all(api: Api) -> None:
    key = await api.admin.post("/admin/tenants/other/keys", {"name": "k", "scopes": ["send"]})
    login = await api.admin.post("/admin/tenants/other/smtp-logins", {"name": "l"})
    assert (key.status, login.status) == (201, 201)
    made = await api.admin.post("/admin/keys", {"name": "second", "scopes": ["admin"]})
    assert (await api.nobody.using(made.json["secret"]).get("/admin/keys")).status == 200
    refused(
        await api.admin.post("/admin/keys", {"name": "third", "scopes": ["send"]}),
        422,
        "invalid-setting",
    )
    assert "k" in [
        one["name"] for one in (await api.admin.get("/admin/tenants/other/keys")).json["keys"]
    ]
    assert len((await api.admin.get("/admin/tenants/other/smtp-logins")).json["logins"]) == 1
    assert (await api.admin("DELETE", f"/admin/keys/pbx_{key.json['prefix']}")).status == 204
    assert (await api.admin("DELETE", "/admin/smtp-logins/l@other")).status == 204
    refused(await api.admin("DELETE", f"/admin/keys/{key.json['prefix']}"), 404, "not-found")
    refused(await api.admin("DELETE", "/admin/smtp-logins/l@other"), 404, "not-found")
    for path in ("keys", "smtp-logins"):
        refused(await api.admin.get(f"/admin/tenants/nonesuch/{path}"), 404, "not-found")


async def test_only_administrators(api: Api) -> None:
    async def tried(client: Client) -> list[int]:
        paths = ("/admin/tenants", "/admin/tenants/shop", "/admin/keys", "/admin/tenants/shop/keys")
        return [(await client.get(path)).status for path in paths]

    assert await tried(api.shop) == [403] * 4
    assert await tried(api.nobody) == [401] * 4
