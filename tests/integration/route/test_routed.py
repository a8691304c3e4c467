"""Mails leave as routes say, and as it was explained before they did."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from pillarbox.route import explain_query
from pillarbox.store import routes, tenants
from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from tests.harness import add_smtp, attempts, enqueue, settled, working


class World(NamedTuple):
    database: Database
    url: str
    names: dict[int, str]


@pytest.fixture
async def world(database: Database, database_url: str) -> AsyncIterator[World]:
    """With the providers a, b and c, each a server of its own, and a tenant `shop`."""
    await tenants.add_tenant(database, "shop")
    async with SmtpServer() as a, SmtpServer() as b, SmtpServer() as c:
        names = {
            await add_smtp(database, server, name): name
            for server, name in ((a, "a"), (b, "b"), (c, "c"))
        }
        yield World(database, database_url, names)


async def through(world: World, *mails: dict[str, Any]) -> list[list[str]]:
    """By mail and recipient: the provider it left through. It is the one that was explained before."""
    ids = [
        await enqueue(world.database, *mail.pop("to", ["x@mail.example"]), **mail) for mail in mails
    ]
    explained = []
    for id in ids:
        ways = await explain_query.explain_message(world.database, id)
        explained.append({n: way.used.name for way in ways for n in way.recipients if way.used})
    left = []
    async with working(world.url):
        for id, wanted in zip(ids, explained, strict=True):
            await settled(world.database, id, *["sent"] * len(wanted))
            left.append(
                [world.names[row["provider_id"]] for row in await attempts(world.database, id)]
            )
            assert left[-1] == [wanted[n] for n in sorted(wanted)]
    return left


@pytest.mark.req("REQ-QUEUE-E002")
async def test_mails_leave_through_the_provider_of_the_first_rule_that_fits(world: World) -> None:
    add = routes.add_route
    await add(world.database, "tagged", None, ["b", "a"], tags=["t"])
    await add(world.database, "large", None, ["c"], min_size=50_000)
    await add(world.database, "own", "shop", ["c", "a"], lanes=["bulk"])
    found = await through(
        world,
        {},
        {"tags": ["t"]},
        {"tags": ["t"], "tenant": "shop"},
        {"tags": ["t"], "tenant": "shop", "priority": "bulk"},
        {"text": "x" * 60_000},
    )
    assert found == [["a"], ["b"], ["b"], ["c"], ["c"]]


@pytest.mark.req("REQ-QUEUE-S007")
async def test_without_a_rule_the_first_of_the_default_order_is_used(world: World) -> None:
    assert await through(world, {}, {"tags": ["t"]}) == [["a"], ["a"]]


async def test_recipients_of_one_mail_go_their_own_ways(world: World) -> None:
    await routes.add_route(world.database, "far", None, ["c"], recipient_domains=["*.far.example"])
    to = ["1@near.example", "2@a.far.example", "3@b.far.example"]
    assert await through(world, {"to": to}) == [["a", "c", "c"]]


async def test_weighted_mails_are_drawn(world: World) -> None:
    """Each as it was explained; in the long run, as the weights say."""
    await routes.add_route(
        world.database, "split", None, ["a", "b", "c"], weights={"a": 50, "b": 50}
    )
    found = await through(world, *({} for _ in range(40)))
    count = Counter(one for [one] in found)
    assert count.keys() == {"a", "b"}
    assert 5 <= count["a"] <= 35  # fails by chance once in a million runs


async def test_a_removed_or_disabled_provider_is_passed_over(world: World) -> None:
    await routes.add_route(world.database, "r", None, ["b", "c", "a"])
    await world.database.execute("UPDATE pillarbox.providers SET enabled = false WHERE name = 'b'")
    await world.database.execute(
        "UPDATE pillarbox.providers SET removed_at = now(), enabled = false WHERE name = 'c'"
    )
    assert await through(world, {}) == [["a"]]
