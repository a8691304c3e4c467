"""One tenant never sees, changes or infers another's data: a case for every operation that the API has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from pillarbox.api.v1 import description
from tests.integration.api.api_helpers import MAIL, Answer, Api, api_of
from tests.unit.reports import MESSAGE, POSTFIX

MARK = "mark-of-the-shop"
UNKNOWN = "0198c5a2-7d7e-7b0c-9e55-0c2f0c3d7a11"
LATER = {"send_at": "2100-01-01T00:00:00Z"}
ADDRESS = f"{MARK}@mail.example"


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
    async with api_of(database_url, secret_keys="11" * 32) as api:
        headers = {"Idempotency-Key": "shared"}
        fields = {
            "to": f"{MARK}@mail.example",
            "subject": MARK,
            "tags": [MARK],
            "kind": MARK,
            "metadata": {"m": MARK},
        }
        sent = await api.shop.send(headers_=headers, **fields)
        await api.shop.post("/messages/batch", {"messages": [MAIL | fields]}, headers=headers)
        key = (await api.shop.post("/keys", {"name": MARK, "scopes": ["read"]})).json
        await api.shop.post("/smtp-logins", {"name": MARK})
        await api.shop.post("/suppressions", {"suppressions": [{"address": ADDRESS, "note": MARK}]})
        await api.shop.post("/webhooks", {"url": f"https://{MARK}.example/"})
        dead = await api.shop.sent_id(**fields)
        await api.database.execute(
            "UPDATE pillarbox.deliveries SET state = 'failed', reason = 'policy' WHERE message_id = $1",
            dead,
        )
        await api.database.execute(
            "INSERT INTO pillarbox.routes (tenant_id, name, place, kinds, providers) VALUES (2, $1, 1, '{k}', '{1}')",
            MARK,
        )
        yield World(api, sent.json["id"], key["prefix"], key["secret"])


async def snapshot(world: World) -> list[Any]:
    """Everything that belongs to the shop."""
    tables = {
        "deliveries": "tenant_id = 2", "messages": "tenant_id = 2", "idempotency_keys": "tenant_id = 2",
        "api_keys": "tenant_id = 2", "smtp_logins": "tenant_id = 2", "tenants": "id = 2", "events": "true",
        "suppressions": "tenant_id = 2", "routes": "true",
        "webhook_endpoints": "tenant_id = 2", "webhook_calls": "true",
    }  # fmt: skip
    shown = "to_jsonb(t) - 'last_used_at'"
    return [
        await world.api.database.fetch(
            f"SELECT {shown} AS row FROM pillarbox.{table} t WHERE {mine} ORDER BY 1"
        )
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
        assert (answer.status, answer.json) == (
            200,
            {"messages": [], "next_cursor": None, "next": None},
        )


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


def a_page_of(path: str, empty: Any, *queries: str) -> Callable[[World], Awaitable[None]]:
    """Whatever is looked for, nothing of the shop is found."""

    async def case(world: World) -> None:
        for query in (
            "",
            f"recipient={MARK}",
            f"subject={MARK}",
            f"tag={MARK}",
            "reason=policy",
            *queries,
        ):
            answer = await world.other.get(f"{path}?{query}")
            assert (answer.status, answer.json) == (200, empty), query

    return case


async def listing_suppressions(world: World) -> None:
    for query in ("", f"address={ADDRESS}", f"prefix={MARK}", "reason=manual"):
        answer = await world.other.get(f"/suppressions?{query}")
        assert (answer.status, answer.json) == (
            200,
            {"suppressions": [], "next_cursor": None, "next": None},
        )


async def adding_a_suppression(world: World) -> None:
    """The same address is another one, and nobody learns that it was there."""
    answer = await world.other.post("/suppressions", {"suppressions": [{"address": ADDRESS}]})
    assert answer.json == {"added": 1, "changed": 0, "unchanged": 0}


async def reporting(world: World) -> None:
    """A report on another's message is answered as one on a message that nobody has."""

    async def report(message: str) -> Answer:
        about = POSTFIX.replace(MESSAGE.hex.encode(), UUID(message).hex.encode())
        return await world.other(
            "POST", "/reports", data=about, headers={"Content-Type": "message/rfc822"}
        )

    alike(await report(world.message), await report(UNKNOWN), 200)


async def importing_suppressions(world: World) -> None:
    answer = await world.other(
        "POST", "/suppressions/import", headers={"Content-Type": "text/csv"}, data=ADDRESS
    )
    assert (answer.json["added"], answer.json["unchanged"]) == (1, 0)


async def exporting_suppressions(world: World) -> None:
    assert (
        await world.other.get("/suppressions/export")
    ).content == b"address,reason,note,expires_at\n"


async def removing_a_suppression(world: World) -> None:
    foreign = await world.other("DELETE", f"/suppressions/{ADDRESS}")
    alike(foreign, await world.other("DELETE", "/suppressions/nobody@mail.example"), 404)


