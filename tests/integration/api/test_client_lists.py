"""Dead letters and suppression lists through `pillarbox.Client` and `AsyncClient`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from pillarbox import AsyncClient, Client
from pillarbox.errors import InvalidMail, NotAllowed, NotFound
from pillarbox.model.access import Scope
from pillarbox.store import providers
from tests.integration.api.api_helpers import Api


class Both:
    """Either client behind one face: every method is awaited, and what is gone through comes as a list."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            if inspect.isasyncgenfunction(method):
                return [one async for one in method(*arguments, **named)]
            if inspect.iscoroutinefunction(method):
                return await method(*arguments, **named)
            return await asyncio.to_thread(blocking, *arguments, **named)

        def blocking(*arguments: Any, **named: Any) -> Any:
            result = method(*arguments, **named)
            return list(result) if isinstance(result, Iterator) else result

        return call


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
async def client(request: pytest.FixtureRequest, api: Api) -> AsyncIterator[Both]:
    both = Both(request.param(api.nobody.url, api.shop.key))
    yield both
    await both.close()


async def dead(api: Api, **fields: Any) -> UUID:
    message_id = await api.shop.sent_id(**fields)
    query = "UPDATE pillarbox.deliveries SET state = 'failed', reason = 'policy', attempts = 3 WHERE message_id = $1"
    await api.database.execute(query, message_id)
    return UUID(message_id)


async def test_dead_letters(client: Both, api: Api) -> None:
    ids = [await dead(api, kind="news" if n else "other") for n in range(3)]
    found = await client.dead_letters(since=datetime(2020, 1, 1, tzinfo=UTC), reason="policy")
    assert [one.id for one in found] == ids[::-1]
    assert (found[0].sender, found[0].class_, found[0].blocked) == (
        "Shop <hello@shop.example>",
        "transactional",
        None,
    )
    assert found[0].deliveries[0].attempts_made == 3
    assert [one.id for one in await client.dead_letters(kind="other")] == [ids[0]]
    summary = await client.dead_letter_summary()
    assert (summary.total, summary.by_reason, summary.complete) == (3, {"policy": 3}, True)
    would = await client.reprocess(kind="news", dry_run=True, limit=1)
    assert (would.dry_run, would.requeued, would.left) == (True, 1, 1)
    await providers.add_provider(
        api.database, lambda: pytest.fail("no secret"), "relay", "capture", {}
    )
    assert (
        await client.reprocess([ids[1], str(ids[2])], via="relay", reset_retry_count=False)
    ).requeued == 2
    assert (await client.discard(kind="news")).discarded == 0
    assert (await client.discard([ids[0]])).discarded == 1
    with pytest.raises(InvalidMail) as caught:
        await client.reprocess([ids[0]], via="nonesuch")
    assert (caught.value.code, caught.value.field) == ("unknown_provider", "provider")
    for wrong in ((), ([ids[0]], "news")):
        with pytest.raises(ValueError, match="message_ids"):
            await client.discard(*wrong[:1], **({"kind": wrong[1]} if len(wrong) > 1 else {}))
    with pytest.raises(TypeError, match="no filter"):
        await client.dead_letter_summary(colour="red")


async def test_many_pages(client: Both, api: Api) -> None:
    for _ in range(105):
        await dead(api)
    assert len(await client.dead_letters()) == 105
    await client.suppress([f"{n}@x.example" for n in range(205)])
    assert len(await client.suppressions()) == 205


async def test_suppressions(client: Both, api: Api) -> None:
    added = await client.suppress(
        "Ada@x.example", reason="unsubscribed", expires_at=datetime(2090, 1, 1, tzinfo=UTC)
    )
    assert (added.added, added.changed, added.refused) == (1, 0, 0)
    await client.suppress(["bo@x.example", "a/b@x.example"], note="by phone")
    [one] = await client.suppressions(address="ADA@x.example")
    assert (one.address, one.reason, one.expires_at) == (
        "ada@x.example",
        "unsubscribed",
        datetime(2090, 1, 1, tzinfo=UTC),
    )
    assert [one.address for one in await client.suppressions(prefix="b")] == ["bo@x.example"]
    assert [one.note for one in await client.suppressions(reason="manual")] == ["by phone"] * 2
    content = await client.export_suppressions()
    await client.unsuppress("a/b@x.example")
    with pytest.raises(NotFound):
        await client.unsuppress("a/b@x.example")
    assert (await client.import_suppressions(content)).added == 1
    assert (
        await client.export_suppressions(reason="complaint") == b"address,reason,note,expires_at\n"
    )
    with pytest.raises(InvalidMail) as caught:
        await client.import_suppressions("new@x.example\nnobody\n")
    assert (caught.value.code, caught.value.field) == ("bad_address", "line 2")
    done = await client.import_suppressions("new@x.example\nnobody\n", partial=True)
    assert (done.added, done.refused, done.faults[0].line) == (1, 1, 2)
    with pytest.raises(InvalidMail):
        await client.suppress("nobody")
    with pytest.raises(InvalidMail, match="time zone"):
        await client.suppress("x@x.example", expires_at=datetime(2090, 1, 1))


async def test_a_key_that_may_not(api: Api) -> None:
    reader = await api.key("shop", Scope.READ)
    with Client(api.nobody.url, reader.key) as client, pytest.raises(NotAllowed):
        await asyncio.to_thread(client.suppress, "a@x.example")
