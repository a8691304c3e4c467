"""How long mails wait for a provider: what counts, what does not, and how it ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from pillarbox.deliver import housekeeping
from pillarbox.store import provider_waits, providers, routes
from pillarbox.store.database import Database
from pillarbox.store.provider_waits import SQL, MaxWaitEnforcer, report
from pillarbox.testing import SmtpServer
from tests.harness import (
    add_smtp,
    attempts,
    deliveries,
    enqueue,
    eventually,
    no_keys,
    settled,
    working,
)
from tests.integration.api.api_helpers import Api
from tests.integration.cli.cli_helpers import Cli


async def begin_outage(database: Database, ago: str = "6 days") -> None:
    """Workers run and find no provider for any mail, since then."""
    await report(database, False)
    await database.execute(
        "UPDATE pillarbox.installation SET no_provider_since = now() - $1::text::interval", ago
    )


async def age(database: Database, message_id: UUID, ago: str = "6 days") -> None:
    """As if a delivery was due, and marked as waiting if it is, since then."""
    await database.execute(
        "UPDATE pillarbox.deliveries SET next_attempt_at = now() - $2::text::interval, waiting_since ="
        " CASE WHEN waiting_since IS NOT NULL THEN now() - $2::text::interval END WHERE message_id = $1",
        message_id, ago,
    )  # fmt: skip


async def give_up(database: Database) -> int:
    return (await MaxWaitEnforcer(database).give_up(1000)).total()


async def outcome(database: Database, message_id: UUID) -> tuple[str, str | None]:
    [row] = await deliveries(database, message_id)
    return row["state"], row["reason"]


# --- all providers are out


async def test_a_mail_that_no_worker_finds_a_provider_for_fails_in_the_end(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a running worker, from beginning to end; other classes and messages with an expiry go on waiting."""
    monkeypatch.setattr(provider_waits, "REPORT_INTERVAL", 0.05)
    monkeypatch.setattr(housekeeping, "GIVE_UP_INTERVAL", 0.05)
    await database.execute(
        "UPDATE pillarbox.classes SET max_wait = CASE name WHEN 'transactional' THEN interval '1 s' END"
    )
    async with working(database_url):
        ends = await enqueue(database)
        never = await enqueue(database, **{"class": "bulk"})
        later = await enqueue(database, expires_at=datetime.now(UTC) + timedelta(days=1))
        await settled(database, ends, "failed", seconds=60)
    assert await outcome(database, ends) == ("failed", "no_provider")
    assert await outcome(database, never) == await outcome(database, later) == ("queued", None)
    assert await attempts(database, ends) == []
    [event] = await database.fetch(
        "SELECT kind, data FROM pillarbox.events WHERE message_id = $1", ends
    )
    assert event["kind"] == "gave_up"


@pytest.mark.parametrize(("due", "ends"), [("6 days", True), ("4 days", False)])
async def test_time_before_a_mail_was_due_does_not_count(
    database: Database, due: str, ends: bool
) -> None:
    message_id = await enqueue(database)
    await age(database, message_id, due)
    await begin_outage(database)
    assert await give_up(database) == int(ends)


async def test_time_before_the_outage_does_not_count(database: Database) -> None:
    """Also mails that wait when this version is installed: no worker has said before that it finds no provider."""
    message_id = await enqueue(database)
    await age(database, message_id, "30 days")
    assert await give_up(database) == 0
    await begin_outage(database, "4 days")
    assert await give_up(database) == 0


async def test_scheduled_mails_do_not_wait_for_a_provider(database: Database) -> None:
    await enqueue(database, send_at=datetime.now(UTC) + timedelta(days=7))
    await begin_outage(database)
    assert await give_up(database) == 0


async def test_an_attempt_begins_the_time_anew(database: Database) -> None:
    """A deferred mail counts from when it was due again."""
    message_id = await enqueue(database)
    await database.execute(
        "UPDATE pillarbox.deliveries SET attempts = 1, next_attempt_at = now() - interval '4 days'"
    )
    await begin_outage(database)
    assert await give_up(database) == 0
    await age(database, message_id)
    assert await give_up(database) == 1
    assert await outcome(database, message_id) == ("failed", "no_provider")


