"""Dispatching over real PostgreSQL and real SMTP: lanes move between workers, and their order survives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pillarbox.app import App, serve, work
from pillarbox.errors import StoreError
from pillarbox.model.fairness import LaneId
from pillarbox.queue.ledger import SQL
from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Faults
from tests import PATIENCE
from tests.contract.queues import postgres_worker
from tests.contract.record import fill, set_tenant
from tests.harness import add_smtp, eventually, opened, working

PLENTY = 2**30
SLOW = {
    "worker_concurrency": 1,
    "worker_pipeline": 1,
    "worker_poll_interval": "1h",
}  # one mail at a time


class Forgetful(Database):
    """Carries statements out, and loses the answer to the next claim when told."""

    lose = False

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        rows = await super().fetch(query, *arguments)
        if self.lose and query == SQL["claim"]:
            self.lose = False
            raise StoreError("the answer was lost")
        return rows


class Numbered:
    """A server that writes down who began, and makes chosen mails wait."""

    def __init__(self, *waits: int) -> None:
        self.began: list[int] = []
        self.waits = waits
        self.go_on = asyncio.Event()
        self.faults = Faults(mail=self.mail, body=self.body)

    async def mail(self, session: Any, argument: str) -> None:
        self.began.append(int(argument.partition("<")[2].partition("@")[0]))

    async def body(self, session: Any, argument: str) -> None:
        if int(session.envelope.sender.partition("@")[0]) in self.waits:
            await self.go_on.wait()


async def number(database: Database, count: int, tenant: str = "default") -> None:
    """Accept mails whose sender is their number."""
    await database.execute(
        """SELECT pillarbox.enqueue(sender => n || '@shop.example', "to" => ARRAY['r@x.example'], subject => 'x',
                                    text => 'x', tenant => $2) FROM generate_series(1, $1) AS n""",
        count, tenant,
    )  # fmt: skip


async def all_sent(database: Database) -> bool:
    return not await database.fetchval(
        "SELECT count(*) FROM pillarbox.deliveries WHERE state <> 'sent'"
    )


@asynccontextmanager
async def stopping(app: App) -> AsyncIterator[asyncio.Event]:
    """A worker that the test stops."""
    stop = asyncio.Event()
    task = asyncio.create_task(serve(app, stop, work))
    try:
        yield stop
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE)


async def test_a_strict_lane_goes_on_as_soon_as_its_mail_is_settled(
    database: Database, database_url: str
) -> None:
    await set_tenant(database, order_mode="strict")
    await number(database, 30)
    told = Numbered()
    async with SmtpServer(told.faults) as server:
        await add_smtp(database, server)
        async with working(database_url, worker_poll_interval="1h"):
            await eventually(lambda: all_sent(database))
    assert told.began == list(range(1, 31))


async def test_a_full_worker_lets_others_go_on_in_order(
    database: Database, database_url: str
) -> None:
    await number(database, 10)
    told = Numbered(1)
    async with SmtpServer(told.faults) as server:
        await add_smtp(database, server)
        async with working(database_url, **SLOW):
            await server.wait_for(lambda: told.began == [1])
            async with working(database_url, **SLOW):
                await server.wait_for(lambda: len(told.began) == 10)
            told.go_on.set()
            await eventually(lambda: all_sent(database))
    assert told.began == list(range(1, 11))


async def test_a_stopping_worker_does_not_keep_its_lanes(
    database: Database, database_url: str
) -> None:
    """It waits for the end of what is in flight; others need not."""
    await number(database, 10)
    told = Numbered(1)
    async with SmtpServer(told.faults) as server:
        await add_smtp(database, server)
        async with (
            opened(database_url, **SLOW) as first,
            opened(database_url, **SLOW) as second,
            stopping(first) as stop,
        ):
            await server.wait_for(lambda: told.began == [1])
            async with stopping(second):
                await eventually(lambda: _two_workers(database))
                stop.set()
                await server.wait_for(lambda: len(told.began) == 10)
                told.go_on.set()
                await eventually(lambda: all_sent(database))
    assert told.began == list(range(1, 11))


async def _two_workers(database: Database) -> bool:
    count = await database.fetchval(
        "SELECT count(*) FROM pillarbox.workers WHERE reaped_at IS NULL"
    )
    return bool(count == 2)


async def test_order_survives_a_provider_that_changes(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections are closed, and what they had not begun goes back to the queue."""
    monkeypatch.setattr("pillarbox.app.REFRESH_INTERVAL", 0.01)
    await number(database, 400)
    told = Numbered()
    async with SmtpServer(told.faults) as server:
        given = {"host": server.host, "port": server.port, "tls": "none", "connections": 1}
        await add_smtp(database, server, connections=1)
        async with working(database_url, worker_concurrency=1, worker_pipeline=20):
            for change in range(10):
                begun = len(told.began)
                await server.wait_for(lambda begun=begun: len(told.began) > begun + 5)
                settings = json.dumps(given | {"command_timeout": 20 + change})
                await database.execute("UPDATE pillarbox.providers SET settings = $1", settings)
            await eventually(lambda: all_sent(database), PATIENCE)
        assert server.connections > 3
    assert told.began == sorted(told.began)


async def test_a_lane_is_not_given_away_while_a_claim_is_in_doubt(
    database_url: str, database: Database
) -> None:
    """Its answer was lost: something of the lane may have been claimed, and must come back first."""
    forgetful = await Forgetful.connect(database_url)
    first, second = postgres_worker(forgetful), postgres_worker(database)
    await first.register("first", 60)
    await second.register("second", 60)
    mails = await fill(database, 4)
    forgetful.lose = True
    with pytest.raises(StoreError):
        await first.claim(2, PLENTY, True)
    await first.step_aside()
    assert await second.claim(10, PLENTY, True) == []
    assert await first.release_strays([]) == 2
    assert [one.message.id for one in await first.claim(10, PLENTY, True)] == mails
    await forgetful.close()


async def test_a_lane_of_a_dead_worker_is_not_taken_before_its_claims_are(
    database: Database,
) -> None:
    dead, alive = postgres_worker(database), postgres_worker(database)
    await dead.register("dead", 60)
    await alive.register("alive", 60)
    await fill(database, 2)
    assert len(await dead.claim(1, PLENTY, True)) == 1
    await dead.heartbeat(0.0)
    assert await alive.ledger.take_lanes([LaneId(1, 1)]) == []
    await alive.reap(10, 0.0)
    assert await alive.ledger.take_lanes([LaneId(1, 1)]) == [LaneId(1, 1)]


async def test_the_database_itself_knows_what_blocks_a_strict_lane(database: Database) -> None:
    """Whoever dispatches it, and whatever that worker remembers."""
    await set_tenant(database, order_mode="strict")
    mails = await fill(database, 2)
    for _ in range(3):
        queue = postgres_worker(database)
        await queue.register("one after another", 60)
        claims = await queue.claim(10, PLENTY, True)
        assert [one.message.id for one in claims] in ([], mails[:1])
        await database.execute("UPDATE pillarbox.lanes SET worker = NULL")
    assert (
        await database.fetchval(
            "SELECT count(*) FROM pillarbox.deliveries WHERE state = 'processing'"
        )
        == 1
    )
