"""Routes at rest: their order, what is refused, removed providers; and what explaining reads of the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from pillarbox.errors import InvalidMail, NotFound, NotPossible
from pillarbox.model.delivery import LANES
from pillarbox.model.routing import MailFacts, RuleMatch
from pillarbox.route import explain_query
from pillarbox.route.explain import CandidateUse, MailFate, ObstacleReason
from pillarbox.store import health, providers, routes, tenants
from pillarbox.store.database import Database
from tests.harness import enqueue, no_keys


async def provide(database: Database, name: str, kind: str = "smtp") -> int:
    return await providers.add_provider(database, no_keys, name, kind, {"host": "mail.example"})


@pytest.fixture
async def store(database: Database) -> Database:
    """With a tenant `shop` and the providers a, b and c."""
    await tenants.add_tenant(database, "shop")
    for name in "abc":
        await provide(database, name)
    return database


async def order(database: Database) -> list[tuple[str | None, str, int]]:
    return [
        (one.tenant, one.rule.name, one.rule.position) for one in await routes.list_routes(database)
    ]


async def names(database: Database) -> list[str]:
    return [one[1] for one in await order(database)]


async def add(database: Database, *several: str, tenant: str | None = None, **more: Any) -> None:
    for name in several:
        await routes.add_route(database, name, tenant, ["a"], **more)


# --- kept and read back


async def test_a_route_is_read_back_as_it_was_given(store: Database) -> None:
    given: dict[str, Any] = {
        "sender_domains": ["Shop.example"], "recipient_domains": ["*.bücher.example"], "tags": ["x", "y"],
        "lanes": ["bulk", "urgent"], "classes": ["bulk"], "kinds": ["k"], "min_size": 1, "max_size": 10**6,
    }  # fmt: skip
    made = await routes.add_route(store, "all", "shop", ["c", "a"], weights={"a": 3}, **given)
    assert made.rule.match == RuleMatch(
        ("shop.example",),
        ("*.xn--bcher-kva.example",),
        ("x", "y"),
        ("urgent", "bulk"),
        ("bulk",),
        ("k",),
        1,
        10**6,
    )
    assert ([one.name for one in made.providers], made.weights) == (["c", "a"], {"c": 0, "a": 3})
    assert (made.tenant, made.rule.position, made.rule.enabled) == ("shop", 1, True)
    assert (
        await routes.get_route(store, made.rule.id)
        == made
        == await routes.find_route(store, "all", "shop")
    )
    assert await routes.list_rules(store) == [made.rule]


async def test_a_route_without_conditions_fits_all(store: Database) -> None:
    await add(store, "all")
    [rule] = await routes.list_rules(store)
    assert (rule.match, rule.weights, rule.tenant_id) == (RuleMatch(), None, None)


@pytest.mark.req("REQ-QUEUE-E002")
async def test_rules_are_listed_in_the_order_in_which_they_are_tried(store: Database) -> None:
    await add(store, "for-all")
    await add(store, "own", "own-too", tenant="shop")
    assert await order(store) == [("shop", "own", 1), ("shop", "own-too", 2), (None, "for-all", 1)]
    found = (await explain_query.load_routing_snapshot(store)).router.rules_for(2)
    assert [one.name for one in found] == ["own", "own-too", "for-all"]


async def test_names_are_unique_within_a_tenant(store: Database) -> None:
    await add(store, "same")
    await add(store, "same", tenant="shop")
    for tenant in (None, "shop"):
        with pytest.raises(NotPossible, match="already"):
            await add(store, "same", tenant=tenant)


# --- order


async def test_routes_are_put_where_they_are_wanted(store: Database) -> None:
    await add(store, "1", "2")
    await add(store, "0", before="1")
    await add(store, "1.5", place=3)
    await add(store, "3", place=5)
    assert await order(store) == [
        (None, name, place) for place, name in enumerate(("0", "1", "1.5", "2", "3"), 1)
    ]


@pytest.mark.parametrize(
    ("moved", "more", "wanted"),
    [
        ("a", {"place": 3}, "bca"),
        ("c", {"place": 1}, "cab"),
        ("c", {"before": "b"}, "acb"),
        ("a", {"before": "c"}, "bac"),
        ("b", {"place": 2}, "abc"),
        ("a", {}, "bca"),
    ],
)
async def test_routes_are_moved(
    store: Database, moved: str, more: dict[str, Any], wanted: str
) -> None:
    await add(store, *"abc")
    await add(store, *"xyz", tenant="shop")
    found = await routes.find_route(store, moved, None)
    made = await routes.move_route(store, found.rule.id, **more)
    assert made.rule.position == wanted.index(moved) + 1
    assert await names(store) == [*"xyz", *wanted]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"place": 0}, "place"),
        ({"place": 4}, "place"),
        ({"before": "nobody"}, "before"),
        ({"before": "x"}, "before"),  # another tenant's
        ({"before": "a"}, "before"),  # itself
        ({"before": "b", "place": 1}, "place"),
    ],
)
async def test_a_place_that_is_none_changes_nothing(
    store: Database, more: dict[str, Any], field: str
) -> None:
    await add(store, *"abc")
    await add(store, "x", tenant="shop")
    found = await routes.find_route(store, "a", None)
    with pytest.raises(InvalidMail) as caught:
        await routes.move_route(store, found.rule.id, **more)
    assert caught.value.field == field
    assert await names(store) == ["x", *"abc"]


async def test_removing_closes_the_gap(store: Database) -> None:
    await add(store, *"abc")
    await routes.remove_route(store, (await routes.find_route(store, "b", None)).rule.id)
    assert await order(store) == [(None, "a", 1), (None, "c", 2)]


# --- changing


async def test_a_change_changes_only_what_is_given(store: Database) -> None:
    made = await routes.add_route(
        store, "r", None, ["a", "b"], weights={"a": 1}, tags=["t"], min_size=5
    )
    id = made.rule.id
    changed = await routes.change_route(store, id, lanes=["bulk"], tags=None)
    assert changed.rule.match == RuleMatch(lanes=("bulk",), min_size=5)
    assert (changed.rule.providers, changed.weights) == (made.rule.providers, {"a": 1, "b": 0})
    assert (await routes.change_route(store, id, weights={"b": 2})).weights == {"a": 0, "b": 2}
    assert (await routes.change_route(store, id, weights=None)).weights is None
    changed = await routes.change_route(store, id, providers=["c"], name="s", enabled=False)
    assert ([one.name for one in changed.providers], changed.rule.name, changed.rule.enabled) == (
        ["c"],
        "s",
        False,
    )
    assert (await routes.enable_route(store, id, True)).rule.enabled


async def test_new_providers_take_the_old_weights_away(store: Database) -> None:
    made = await routes.add_route(store, "r", None, ["a", "b"], weights={"a": 1})
    assert (await routes.change_route(store, made.rule.id, providers=["b", "a"])).weights is None


async def test_a_change_can_move(store: Database) -> None:
    await add(store, *"abc")
    await routes.change_route(
        store, (await routes.find_route(store, "c", None)).rule.id, place=1, tags=["t"]
    )
    assert await names(store) == [*"cab"]


@pytest.mark.parametrize(
    ("more", "code", "field"),
    [
        ({"providers": ["a", "nobody"]}, "unknown_provider", "providers"),
        ({"providers": ["a", "a"]}, "duplicate", "providers"),
        ({"providers": []}, "missing", "providers"),
        ({"weights": {"b": 0, "a": 0}}, "out_of_range", "weights"),
        ({"weights": {"c": 1}}, "unknown_provider", "weights"),
        ({"sender_domains": ["no domain"]}, "bad_domain", "sender_domains"),
        ({"lanes": ["slow"]}, "unknown_lane", "lanes"),
        ({"classes": ["transactional", "nothing"]}, "unknown_class", "classes"),
        ({"min_size": 10, "max_size": 9}, "out_of_range", "min_size"),
        ({"name": "two words"}, "bad_name", "name"),
    ],
)
async def test_what_is_wrong_is_said_and_changes_nothing(
    store: Database, more: dict[str, Any], code: str, field: str
) -> None:
    made = await routes.add_route(store, "r", None, ["a", "b"])
    with pytest.raises(InvalidMail) as caught:
        await routes.change_route(store, made.rule.id, **more)
    assert (caught.value.code, caught.value.field) == (code, field)
    new = {"name": "new", "providers": ["a", "b"], "tenant": "shop"} | more
    with pytest.raises(InvalidMail) as caught:
        await routes.add_route(store, **new)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert await routes.list_routes(store) == [made]


async def test_a_name_that_is_taken_by_a_change(store: Database) -> None:
    await add(store, "a", "b")
    await add(store, "c", tenant="shop")
    found = await routes.find_route(store, "a", None)
    with pytest.raises(NotPossible, match="already"):
        await routes.change_route(store, found.rule.id, name="b")
    assert (
        await routes.change_route(store, found.rule.id, name="c")
    ).rule.name == "c"  # another tenant's is free


async def test_what_is_not_there(store: Database) -> None:
    await add(store, "own", tenant="shop")
    for call in (
        routes.get_route(store, 99), routes.change_route(store, 99), routes.move_route(store, 99),
        routes.remove_route(store, 99), routes.find_route(store, "nothing", "shop"),
        routes.add_route(store, "r", "nobody", ["a"]),
    ):  # fmt: skip
        with pytest.raises(NotFound):
            await call
    with pytest.raises(NotFound, match="there is one of shop: give --tenant"):
        await routes.find_route(store, "own", None)


async def test_a_provider_that_is_removed_stays_in_its_routes(store: Database) -> None:
    made = await routes.add_route(store, "r", None, ["a", "b"], weights={"a": 1, "b": 1})
    assert await routes.routes_through(store, "a") == [made]
    await providers.remove_provider(store, "a")
    [found] = await routes.list_routes(store)
    assert [(one.removed, one.enabled) for one in found.providers] == [(True, False), (False, True)]
    assert found.rule == made.rule
    changed = await routes.change_route(
        store, made.rule.id, tags=["t"]
    )  # it need not be named to stay
    assert changed.rule.providers == made.rule.providers
    with pytest.raises(InvalidMail, match="no provider"):
        await routes.change_route(store, made.rule.id, providers=["a", "b"])


# --- how providers are


async def ill(database: Database, provider: int, **columns: Any) -> None:
    """A row of health, as a worker writes it."""
    given = {"provider_id": provider} | columns
    places = ", ".join(f"${place}" for place in range(1, len(given) + 1))
    await database.execute(
        f"INSERT INTO pillarbox.provider_health ({', '.join(given)}) VALUES ({places})",
        *given.values(),
    )


async def test_health_is_read_by_provider(store: Database) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert await health.list_health(store) == {}
    await ill(store, 1, state="open", reason="timeout", since=at, retry_at=at, opened=3)
    await ill(
        store, 2, held_until=at, since=at, checked_at=at, check_ok=False, check_said="no answer"
    )
    assert await health.list_health(store) == {
        1: health.HealthRow("open", "timeout", at, at, None, 3),
        2: health.HealthRow("closed", None, at, None, at, 0, at, False, "no answer"),
    }


async def test_events_come_newest_first_and_in_pages(store: Database) -> None:
    for provider in (1, 2, 1):
        await store.execute(
            "INSERT INTO pillarbox.provider_events (provider_id, kind, data) VALUES ($1, 'opened', $2)",
            provider, '{"reason": "tls"}',
        )  # fmt: skip
    found = await health.list_events(store)
    assert [(one.provider, one.kind, one.data) for one in found] == [
        (name, "opened", {"reason": "tls"}) for name in "aba"
    ]
    assert [one.provider for one in await health.list_events(store, 1)] == ["a", "a"]
    assert await health.list_events(store, None, 1, found[0].id) == [found[1]]


async def spend(
    database: Database, name: str, spent: int, *, price: str = "1", budget: str | None = "1"
) -> None:
    await providers.price_provider(
        database, name, Decimal(price), Decimal(budget) if budget else None, 10, 20
    )
    await database.execute(
        "INSERT INTO pillarbox.provider_spending SELECT id, date_trunc('month', now() AT TIME ZONE 'UTC'), $2"
        " FROM pillarbox.providers WHERE name = $1",
        name, spent,
    )  # fmt: skip


async def test_spending_of_this_month(store: Database) -> None:
    await spend(store, "a", 800, price="0.5", budget="2")
    await store.execute("INSERT INTO pillarbox.provider_spending VALUES (1, '2001-01-01', 5)")
    use = (await health.list_usage(store))[1]
    assert (use.mails, use.spent, use.share) == (800, Decimal("0.4"), 0.2)
    assert (await health.list_usage(store))[2].share is None


async def test_a_budget_of_nothing_is_used_up(store: Database) -> None:
    await spend(store, "a", 0, budget="0")
    assert (await health.list_usage(store))[1].share == 1.0


# --- explaining

MAIL = MailFacts(1, "shop.example", "mail.example")


async def why(
    database: Database, facts: MailFacts = MAIL, **more: Any
) -> list[tuple[str, CandidateUse, list[ObstacleReason]]]:
    found = (await explain_query.load_routing_snapshot(database)).explain(facts, **more)
    return [
        (one.name, one.use, [obstacle.why for obstacle in one.obstacles]) for one in found.providers
    ]


@pytest.mark.req("REQ-QUEUE-S007")
async def test_without_rules_the_default_order_is_explained(store: Database) -> None:
    for name, kind in (("mg", "mailgun"), ("s", "ses"), ("sg", "sendgrid"), ("keep", "capture")):
        await provide(store, name, kind)
    assert [one[0] for one in await why(store)] == ["sg", "s", "mg", "a", "b", "c"]
    large = MailFacts(1, "shop.example", "mail.example", size=30_000_001)
    assert (await why(store, large, raw=True))[:3] == [
        ("sg", CandidateUse.SKIPPED, [ObstacleReason.RAW, ObstacleReason.TOO_BIG]),
        ("s", CandidateUse.USED, []),
        ("mg", CandidateUse.SKIPPED, [ObstacleReason.TOO_BIG]),
    ]


@pytest.mark.req("REQ-QUEUE-E009")
@pytest.mark.req("REQ-QUEUE-S002")
async def test_what_the_store_says_of_providers_is_explained(store: Database) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await ill(store, 1, state="open", reason="credential", retry_at=later)
    await ill(store, 2, held_until=later)
    await providers.enable_provider(store, "c", False)
    await provide(store, "d")
    await spend(store, "d", 1000)
    await provide(store, "e")
    assert await why(store) == [
        ("a", CandidateUse.SKIPPED, [ObstacleReason.BREAKER_OPEN]),
        ("b", CandidateUse.SKIPPED, [ObstacleReason.PAUSED]),
        ("c", CandidateUse.SKIPPED, [ObstacleReason.DISABLED]),
        ("d", CandidateUse.SKIPPED, [ObstacleReason.BUDGET]),
        ("e", CandidateUse.USED, []),
    ]


async def test_a_removed_provider_is_explained(store: Database) -> None:
    await routes.add_route(store, "r", None, ["a", "b"])
    await providers.remove_provider(store, "a")
    first, second = await why(store)
    assert (first[1:], second) == (
        (CandidateUse.SKIPPED, [ObstacleReason.REMOVED]),
        ("b", CandidateUse.USED, []),
    )


async def test_an_installation_without_providers(database: Database) -> None:
    found = (await explain_query.load_routing_snapshot(database)).explain(MAIL)
    assert (found.providers, found.fate) == ([], MailFate.WAITS)


async def test_a_message_is_explained_by_the_ways_its_recipients_go(store: Database) -> None:
    await routes.add_route(store, "far", "shop", ["b"], recipient_domains=["far.example"])
    await routes.add_route(store, "tagged", None, ["c"], tags=["t"], lanes=["bulk"])
    to = ["a@near.example", "b@FAR.example", "c@near.example"]
    id = await enqueue(store, *to, tenant="shop", tags=["t"], priority="bulk", kind="news")
    near, far = await explain_query.explain_message(store, id)
    assert (near.recipients, near.rule and near.rule.name) == ([0, 2], "tagged")
    assert (far.recipients, far.rule and far.rule.name) == ([1], "far")
    assert near.facts.size > 0
    assert (near.facts.sender_domain, near.facts.kind, near.raw) == ("shop.example", "news", False)
    assert await explain_query.explain_message(store, id, 2) == [near, far]
    with pytest.raises(NotFound):
        await explain_query.explain_message(store, id, 1)


async def test_a_raw_message_and_a_persons_choice(store: Database) -> None:
    await provide(store, "sg", "sendgrid")
    raw = b"From: a@shop.example\r\nTo: b@mail.example\r\nSubject: x\r\n\r\nHi\r\n"
    id = await enqueue(store, subject=None, text=None, raw=raw)
    [found] = await explain_query.explain_message(store, id)
    assert found.raw
    assert found.providers[0].obstacles[0].why is ObstacleReason.RAW
    await store.execute("UPDATE pillarbox.deliveries SET via = 3")
    [found] = await explain_query.explain_message(store, id)
    assert (found.via, [one.name for one in found.providers]) == (3, ["c"])


# --- the same as the queue decides


def lanes_stopped(waits: Sequence[float]) -> list[str]:
    return [lane for lane, wait in zip(LANES, waits, strict=True) if wait > 0]


@pytest.mark.parametrize("spent", [0, 699, 700, 701, 899, 900, 999, 1000])
async def test_budgets_are_explained_as_the_queue_keeps_them(store: Database, spent: int) -> None:
    await spend(store, "a", spent)
    explained = [(await why(store, MailFacts(1, "", "", lane)))[0][2] for lane in LANES]
    rows = [await _asks(store, lane) for lane in range(3)]
    assert [lane for lane, notes in zip(LANES, explained, strict=True) if notes] == lanes_stopped(
        rows
    )


@pytest.mark.parametrize("sent", [0, 50, 69, 70, 71, 89, 90, 91, 99, 100, 101])
async def test_rates_are_explained_as_the_queue_keeps_them(store: Database, sent: int) -> None:
    """Of 1,000 in a day 100 may leave in one go; of them a part is kept for the lanes above."""
    await providers.limit_provider(store, "a", None, None, 1000)
    await store.execute(
        "UPDATE pillarbox.rates SET day_at = now() + $1 * interval '86.4 seconds' + interval '2 seconds'"
        " WHERE kind = 'p' AND id = 1",
        sent,
    )
    explained = [(await why(store, MailFacts(1, "", "", lane)))[0][2] for lane in LANES]
    rows = [await _asks(store, lane) for lane in range(3)]
    assert [lane for lane, notes in zip(LANES, explained, strict=True) if notes] == lanes_stopped(
        rows
    )


async def _asks(database: Database, lane: int) -> float:
    """Seconds that the queue lets a mail of a lane wait; nothing is used up."""
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        wait = await connection.fetchval(
            "SELECT wait FROM pillarbox._spend(1, $1::int2[], '{1}')", [lane]
        )
        await transaction.rollback()
    return float(wait)