async def test_a_mail_whose_expiry_passes_in_an_outage_expires(database: Database) -> None:
    message_id = await enqueue(database, expires_at=datetime.now(UTC) + timedelta(days=1))
    await begin_outage(database)
    await age(database, message_id)
    assert await give_up(database) == 0
    await database.execute("UPDATE pillarbox.messages SET expires_at = now() - interval '1 second'")
    assert await give_up(database) == 1
    assert await outcome(database, message_id) == ("failed", "expired")


async def test_the_body_of_a_secret_mail_goes_with_its_end(database: Database) -> None:
    message_id = await enqueue(database, **{"class": "lifecycle"})
    await begin_outage(database)
    await age(database, message_id)
    assert await give_up(database) == 1
    assert await database.fetchval("SELECT count(*) FROM pillarbox.contents") == 0


async def test_a_mail_shows_that_no_provider_can_be_used(api: Api, database_url: str) -> None:
    """Although nothing was written to it: it is not even claimed."""
    message_id = await api.shop.sent_id()
    await report(api.database, False)
    [delivery] = (await api.shop.get(f"/messages/{message_id}")).json["deliveries"]
    assert (delivery["state"], delivery["waits_for"], delivery["expected_at"]) == (
        "queued",
        "provider",
        None,
    )
    shown = (await asyncio.to_thread(Cli(database_url), "queue", "show", message_id)).out
    assert "no provider of its route can be used since" in shown
    await report(api.database, True)
    [delivery] = (await api.shop.get(f"/messages/{message_id}")).json["deliveries"]
    assert delivery["waits_for"] is None


# --- time without workers


async def test_time_without_a_running_worker_does_not_count(database: Database) -> None:
    message_id = await enqueue(database)
    await begin_outage(database)
    await age(database, message_id)
    await database.execute(
        "INSERT INTO pillarbox.worker_gaps VALUES (now() - interval '5 days', now() - interval '3 days')"
    )
    assert await give_up(database) == 0
    await database.execute("UPDATE pillarbox.classes SET max_wait = interval '3 days'")
    assert await give_up(database) == 1


async def test_workers_that_are_gone_now_do_not_wait_either(database: Database) -> None:
    """Their silence is written down only when one runs again; a process without a worker may end mails meanwhile."""
    message_id = await enqueue(database)
    await begin_outage(database)
    await age(database, message_id)
    await database.execute(
        "UPDATE pillarbox.installation SET worked_until = now() - interval '2 days'"
    )
    assert await give_up(database) == 0
    await report(database, False)
    assert await give_up(database) == 0
    await database.execute("UPDATE pillarbox.classes SET max_wait = interval '3 days'")
    assert await give_up(database) == 1


async def test_a_silence_of_all_workers_is_written_down(database: Database) -> None:
    await report(database, False)
    await report(database, False)
    assert await database.fetchval("SELECT count(*) FROM pillarbox.worker_gaps") == 0
    await database.execute(
        "UPDATE pillarbox.installation SET worked_until = now() - interval '2 hours'"
    )
    await report(database, None)
    assert await database.fetchval(
        "SELECT sum(ended - began) > interval '119 minutes' FROM pillarbox.worker_gaps"
    )


async def test_one_usable_provider_ends_the_outage(database: Database) -> None:
    query = "SELECT no_provider_since FROM pillarbox.installation"
    await report(database, False)
    since = await database.fetchval(query)
    await report(database, False)
    await report(database, None)  # a worker that has just begun does not know
    assert await database.fetchval(query) == since
    await report(database, True)
    assert await database.fetchval(query) is None


# --- the providers of its own route are out