def changing_dead_letters(path: str) -> Callable[[World], Awaitable[None]]:
    """Another tenant's are not reached by their ids, nor by any filter."""

    async def case(world: World) -> None:
        dead = await world.api.database.fetchval(
            "SELECT message_id::text FROM pillarbox.deliveries WHERE state = 'failed'"
        )
        alike(
            await world.other.post(path, {"message_ids": [dead]}),
            await world.other.post(path, {"message_ids": [UNKNOWN]}),
            200,
        )
        for which in ({}, {"kind": MARK}, {"recipient": MARK}):
            answer = await world.other.post(path, {"filter": which})
            assert answer.status == 200
            assert not answer.json.get("requeued")
            assert not answer.json.get("discarded")
            assert answer.json["left"] == 0

    return case


async def explaining_a_route(world: World) -> None:
    """Rules of another tenant are not told; its messages are as ones that do not exist, and it cannot be named."""
    own = await world.api.shop.post("/routes/explain", {"to": "mail.example"})
    assert own.json["explanations"][0]["rules"][0]["name"] == MARK
    answer = await world.other.post("/routes/explain", {"to": "mail.example"})
    assert (answer.status, answer.json["explanations"][0]["rules"]) == (200, [])
    assert MARK.encode() not in answer.content
    foreign, unknown = [
        await world.other.post("/routes/explain", {"message_id": id})
        for id in (world.message, UNKNOWN)
    ]
    alike(foreign, unknown, 404)
    refused = await world.other.post("/routes/explain", {"to": "mail.example", "tenant": "shop"})
    assert (refused.status, refused.json["code"]) == (422, "unknown_field")


def for_administrators(
    method: str, path: str, body: Any = None
) -> Callable[[World], Awaitable[None]]:
    async def case(world: World) -> None:
        real = {
            "{name}": "shop",
            "{prefix}": world.prefix,
            "{username}": f"{MARK}@shop",
            "{route_id}": "1",
        }
        none = {
            "{name}": "nonesuch",
            "{prefix}": "aaaaaaaaaa",
            "{username}": "nobody@shop",
            "{route_id}": "99",
        }
        answers = []
        for values in (real, none):
            filled = path
            for place, value in values.items():
                filled = filled.replace(place, value)
            answers.append(await world.other(method, filled, body))
        alike(*answers, 403)

    return case


def the_same_for_all(
    path: str, status: int, *bodies: dict[str, str]
) -> Callable[[World], Awaitable[None]]:
    """Whoever is asked about, another tenant gets one answer; so does a stranger where no key is needed."""

    async def case(world: World) -> None:
        first, *rest = [await world.other.post(path, body) for body in bodies]
        for one in rest:
            alike(one, first, status)

    return case


async def listing_webhooks(world: World) -> None:
    assert (await world.other.get("/webhooks")).json == {"webhooks": []}


async def adding_a_webhook(world: World) -> None:
    """The same URL is another one, with a secret of its own."""
    answer = await world.other.post("/webhooks", {"url": f"https://{MARK}.example/"})
    assert answer.status == 201
    assert len((await world.other.get("/webhooks")).json["webhooks"]) == 1


def a_webhook(method: str, rest: str = "", body: Any = None) -> Callable[[World], Awaitable[None]]:
    async def case(world: World) -> None:
        query = "SELECT id::text FROM pillarbox.webhook_endpoints WHERE tenant_id = 2"
        theirs = await world.api.database.fetchval(query)
        foreign = await world.other(method, f"/webhooks/{theirs}{rest}", body)
        alike(foreign, await world.other(method, f"/webhooks/{UNKNOWN}{rest}", body), 404)

    return case


