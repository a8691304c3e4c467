"""A provider fails in the midst of one mail: who has it does not get it again, who has it not gets it elsewhere."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.acceptance.fleet import fleet
from tests.harness import deliveries, enqueue, eventually

from pillarbox.store import shared_health
from pillarbox.store.database import Database
from pillarbox.testing.twins import Dials

PEOPLE = [f"reader{n}@mail.example" for n in range(100)]


@pytest.mark.req("REQ-QUEUE-O002")
@pytest.mark.parametrize("behind", ["smtp", None])
async def test_a_breaker_that_opens_between_two_calls_for_one_mail_doubles_nothing(
    database: Database, database_url: str, behind: str | None
) -> None:
    """Another process finds the provider dead while it thinks about the first fifty, which it then takes."""
    async with fleet(database, database_url, *filter(None, ("ses", behind))) as one:
        one["ses"].dials = Dials(latency=1.5)
        message_id = await enqueue(database, *PEOPLE)
        await one["ses"].wait_for(lambda: len(one["ses"].mails) == 1)
        await shared_health.change_state(
            database, one.ids["ses"], "open", "unavailable", 1, 3600.0, "another"
        )

        async def half() -> bool:
            rows = await deliveries(database, message_id)
            return (
                all(row["state"] == "sent" for row in rows[:50])
                and rows[50]["state"] != "processing"
            )

        await eventually(half)
        one["ses"].dials = Dials()
        await shared_health.change_state(
            database, one.ids["ses"], "half_open", None, 1, 0.0, "another"
        )
        await one.due()

        async def whole() -> bool:
            await one.due()
            return all(row["state"] == "sent" for row in await deliveries(database, message_id))

        await eventually(whole)
        got = Counter(
            to for mail in [*one["ses"].mails, *one.relay.mails] for to in mail.recipients
        )
    assert got == Counter(PEOPLE)
