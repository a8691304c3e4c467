"""A database that is away: 503 with Retry-After, nothing half-stored, and all well again afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from pillarbox.model.access import Scope
from pillarbox.store.embedded import EmbeddedPostgres
from tests.harness import eventually, opened
from tests.integration.api.api_helpers import MAIL, Api, api_of, new_key, serving


async def stored(api: Api) -> int:
    return int(await api.database.fetchval("SELECT count(*) FROM pillarbox.messages"))


async def test_a_database_that_is_away(stoppable: EmbeddedPostgres) -> None:
    async with api_of(stoppable.url()) as api:
        await asyncio.to_thread(stoppable.stop, "immediate")
        batch = {"messages": [MAIL, MAIL]}
        answers = [
            await api.shop.send(headers_={"Idempotency-Key": "k"}), await api.shop.post("/messages/batch", batch),
            await api.shop.get("/messages"), await api.admin.get("/admin/tenants"),
        ]  # fmt: skip
        for answer in answers:
            assert (answer.status, answer.json["type"]) == (503, "/problems/store-away")
            assert int(answer.headers["retry-after"]) > 0
        await asyncio.to_thread(stoppable.start)
        assert await stored(api) == 0

        async def again() -> bool:
            return (await api.shop.send(headers_={"Idempotency-Key": "k"})).status == 202

        await eventually(again)
        assert await stored(api) == 1


async def test_a_database_that_goes_away_in_the_middle(stoppable: EmbeddedPostgres) -> None:
    """What was answered 202 is there, whole; what was answered otherwise may be, once."""
    async with api_of(stoppable.url()) as api:
        sent: list[tuple[str, int]] = []

        async def send(number: int) -> None:
            answer = await api.shop.send(
                subject=str(number), headers_={"Idempotency-Key": str(number)}
            )
            assert answer.status in (202, 503)
            sent.append((str(number), answer.status))

        first = [asyncio.create_task(send(number)) for number in range(100)]
        await eventually(lambda: _some(sent))
        await asyncio.to_thread(stoppable.stop, "immediate")
        await asyncio.gather(*first, *(send(number) for number in range(100, 110)))
        await asyncio.to_thread(stoppable.start)
        rows = await api.database.fetch(
            "SELECT subject, (SELECT count(*) FROM pillarbox.deliveries WHERE message_id = id) AS deliveries,"
            " EXISTS (SELECT FROM pillarbox.contents WHERE message_id = id) AS whole FROM pillarbox.messages"
        )
        assert {number for number, status in sent if status == 202} <= {
            row["subject"] for row in rows
        }
        assert {status for _, status in sent} == {202, 503}
        assert all(row["deliveries"] == 1 and row["whole"] for row in rows)
        assert len(rows) == len({row["subject"] for row in rows})


async def _some(sent: list[Any]) -> bool:
    return bool(sent)


async def test_while_the_database_is_away_keys_are_not_throttled(
    stoppable: EmbeddedPostgres,
) -> None:
    async with opened(stoppable.url(), http="127.0.0.1:0") as app:
        key = await new_key(app.database, None, Scope.ADMIN)
        async with serving(app) as url, aiohttp.ClientSession() as session:
            await asyncio.to_thread(stoppable.stop, "immediate")
            for _ in range(30):
                headers = {"Authorization": f"Bearer {key}"}
                async with session.get(f"{url}/api/v1/admin/tenants", headers=headers) as answer:
                    assert answer.status == 503