@pytest.mark.parametrize("order", ["fifo", "strict"])
async def test_a_mail_whose_route_has_no_provider_is_marked_and_fails_in_the_end(
    database: Database, database_url: str, order: str
) -> None:
    """While others leave; an attempt takes the mark away."""
    await database.execute("UPDATE pillarbox.tenants SET order_mode = $1", order)
    await database.execute("UPDATE pillarbox.lanes SET order_mode = $1", order)
    await providers.add_provider(database, no_keys, "keep", "capture", {})
    async with SmtpServer() as server:
        await add_smtp(database, server)
        await routes.add_route(database, "out", None, ["relay"])
        await providers.enable_provider(database, "relay", False)
        first, second = await enqueue(database), await enqueue(database, priority="urgent")

        async def marked() -> bool:
            query = "SELECT count(*) FROM pillarbox.deliveries WHERE waiting_since IS NOT NULL AND reason = 'no_provider'"
            return await database.fetchval(query) == 2

        async with working(database_url):
            await eventually(marked, 60)
        assert await give_up(database) == 0
        shown = (await asyncio.to_thread(Cli(database_url), "queue", "show", str(first))).out
        assert "no provider of its route can be used since" in shown
        assert "it fails after 5d without one" in shown
        await age(database, first)
        assert await give_up(database) == 1
        assert await outcome(database, first) == ("failed", "no_provider")
        await providers.enable_provider(database, "relay", True)
        await database.execute("UPDATE pillarbox.deliveries SET next_attempt_at = now()")
        async with working(database_url):
            [row] = await settled(database, second, "sent", seconds=60)
        assert row["waiting_since"] is None


async def test_a_walk_sees_everything_in_bounded_steps(database: Database) -> None:
    ids = [await enqueue(database) for _ in range(5)]
    await database.execute(
        "UPDATE pillarbox.deliveries SET attempts = 1 WHERE message_id = ANY ($1)", ids[3:]
    )
    for message_id in ids:
        await age(database, message_id)
    await database.execute(
        "UPDATE pillarbox.deliveries SET waiting_since = next_attempt_at WHERE message_id = $1",
        ids[0],
    )
    await begin_outage(database)
    patience = MaxWaitEnforcer(database)
    counts = [(await patience.give_up(1)).total() for _ in range(6)]
    assert max(counts) <= 3
    assert sum(counts) == 5


async def test_walks_use_their_indexes(database: Database) -> None:
    """However many wait, and whatever the history: the work of a step is that of its rows."""
    await database.execute("SELECT pillarbox.enqueue(sender => 'a@b.example', \"to\" => '{c@d.example}', text => 'x')"
                           " FROM generate_series(1, 3000)")  # fmt: skip
    await database.execute("UPDATE pillarbox.deliveries SET attempts = 1 WHERE seq % 3 = 0")
    await database.execute(
        "UPDATE pillarbox.deliveries SET waiting_since = now() - interval '9 days' WHERE seq % 5 = 0"
    )
    await database.execute("ANALYZE pillarbox.deliveries")
    values = {
        "marked": provider_waits.MARKED,
        "fresh": provider_waits.FRESH,
        "deferred": provider_waits.DEFERRED,
    }
    for name, index in (
        ("marked", "deliveries_waiting"),
        ("fresh", "deliveries_ready"),
        ("deferred", "deliveries_deferred"),
    ):
        statement, *arguments = getattr(SQL, name)(**values[name], limit=100)
        rows = await database.fetch(f"EXPLAIN {statement}", *arguments)
        plan = "\n".join(row[0] for row in rows)
        assert index in plan, plan
        assert "Seq Scan on deliveries" not in plan


def test_the_setting_of_a_class(cli: Cli) -> None:
    assert {one["max_wait"] for one in cli.json("class", "list")} == {5 * 86400.0}
    cli("class", "set", "codes", "--max-wait", "15m")
    cli("class", "set", "bulk", "--max-wait", "never")
    cli("class", "set", "bulk", "--keep", "2d")
    waits_by_class = {one["name"]: one["max_wait"] for one in cli.json("class", "list")}
    assert (waits_by_class["codes"], waits_by_class["bulk"]) == (900.0, None)
    assert "forever" in cli("class", "list").out
    assert "more than nothing" in cli("class", "set", "codes", "--max-wait", "0s", code=2).err
