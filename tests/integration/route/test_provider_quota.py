"""What providers may send in a time and for their money: one count for all, with something left for what is urgent."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pillarbox.store import providers, shared_health
from pillarbox.store.database import Database

URGENT, NORMAL, BULK = 0, 1, 2
SECONDS = {"rate_per_second": 1, "rate_per_hour": 3600, "rate_per_day": 86400}


async def provider(database: Database, **columns: Any) -> int:
    number = await providers.add_provider(database, lambda: None, "relay", "capture", {})
    changes = ", ".join(f"{name} = {value}" for name, value in columns.items())
    await database.execute(f"UPDATE pillarbox.providers SET {changes} WHERE id = $1", number)
    return number


async def asked(database: Database, number: int, *mails: tuple[int, int]) -> list[str | None]:
    """What holds each back; None for those that may leave."""
    return [why for _, why in await shared_health.use_quota(database, number, mails)]


async def granted(
    database: Database, number: int, lane: int, count: int, recipients: int = 1
) -> int:
    return (await asked(database, number, *[(lane, recipients)] * count)).count(None)


async def later(database: Database, seconds: float) -> None:
    """Let time pass, by making what was used up older."""
    await database.execute(
        """UPDATE pillarbox.rates SET second_at = second_at - $1 * interval '1 second',
             hour_at = hour_at - $1 * interval '1 second', day_at = day_at - $1 * interval '1 second'""",
        seconds,
    )


@pytest.mark.parametrize("setting", SECONDS)
async def test_no_time_sees_more_than_its_limit(database: Database, setting: str) -> None:
    number = await provider(database, **{setting: 50})
    began = time.monotonic()
    answers = await shared_health.use_quota(database, number, [(URGENT, 1)] * 100)
    assert [why for _, why in answers] == [None] * 5 + [setting] * 95  # a tenth at once
    assert answers[5][0] == pytest.approx(SECONDS[setting] / 50)
    left = 5
    for _ in range(20):
        await later(database, SECONDS[setting] / 20)
        left += await granted(database, number, URGENT, 100)
    itself = (time.monotonic() - began) * 50 / SECONDS[setting]  # in the time that the test takes
    assert 50 <= left <= 56 + itself  # the limit and a tenth


async def test_processes_share_a_limit(database: Database) -> None:
    number = await provider(database, rate_per_hour=100)
    counts = await asyncio.gather(*(granted(database, number, URGENT, 10) for _ in range(5)))
    assert sum(counts) == 10


async def test_without_a_limit_everything_may_leave(database: Database) -> None:
    number = await provider(database, enabled=True)
    assert await granted(database, number, BULK, 100) == 100


async def test_of_a_days_rate_something_is_left_for_higher_lanes(database: Database) -> None:
    number = await provider(database, rate_per_day=1000)  # a hundred at once
    assert await granted(database, number, BULK, 200) == 70
    assert await granted(database, number, NORMAL, 200) == 20
    assert await granted(database, number, URGENT, 200) == 10


async def test_of_a_months_budget_something_is_left_for_higher_lanes(database: Database) -> None:
    """Password resets still leave when the newsletter has eaten the budget."""
    number = await provider(database, price_per_thousand=1, budget_per_month=1)
    assert await granted(database, number, BULK, 50, recipients=20) == 35
    assert await asked(database, number, (BULK, 1)) == ["budget_per_month"]
    assert await granted(database, number, NORMAL, 300) == 200
    assert await granted(database, number, URGENT, 300) == 100
    [(wait, _)] = await shared_health.use_quota(database, number, [(URGENT, 1)])
    assert 0 < wait <= 31 * 86400
    assert await shared_health.list_budgets(database) == [(number, "relay", 1.0)]


async def test_the_reserves_are_the_providers_own(database: Database) -> None:
    number = await provider(
        database, price_per_thousand=1, budget_per_month=1, reserve_urgent=50, reserve_normal=0
    )
    assert await granted(database, number, BULK, 1000) == 500
    assert await granted(database, number, NORMAL, 1000) == 0
    assert await granted(database, number, URGENT, 1000) == 500


async def test_a_new_month_has_its_own_budget(database: Database) -> None:
    number = await provider(database, price_per_thousand=1000, budget_per_month=10)
    assert await granted(database, number, URGENT, 50) == 10
    await database.execute(
        "UPDATE pillarbox.provider_spending SET month = month - interval '1 month'"
    )
    assert await granted(database, number, URGENT, 50) == 10


async def test_what_costs_but_has_no_budget_is_counted(database: Database) -> None:
    number = await provider(database, price_per_thousand=0.5)
    assert await granted(database, number, BULK, 30) == 30
    assert await database.fetchval("SELECT mails FROM pillarbox.provider_spending") == 30