WEBHOOK = "/webhooks/{webhook_id}"
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
    ("GET", "/webhooks"): listing_webhooks,
    ("POST", "/webhooks"): adding_a_webhook,
    ("GET", WEBHOOK): a_webhook("GET"),
    ("PATCH", WEBHOOK): a_webhook("PATCH", "", {"enabled": False, "url": "https://other.example/"}),
    ("DELETE", WEBHOOK): a_webhook("DELETE"),
    ("POST", f"{WEBHOOK}/enable"): a_webhook("POST", "/enable"),
    ("POST", f"{WEBHOOK}/rotate"): a_webhook("POST", "/rotate"),
    ("POST", f"{WEBHOOK}/test"): a_webhook("POST", "/test"),
    ("GET", f"{WEBHOOK}/calls"): a_webhook("GET", "/calls"),
    ("POST", f"{WEBHOOK}/replay"): a_webhook("POST", "/replay", {"state": ["failed", "delivered", "waiting"]}),
    ("POST", "/routes/explain"): explaining_a_route,
    ("GET", "/dlq"): a_page_of("/dlq", {"messages": [], "next_cursor": None, "next": None}, "limit=100"),
    ("GET", "/dlq/summary"): a_page_of(
        "/dlq/summary", {"total": 0, "by_reason": {}, "by_provider": {}, "complete": True, "tokens": 0}
    ),
    ("POST", "/dlq/reprocess"): changing_dead_letters("/dlq/reprocess"),
    ("POST", "/dlq/discard"): changing_dead_letters("/dlq/discard"),
    ("GET", "/suppressions"): listing_suppressions,
    ("POST", "/suppressions"): adding_a_suppression,
    ("POST", "/suppressions/import"): importing_suppressions,
    ("POST", "/reports"): reporting,
    ("GET", "/suppressions/export"): exporting_suppressions,
    ("DELETE", "/suppressions/{address}"): removing_a_suppression,
    ("POST", "/sign-in"): the_same_for_all("/sign-in", 403, {"email": ADDRESS}, {"email": "nobody@mail.example"}),
    ("POST", "/sign-in/verify"): the_same_for_all(
        "/sign-in/verify", 403, {"challenge": "A" * 43, "code": "123456"}, {"challenge": "B" * 43, "code": "123456"}
    ),
    ("POST", "/admin/login"): the_same_for_all(
        "/admin/login", 401, {"email": ADDRESS, "password": MARK}, {"email": "nobody@mail.example", "password": MARK}
    ),
    ("POST", "/admin/verify"): the_same_for_all(
        "/admin/verify", 422, {"challenge": "A" * 43, "code": "123456"}, {"challenge": "B" * 43, "recovery_code": MARK}
    ),
} | {
    (method, path): for_administrators(method, path, body)
    for method, path, body in (
        ("GET", "/admin/tenants", None), ("POST", "/admin/tenants", {"name": "shop"}),
        ("GET", "/admin/tenants/{name}", None), ("PATCH", "/admin/tenants/{name}", {"max_recipients": 1}),
        ("GET", "/admin/tenants/{name}/keys", None), ("POST", "/admin/tenants/{name}/keys", KEY),
        ("GET", "/admin/tenants/{name}/smtp-logins", None), ("POST", "/admin/tenants/{name}/smtp-logins", LOGIN),
        ("GET", "/admin/keys", None), ("POST", "/admin/keys", KEY), ("DELETE", "/admin/keys/{prefix}", None),
        ("DELETE", "/admin/smtp-logins/{username}", None),
        ("GET", "/admin/routes", None), ("POST", "/admin/routes", {"name": MARK, "providers": ["a"]}),
        ("GET", "/admin/routes/{route_id}", None), ("PATCH", "/admin/routes/{route_id}", {"enabled": False}),
        ("DELETE", "/admin/routes/{route_id}", None),
        ("POST", "/admin/routes/explain", {"to": "mail.example", "tenant": "shop"}),
        ("GET", "/admin/providers/health", None), ("GET", "/admin/providers/events", None),
        ("POST", "/admin/logout", None),
    )
}  # fmt: skip
OPERATIONS = {
    (method.upper(), path) for path, methods in description()["paths"].items() for method in methods
}
# Those that need no key: what they may do is proven by what they are given.
PUBLIC = {
    (method, path)
    for method, path in OPERATIONS
    if not description()["paths"][path][method.lower()]["security"]
}


def test_every_operation_has_a_case() -> None:
    assert set(CASES) == OPERATIONS


@pytest.mark.parametrize("operation", sorted(CASES), ids=" ".join)
async def test_isolation(world: World, operation: tuple[str, str]) -> None:
    before = await snapshot(world)
    await CASES[operation](world)
    assert await snapshot(world) == before


def test_few_operations_need_no_key() -> None:
    assert {("POST", "/admin/login"), ("POST", "/admin/verify")} == PUBLIC


@pytest.mark.parametrize("operation", sorted(PUBLIC), ids=" ".join)
async def test_what_needs_no_key_gives_nothing_for_nothing(
    world: World, operation: tuple[str, str]
) -> None:
    before = await snapshot(world)
    answer = await world.api.nobody(*operation, {})
    assert (answer.status, answer.json["type"]) == (422, "/problems/invalid-request")
    assert MARK.encode() not in answer.content
    assert await snapshot(world) == before


@pytest.mark.parametrize("operation", sorted(OPERATIONS - PUBLIC), ids=" ".join)
async def test_nobody_gets_in_without_a_key(world: World, operation: tuple[str, str]) -> None:
    method, path = operation
    filled = path.replace("{message_id}", world.message).replace("{prefix}", world.prefix)
    filled = (
        filled.replace("{name}", "shop")
        .replace("{username}", f"{MARK}@shop")
        .replace("{address}", ADDRESS)
    )
    before = await snapshot(world)
    answer = await world.api.nobody(method, filled, {} if method in ("POST", "PATCH") else None)
    assert (answer.status, answer.json["type"]) == (401, "/problems/unauthorized")
    assert MARK.encode() not in answer.content
    assert await snapshot(world) == before
