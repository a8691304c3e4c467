"""The wake-up hint: after commit, not before, not after rollback; few for a burst; muted by nobody."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator

import asyncpg
import pytest_asyncio

from pillarbox import Mail, enqueue, enqueue_many
from tests import PATIENCE

MAIL = Mail(sender="shop@example.com", to="user@example.net", text="A body")
THROTTLE = 0.01  # one hint in ten milliseconds at most


class Ear:
    """Hears hints; `settled` makes sure that all sent so far have arrived."""

    def __init__(self, listener: asyncpg.Connection) -> None:
        self.listener = listener
        self.heard = 0
        self._told = asyncio.Event()

    def hear(self, *_: object) -> None:
        self.heard += 1

    async def settled(self) -> int:
        # Notifications keep the order of commits: when this one is here, so are all before it.
        self._told.clear()
        await self.listener.execute("NOTIFY settled")
        await asyncio.wait_for(self._told.wait(), PATIENCE)
        return self.heard


@pytest_asyncio.fixture
async def ear(database_url: str) -> AsyncIterator[Ear]:
    listener = await asyncpg.connect(database_url)
    ear = Ear(listener)
    await listener.add_listener("pillarbox_wake", ear.hear)
    await listener.add_listener("settled", lambda *_: ear._told.set())
    yield ear
    await listener.close()


async def test_it_comes_after_commit_and_not_before(
    connection: asyncpg.Connection, ear: Ear
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    await enqueue(connection, MAIL)
    assert await ear.settled() == 0
    await transaction.commit()
    assert await ear.settled() == 1


async def test_it_does_not_come_after_rollback(connection: asyncpg.Connection, ear: Ear) -> None:
    transaction = connection.transaction()
    await transaction.start()
    await enqueue(connection, MAIL)
    await transaction.rollback()
    assert await ear.settled() == 0
    await enqueue(connection, MAIL)  # and what was rolled back mutes nobody
    assert await ear.settled() == 1


async def test_a_scheduled_mail_wakes_nobody(connection: asyncpg.Connection, ear: Ear) -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    await enqueue(connection, Mail(sender="a@b.example", to="c@d.example", text="", send_at=later))
    assert await ear.settled() == 0


async def test_several_mails_give_one_hint(connection: asyncpg.Connection, ear: Ear) -> None:
    await enqueue_many(connection, [MAIL] * 100)
    assert await ear.settled() == 1


async def test_a_burst_of_commits_gives_few(connection: asyncpg.Connection, ear: Ear) -> None:
    start = asyncio.get_running_loop().time()
    for _ in range(200):
        await enqueue(connection, MAIL)
    seconds = asyncio.get_running_loop().time() - start
    assert 1 <= await ear.settled() <= seconds / THROTTLE + 1


async def test_an_open_transaction_mutes_nobody(
    connection: asyncpg.Connection, database_url: str, ear: Ear
) -> None:
    open_one = await asyncpg.connect(database_url)
    transaction = open_one.transaction()
    await transaction.start()
    await enqueue(open_one, MAIL)
    for expected in (1, 2, 3):
        await enqueue(connection, MAIL)
        assert await ear.settled() == expected
        await asyncio.sleep(
            2 * THROTTLE
        )  # the throttle is a matter of time, not of a condition to wait for
    await transaction.commit()
    assert await ear.settled() == 4
    await open_one.close()
