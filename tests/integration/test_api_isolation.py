"""One tenant never sees, changes or infers another's data: a case for every operation that the API has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from pillarbox.api.v1 import description
from tests.integration.api_helpers import MAIL, Answer, Api, api_of

MARK = "mark-of-the-shop"
UNKNOWN = "0198c5a2-7d7e-7b0c-9e55-0c2f0c3d7a11"
LATER = {"send_at": "2100-01-01T00:00:00Z"}


class World(NamedTuple):
    """What the shop has; the other tenant asks."""

    api: Api
    message: str
    prefix: str
    secret: str

    @property
    def other(self) -> Any:
        return self.api.other


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with api_of(database_url) as api:
        headers = {"Idempotency-Key": "shared"}
        fields = {"to": f"{MARK}@mail.example", "subject": MARK, "tags": [MARK], "kind": MARK, "metadata": {"m": MARK}}
        sent = await api.shop.send(headers_=headers, **fields)
        await api.shop.post("/messages/batch", {"messages": [MAIL | fields]}, headers=headers)
        key = (await api.shop.post("/keys", {"name": MARK, "scopes": ["read"]})).json
        await api.shop.post("/smtp-logins", {"name": MARK})
        yield World(api, sent.json["id"], key["prefix"], key["secret"])


async def snapshot(world: World) -> list[Any]:
    """Everything that belongs to the shop."""
    tables = {
        "deliveries": "tenant_id = 2", "messages": "tenant_id = 2", "idempotency_keys": "tenant_id = 2",
        "api_keys": "tenant_id = 2", "smtp_logins": "tenant_id = 2", "tenants": "id = 2", "events": "true",
    }  # fmt: skip
    shown = "to_jsonb(t) - 'last_used_at'"
    return [
        await world.api.database.fetch(f"SELECT {shown} AS row FROM pillarbox.{table} t WHERE {mine} ORDER BY 1")
        for table, mine in tables.items()
    ]


def alike(foreign: Answer, unknown: Answer, status: int) -> None:
    """What is another's is answered exactly as what does not exist."""
    assert (foreign.status, unknown.status) == (status, status)
    assert foreign.content == unknown.content
    drop = {"Date"}
    assert {k: v for k, v in foreign.headers.items() if k not in drop} == {
        k: v for k, v in unknown.headers.items() if k not in drop
    }


def by_id(method: str, path: str, body: Any = None) -> Callable[[World], Awaitable[None]]:
    async def case(world: World) -> None:
        foreign = await world.other(method, path.replace("{message_id}", world.message), body)
        alike(foreign, await world.other(method, path.replace("{message_id}", UNKNOWN), body), 404)

    return case


async def sending(world: World) -> None:
    """The same idempotency key is another one; a tenant cannot be named."""
    answer = await world.other.send(headers_={"Idempotency-Key": "shared"})
    assert answer.status == 202
    assert "idempotency-replayed" not in answer.headers
    for name in ("tenant", "tenant_id"):
        refused = await world.other.send(**{name: "shop"})
        assert (refused.status, refused.json["code"]) == (422, "unknown_field")


async def sending_a_batch(world: World) -> None:
    body = {"messages": [MAIL, MAIL | {"tenant": "shop"}]}
    answer = await world.other.post("/messages/batch", body, headers={"Idempotency-Key": "shared"})
    assert [one["status"] for one in answer.json["results"]] == [202, 422]
    assert answer.json["results"][0]["repeated"] is False


async def listing(world: World) -> None:
    for query in (
        "",
        f"recipient={MARK}",
        f"subject={MARK}",
        f"tag={MARK}",
        f"kind={MARK}",
        "state=queued",
        "limit=200",
    ):
        answer = await world.other.get(f"/messages?{query}")
        assert (answer.status, answer.json) == (200, {"messages": [], "next_cursor": None, "next": None})


def nothing_of_the_shop(path: str, name: str) -> Callable[[World], Awaitable[None]]:
    async def case(world: World) -> None:
        answer = await world.other.get(path)
        assert answer.status == 200
        assert MARK.encode() not in answer.content
        assert all(one["tenant"] == "other" for one in answer.json[name])

    return case


def same_name(path: str, body: dict[str, Any]) -> Callable[[World], Awaitable[None]]:
    """A name that the other tenant has taken is free, so nobody learns that it is taken."""

    async def case(world: World) -> None:
        answer = await world.other.post(path, body)
        assert (answer.status, answer.json["tenant"]) == (201, "other")

    return case


