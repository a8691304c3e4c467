"""Routes by HTTP: for administrators, and why a mail takes which, for tenants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pillarbox.model.access import Scope
from pillarbox.store import providers
from tests.integration.api.api_helpers import Api, api_of


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with api_of(database_url) as api:
        for name in "ab":
            given = {"host": "mail.example", "username": "hidden-user"}
            await providers.add_provider(api.database, dict, name, "smtp", given)
        yield api


async def add(api: Api, name: str, **more: Any) -> Any:
    answer = await api.admin.post("/admin/routes", {"name": name, "providers": ["a"]} | more)
    assert answer.status == 201, answer.content
    return answer.json


def refused(answer: Any, status: int, kind: str, **members: Any) -> None:
    assert (answer.status, answer.json["type"]) == (status, f"/problems/{kind}"), answer.content
    assert {name: answer.json.get(name) for name in members} == members


# --- administrators


async def test_a_route_is_added_shown_changed_and_removed(api: Api) -> None:
    given = {
        "tenant": "shop", "providers": ["b", "a"], "weights": {"b": 9}, "sender_domains": ["Shop.example"],
        "recipient_domains": ["*.mail.example"], "tags": ["t"], "lanes": ["bulk"], "classes": ["bulk"],
        "kinds": ["k"], "min_size": 0, "max_size": 100,
    }  # fmt: skip
    made = await add(api, "news", **given)
    assert made.pop("created_at")
    id = made.pop("id")
    weighted = [("b", 9), ("a", 0)]
    shown = [
        {"name": name, "enabled": True, "removed": False, "weight": weight}
        for name, weight in weighted
    ]
    assert (made["providers"], made["sender_domains"], made["min_size"]) == (
        shown,
        ["shop.example"],
        0,
    )
    assert {
        name: made[name] for name in ("tenant", "tags", "lanes", "classes", "kinds", "max_size")
    } == {name: given[name] for name in ("tenant", "tags", "lanes", "classes", "kinds", "max_size")}
    path = f"/admin/routes/{id}"
    assert (await api.admin.get(path)).json["name"] == "news"
    changed = await api.admin("PATCH", path, {"tags": None, "enabled": False, "name": "old"})
    assert (changed.status, changed.json["tags"], changed.json["lanes"]) == (200, None, ["bulk"])
    assert (changed.json["enabled"], changed.json["name"]) == (False, "old")
    assert (await api.admin("DELETE", path)).status == 204
    for answer in (
        await api.admin.get(path),
        await api.admin("PATCH", path, {}),
        await api.admin("DELETE", path),
    ):
        refused(answer, 404, "not-found")


async def test_routes_are_listed_in_order_and_moved(api: Api) -> None:
    for name in ("x", "y"):
        await add(api, name)
    own = await add(api, "own", tenant="shop")
    z = await add(api, "z", before="x")
    assert [one["name"] for one in (await api.admin.get("/admin/routes")).json["routes"]] == [
        "own",
        "z",
        "x",
        "y",
    ]
    moved = await api.admin("PATCH", f"/admin/routes/{z['id']}", {"place": 3})
    assert moved.json["place"] == 3
    listed = await api.admin.get("/admin/routes?tenant=other")
    assert [one["name"] for one in listed.json["routes"]] == ["x", "y", "z"]
    refused(await api.admin.get("/admin/routes?tenant=nobody"), 404, "not-found")
    answer = await api.admin("PATCH", f"/admin/routes/{own['id']}", {"before": "x"})
    refused(answer, 422, "invalid-setting", code="unknown_route", field="before")


@pytest.mark.parametrize(
    ("more", "kind", "code", "field"),
    [
        ({"providers": []}, "invalid-setting", "missing", "providers"),
        ({"providers": ["a", "a"]}, "invalid-setting", "duplicate", "providers"),
        ({"providers": ["nobody"]}, "invalid-setting", "unknown_provider", "providers"),
        ({"weights": {"a": 0}}, "invalid-setting", "out_of_range", "weights"),
        ({"classes": ["nothing"]}, "invalid-setting", "unknown_class", "classes"),
        (
            {"recipient_domains": ["no domain"]},
            "invalid-setting",
            "bad_domain",
            "recipient_domains",
        ),
        ({"min_size": 2, "max_size": 1}, "invalid-setting", "out_of_range", "min_size"),
        ({"place": 9}, "invalid-setting", "out_of_range", "place"),
        ({"lanes": ["fast"]}, "invalid-request", "bad_value", "lanes[0]"),
        ({"min_size": -1}, "invalid-request", "bad_value", "min_size"),
        ({"colour": "red"}, "invalid-request", "unknown_field", "colour"),
        ({"enabled": None}, "invalid-request", "bad_type", "enabled"),
    ],
)
async def test_wrong_routes(
    api: Api, more: dict[str, Any], kind: str, code: str, field: str
) -> None:
    there = await add(api, "there")
    refused(
        await api.admin.post("/admin/routes", {"name": "new", "providers": ["a"]} | more), 422, kind, code=code,
        field=field,
    )  # fmt: skip
    answer = await api.admin("PATCH", f"/admin/routes/{there['id']}", more)
    refused(answer, 422, kind, code=code, field=field)
    assert (await api.admin.get("/admin/routes")).json == {"routes": [there]}


async def test_a_name_that_is_taken_and_a_tenant_that_is_not_there(api: Api) -> None:
    await add(api, "same")
    refused(
        await api.admin.post("/admin/routes", {"name": "same", "providers": ["a"]}),
        409,
        "taken",
        field="name",
    )
    answer = await api.admin.post(
        "/admin/routes", {"name": "new", "providers": ["a"], "tenant": "nobody"}
    )
    refused(answer, 404, "not-found")


async def test_ids_that_are_none(api: Api) -> None:
    for word in ("0", "99", "x", str(2**31), "-1"):
        refused(await api.admin.get(f"/admin/routes/{word}"), 404, "not-found")


# --- explaining


async def explained(client: Any, body: dict[str, Any], path: str = "/routes/explain") -> Any:
    answer = await client.post(path, body)
    assert answer.status == 200, answer.content
    return answer.json["explanations"]


@pytest.mark.req("REQ-QUEUE-E002")
async def test_a_tenant_learns_which_rule_and_why(api: Api) -> None:
    await add(api, "for-all", lanes=["urgent"], sender_domains=["other-tenants.example"])
    await add(api, "own", tenant="shop", tags=["news"], providers=["b"])
    await add(api, "foreign", tenant="other")
    [told] = await explained(api.shop, {"from": "x@shop.example", "to": "ada@mail.example"})
    assert told["rules"] == [
        {"name": "own", "for": "tenant", "fits": False, "misses": "tags", "has": "none", "wants": "news"},
        {"name": "for-all", "for": "all", "fits": False, "misses": "sender_domains", "has": "shop.example",
         "wants": None},
    ]  # fmt: skip
    assert (told["rule"], told["decided_by"], told["provider"]) == (None, "default_order", "a")
    [told] = await explained(
        api.shop, {"to": "mail.example", "tags": ["news"], "class": "bulk", "raw": True}
    )
    assert (told["rule"], told["provider"], told["class"], told["raw"]) == (
        "own",
        "b",
        "bulk",
        True,
    )


async def test_nothing_of_others_and_nothing_secret_is_told(api: Api) -> None:
    await add(api, "for-all", sender_domains=["other-tenants.example"])
    await add(api, "foreign", tenant="other")
    answer = await api.shop.post("/routes/explain", {"to": "mail.example"})
    for word in (b"foreign", b"other-tenants", b"hidden-user", b"smtp"):
        assert word not in answer.content


async def test_why_a_provider_is_skipped(api: Api) -> None:
    await api.database.execute(
        "INSERT INTO pillarbox.provider_health (provider_id, state, reason, retry_at)"
        " VALUES (1, 'open', 'timeout', '2100-01-01Z')"
    )
    [told] = await explained(api.shop, {"to": "mail.example"})
    assert told["providers"] == [
        {"name": "a", "use": "skipped", "share": None, "notes": [
            {"why": "breaker_open", "said": "its breaker is open after timeout", "until": "2100-01-01T00:00:00Z"}]},
        {"name": "b", "use": "used", "share": None, "notes": []},
    ]  # fmt: skip
    assert told["fate"] == "leaves"


async def test_a_message_of_ones_own(api: Api) -> None:
    id = await api.shop.sent_id(to=["a@near.example", "b@far.example"], tags=["t"])
    await add(api, "far", recipient_domains=["far.example"], providers=["b"])
    told = await explained(api.shop, {"message_id": id})
    assert [(one["deliveries"], one["provider"]) for one in told] == [([0], "a"), ([1], "b")]
    refused(await api.other.post("/routes/explain", {"message_id": id}), 404, "not-found")
    told = await explained(api.admin, {"message_id": id}, "/admin/routes/explain")
    assert told[1]["rule"] == "far"


async def test_administrators_ask_for_any_tenant(api: Api) -> None:
    await add(api, "for-all", sender_domains=["x.example"])
    await add(api, "own", tenant="shop", lanes=["bulk"])
    body = {"tenant": "shop", "to": "mail.example", "lane": "bulk"}
    [told] = await explained(api.admin, body, "/admin/routes/explain")
    assert told["rule"] == "own"
    [told] = await explained(api.admin, {"to": "mail.example"}, "/admin/routes/explain")
    assert told["rules"][0]["wants"] == "x.example"
    answer = await api.admin.post(
        "/admin/routes/explain", {"to": "mail.example", "tenant": "nobody"}
    )
    refused(answer, 404, "not-found")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({}, "invalid-request"),
        (
            {"to": "x.example", "message_id": "0198c5a2-7d7e-7b0c-9e55-0c2f0c3d7a11"},
            "invalid-request",
        ),
        ({"to": "x.example", "lane": "fast"}, "invalid-request"),
        ({"to": "x.example", "tenant": "other"}, "invalid-request"),
        ({"to": "x.example", "size": -1}, "invalid-request"),
        ({"to": "two words"}, "invalid-setting"),
        ({"to": "x.example", "from": "@"}, "invalid-setting"),
        ({"to": "x.example", "class": "none"}, "invalid-setting"),
    ],
)
async def test_wrong_questions(api: Api, body: dict[str, Any], kind: str) -> None:
    refused(await api.shop.post("/routes/explain", body), 422, kind)


async def test_scopes(api: Api) -> None:
    reader = await api.key("shop", Scope.READ)
    assert (await reader.post("/routes/explain", {"to": "x.example"})).status == 200
    sender = await api.key("shop", Scope.SEND)
    refused(
        await sender.post("/routes/explain", {"to": "x.example"}), 403, "not-allowed", code="scope"
    )
    refused(await api.admin.post("/routes/explain", {"to": "x.example"}), 403, "not-allowed")


# --- how providers are


async def test_health_and_events(api: Api) -> None:
    database = api.database
    await database.execute(
        "INSERT INTO pillarbox.provider_health (provider_id, state, reason, since, opened)"
        " VALUES (2, 'half_open', 'timeout', '2030-01-01Z', 2)"
    )
    await database.execute(
        "UPDATE pillarbox.providers SET price_per_thousand = 1, budget_per_month = 2 WHERE id = 1"
    )
    await database.execute(
        "INSERT INTO pillarbox.provider_spending SELECT 1, date_trunc('month', now() AT TIME ZONE 'UTC'), 500"
    )
    for kind in ("opened", "half_opened"):
        await database.execute(
            "INSERT INTO pillarbox.provider_events (provider_id, kind) VALUES (2, $1)", kind
        )
    first, second = (await api.admin.get("/admin/providers/health")).json["providers"]
    assert (first["state"], first["since"], first["budget"]["used"]) == ("closed", None, 0.25)
    assert (second["state"], second["reason"], second["opened"]) == ("half_open", "timeout", 2)
    events = (await api.admin.get("/admin/providers/events?provider=b")).json["events"]
    assert [(one["provider"], one["kind"], one["data"]) for one in events] == [
        ("b", "half_opened", {}), ("b", "opened", {}),
    ]  # fmt: skip
    older = await api.admin.get(f"/admin/providers/events?limit=1&before={events[0]['id']}")
    assert older.json["events"] == events[1:]
    refused(await api.admin.get("/admin/providers/events?provider=nobody"), 404, "not-found")
    refused(await api.admin.get("/admin/providers/events?limit=0"), 422, "invalid-request")
