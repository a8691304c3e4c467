"""Tokens that were used or have expired are deleted after `retention_tokens`, in bounded batches."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox.deliver.housekeeping import Housekeeping
from pillarbox.queue.ledger import Ledger
from pillarbox.store.database import Database
from tests.harness import opened
from tests.integration.lifecycle.lifecycle_helpers import add_account, install

DAY = 86400


@pytest.fixture(autouse=True)
async def installed(database: Database) -> None:
    await install(database)


async def retain(database_url: str, **settings: Any) -> int:
    async with opened(database_url, **settings) as app:
        return await Housekeeping(
            app.database, Ledger(app.database), app.metrics, app.settings
        ).retain()


async def token(
    database: Database, account: int, *, created: int, expires: int, action: str = "invite"
) -> int:
    """A token that was created and expires so many days ago, with nothing left to be collected."""
    number = await database.fetchval(
        "INSERT INTO lifecycle.tokens (account, action, created_at, expires_at) SELECT $1, $2,"
        " extract(epoch FROM now())::bigint - $3::int8 * 86400, extract(epoch FROM now())::bigint - $4::int8 * 86400"
        " RETURNING id",
        account, action, created, expires,
    )  # fmt: skip
    await database.execute("DELETE FROM lifecycle.waiting WHERE token = $1", number)
    await database.execute(
        "INSERT INTO lifecycle.collected (token, outcome) VALUES ($1, 'expired')", number
    )
    return int(number)


async def left(database: Database) -> list[int]:
    return [
        row["id"] for row in await database.fetch("SELECT id FROM lifecycle.tokens ORDER BY id")
    ]


async def test_old_ones_go_in_batches_and_young_ones_stay(
    database: Database, database_url: str
) -> None:
    people = [await add_account(database, f"u{n}", "active") for n in range(7)]
    for one in people:
        await token(database, one, created=100, expires=99)
    young = [await token(database, one, created=80, expires=79, action="welcome") for one in people]
    far = await token(database, people[0], created=100, expires=-400, action="email_verification")
    await database.execute(
        "INSERT INTO lifecycle.collected (token, at, outcome) VALUES (0, now() - interval '1 year', 'gone')"
    )
    await retain(database_url, retention_batch=2)
    assert await left(database) == [*young, far]
    rows = await database.fetch("SELECT token FROM lifecycle.collected WHERE token > 0 ORDER BY 1")
    assert [row["token"] for row in rows] == [*young, far]
    await retain(database_url, retention_tokens="70d")
    assert await left(database) == [far]


async def test_off_keeps_them(database: Database, database_url: str) -> None:
    old = await token(
        database, await add_account(database, "ada", "active"), created=4000, expires=3999
    )
    await retain(database_url, retention_tokens="off")
    assert await left(database) == [old]


async def test_one_that_still_supersedes_another_stays(
    database: Database, database_url: str
) -> None:
    """Else an older link, which lives longer, would count again."""
    account = await add_account(database, "ada", "active")
    older = await token(database, account, created=200, expires=-100)
    newer = await token(database, account, created=150, expires=149)
    await retain(database_url)
    assert await left(database) == [older, newer]


async def test_one_that_waits_stays_until_it_was_settled(
    database: Database, database_url: str
) -> None:
    waiting = await token(
        database, await add_account(database, "ada", "active"), created=200, expires=199
    )
    await database.execute("INSERT INTO lifecycle.waiting (token, lane) VALUES ($1, 1)", waiting)
    await retain(database_url)
    assert await left(database) == [waiting]