async def revoking_a_key(world: World) -> None:
    foreign = await world.other("DELETE", f"/keys/{world.prefix}")
    alike(foreign, await world.other("DELETE", "/keys/aaaaaaaaaa"), 404)
    assert (await world.api.nobody.using(world.secret).get("/messages")).status == 200


async def revoking_a_login(world: World) -> None:
    foreign = await world.other("DELETE", f"/smtp-logins/{MARK}@shop")
    alike(foreign, await world.other("DELETE", "/smtp-logins/nobody@shop"), 404)


def for_administrators(method: str, path: str, body: Any = None) -> Callable[[World], Awaitable[None]]:
    async def case(world: World) -> None:
        real = {"{name}": "shop", "{prefix}": world.prefix, "{username}": f"{MARK}@shop"}
        none = {"{name}": "nonesuch", "{prefix}": "aaaaaaaaaa", "{username}": "nobody@shop"}
        answers = []
        for values in (real, none):
            filled = path
            for place, value in values.items():
                filled = filled.replace(place, value)
            answers.append(await world.other(method, filled, body))
        alike(*answers, 403)

    return case


KEY, LOGIN = {"name": MARK, "scopes": ["read"]}, {"name": MARK}
CASES: dict[tuple[str, str], Callable[[World], Awaitable[None]]] = {
    ("POST", "/messages"): sending,
    ("POST", "/messages/batch"): sending_a_batch,
    ("GET", "/messages"): listing,
    ("GET", "/messages/{message_id}"): by_id("GET", "/messages/{message_id}"),
    ("GET", "/messages/{message_id}/raw"): by_id("GET", "/messages/{message_id}/raw"),
    ("POST", "/messages/{message_id}/cancel"): by_id("POST", "/messages/{message_id}/cancel"),
    ("POST", "/messages/{message_id}/reschedule"): by_id("POST", "/messages/{message_id}/reschedule", LATER),
    ("POST", "/messages/{message_id}/resend"): by_id("POST", "/messages/{message_id}/resend"),
    ("GET", "/keys"): nothing_of_the_shop("/keys", "keys"),
    ("POST", "/keys"): same_name("/keys", KEY),
    ("DELETE", "/keys/{prefix}"): revoking_a_key,
    ("GET", "/smtp-logins"): nothing_of_the_shop("/smtp-logins", "logins"),
    ("POST", "/smtp-logins"): same_name("/smtp-logins", LOGIN),
    ("DELETE", "/smtp-logins/{username}"): revoking_a_login,
} | {
    (method, path): for_administrators(method, path, body)
    for method, path, body in (
        ("GET", "/admin/tenants", None), ("POST", "/admin/tenants", {"name": "shop"}),
        ("GET", "/admin/tenants/{name}", None), ("PATCH", "/admin/tenants/{name}", {"max_recipients": 1}),
        ("GET", "/admin/tenants/{name}/keys", None), ("POST", "/admin/tenants/{name}/keys", KEY),
        ("GET", "/admin/tenants/{name}/smtp-logins", None), ("POST", "/admin/tenants/{name}/smtp-logins", LOGIN),
        ("GET", "/admin/keys", None), ("POST", "/admin/keys", KEY), ("DELETE", "/admin/keys/{prefix}", None),
        ("DELETE", "/admin/smtp-logins/{username}", None),
    )
}  # fmt: skip
OPERATIONS = {(method.upper(), path) for path, methods in description()["paths"].items() for method in methods}


def test_every_operation_has_a_case() -> None:
    assert set(CASES) == OPERATIONS


@pytest.mark.parametrize("operation", sorted(CASES), ids=" ".join)
async def test_isolation(world: World, operation: tuple[str, str]) -> None:
    before = await snapshot(world)
    await CASES[operation](world)
    assert await snapshot(world) == before


@pytest.mark.parametrize("operation", sorted(OPERATIONS), ids=" ".join)
async def test_nobody_gets_in_without_a_key(world: World, operation: tuple[str, str]) -> None:
    method, path = operation
    filled = path.replace("{message_id}", world.message).replace("{prefix}", world.prefix)
    filled = filled.replace("{name}", "shop").replace("{username}", f"{MARK}@shop")
    before = await snapshot(world)
    answer = await world.api.nobody(method, filled, {} if method in ("POST", "PATCH") else None)
    assert (answer.status, answer.json["type"]) == (401, "/problems/unauthorized")
    assert MARK.encode() not in answer.content
    assert await snapshot(world) == before
