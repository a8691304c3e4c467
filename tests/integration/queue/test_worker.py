"""The worker over real PostgreSQL and real SMTP: what becomes of mails, whatever the server does."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pillarbox.app import work
from pillarbox.queue.ledger import Ledger
from pillarbox.queue.ready_queues.postgres import TRAILING_LOOKS
from pillarbox.store.database import Database
from pillarbox.telemetry.metrics import WAKEUPS
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Drop, Extensions, Faults, Hang
from tests import PATIENCE
from tests.harness import (
    add_smtp,
    attempts,
    deliveries,
    enqueue,
    eventually,
    opened,
    settled,
    working,
)


@pytest.mark.req("REQ-QUEUE-E005")
async def test_each_recipient_has_its_own_outcome(database: Database, database_url: str) -> None:
    """Of three recipients one is accepted, one deferred, one refused; the first is never sent again."""
    faults = Faults(
        recipients={"later@x.example": ["451 4.2.2 full"], "never@x.example": "550 5.1.1 unknown"}
    )
    async with SmtpServer(faults) as server:
        await add_smtp(database, server)
        async with working(database_url, worker_poll_interval="100ms"):
            message_id = await enqueue(
                database, "now@x.example", "later@x.example", "never@x.example"
            )
            rows = await settled(database, message_id, "sent", "queued", "failed")
            assert [row["reason"] for row in rows] == [None, "mailbox_full", "invalid_recipient"]
            assert len(server.mails) == 1  # all due recipients went in one transaction
            await database.execute(
                "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state = 'queued'"
            )
            await settled(database, message_id, "sent", "sent", "failed")
    assert [mail.recipients for mail in server.mails] == [("now@x.example",), ("later@x.example",)]
    assert server.mails[0].message["Message-ID"] == server.mails[1].message["Message-ID"]
    conversation = await database.fetchval(
        "SELECT lines FROM pillarbox.conversations WHERE message_id = $1", message_id
    )
    assert "550 5.1.1" in conversation
    assert "x.example>" not in conversation


@pytest.mark.req("REQ-QUEUE-N005")
async def test_a_lost_answer_is_unknown_and_sent_again(
    database: Database, database_url: str
) -> None:
    async with SmtpServer(Faults(body=[Drop(stored=True)])) as server:
        await add_smtp(database, server)
        async with working(database_url, worker_poll_interval="100ms"):
            message_id = await enqueue(database)
            [row] = await eventually(lambda: _deferred(database, message_id))
            assert (row["attempts"], row["reason"]) == (1, "lost")
            await database.execute("UPDATE pillarbox.deliveries SET next_attempt_at = now()")
            await settled(database, message_id, "sent")
    assert len(server.mails) == 2
    assert [row["verdict"] for row in await attempts(database, message_id)] == [
        "unknown",
        "accepted",
    ]
    assert (
        await database.fetchval(
            "SELECT kind FROM pillarbox.events WHERE message_id = $1", message_id
        )
        == "unknown"
    )


async def test_a_lost_answer_is_held_if_the_class_says_so(
    database: Database, database_url: str
) -> None:
    await database.execute(
        "INSERT INTO pillarbox.classes (name, unknown) VALUES ('payment', 'hold')"
    )
    async with SmtpServer(Faults(body=[Drop(stored=False)])) as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(database, **{"class": "payment"})
            await settled(database, message_id, "held")


async def test_an_expired_mail_is_dropped_with_that_reason(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        message_id = await enqueue(database)
        await database.execute(
            "UPDATE pillarbox.messages SET expires_at = now() - interval '1 second'"
        )
        async with working(database_url):
            [row] = await settled(database, message_id, "failed")
    assert row["reason"] == "expired"
    assert server.mails == []


async def test_a_deferral_never_waits_past_the_expiry(
    database: Database, database_url: str
) -> None:
    async with SmtpServer(Faults(mail="451 later")) as server:
        await add_smtp(database, server)
        soon = await database.fetchval("SELECT now() + interval '20 seconds'")
        async with working(database_url):
            message_id = await enqueue(database, expires_at=soon)
            [row] = await eventually(lambda: _deferred(database, message_id))
    assert row["next_attempt_at"] == soon


async def _deferred(database: Database, message_id: object) -> list[object] | None:
    rows = await deliveries(database, message_id)
    return rows if rows[0]["attempts"] == 1 and rows[0]["state"] == "queued" else None


async def test_purged_content_fails_clearly(database: Database, database_url: str) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        message_id = await enqueue(database)
        await database.execute("DELETE FROM pillarbox.contents")
        async with working(database_url):
            [row] = await settled(database, message_id, "failed")
    assert row["reason"] == "content_purged"


async def test_a_mail_that_brings_workers_down_is_not_tried_for_ever(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        message_id = await enqueue(database, max_attempts=3)
        await database.execute("UPDATE pillarbox.deliveries SET attempts = 3")
        async with working(database_url):
            [row] = await settled(database, message_id, "failed")
    assert row["reason"] == "exhausted"
    assert server.mails == []


@pytest.mark.req("REQ-QUEUE-O005")
async def test_scheduled_mails_leave_when_their_time_comes(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url):
            # In one transaction: its time stands still, however slow the machine is.
            async with database.transaction() as connection:
                now = await connection.fetchval("SELECT now()")
                message_id = await enqueue(connection, send_at=now + timedelta(seconds=1.5))
                state = "SELECT state FROM pillarbox.deliveries WHERE message_id = $1"
                assert await connection.fetchval(state, message_id) == "pending"
            [row] = await settled(database, message_id, "sent")
    assert row["settled_at"] - now >= timedelta(seconds=1.5)


async def test_polling_alone_is_enough(database: Database, database_url: str) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url, notify=False, worker_poll_interval="200ms"):
            message_id = await enqueue(database)
            await settled(database, message_id, "sent")
    assert len(server.mails) == 1


async def test_a_hint_wakes_a_worker_that_polls_rarely(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url, worker_poll_interval="1h"):
            for _ in range(3):
                message_id = await enqueue(database)
                await settled(database, message_id, "sent")


async def test_an_idle_worker_rests(database: Database, database_url: str) -> None:
    """It looks again a few times after a hint, and then not until the next reason."""
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url, worker_poll_interval="1h") as app:
            await settled(database, await enqueue(database), "sent")

            async def looked() -> dict[str, float]:
                return {
                    source: app.metrics.wakeups.labels(source)._value.get() for source in WAKEUPS
                }

            async def at_rest() -> bool:
                return (await looked())["trailing"] >= len(TRAILING_LOOKS)

            await eventually(at_rest)
            counts = await looked()
    assert counts["due"] == counts["poll"] == 0
    # A hint that arrives while the worker claims is not counted, and is followed by looks, too.
    assert counts["trailing"] <= 5 * len(TRAILING_LOOKS)
    assert counts["notify"] <= 5


async def test_a_terminated_listener_comes_back(database: Database, database_url: str) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url, worker_poll_interval="1h"):
            await settled(database, await enqueue(database), "sent")
            await database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            message_id = await eventually(lambda: _try_enqueue(database))
            await settled(database, message_id, "sent")


async def _try_enqueue(database: Database) -> object:
    try:
        return await enqueue(database)
    except Exception:
        return None


async def test_secret_bodies_are_dropped_once_settled(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url):
            secret = await enqueue(database, text="code 123456", **{"class": "lifecycle"})
            plain = await enqueue(database)
            await settled(database, secret, "sent")
            await settled(database, plain, "sent")

            async def only_plain() -> bool:
                return [
                    r[0] for r in await database.fetch("SELECT message_id FROM pillarbox.contents")
                ] == [plain]

            await eventually(only_plain)


async def test_without_a_provider_mails_wait(database: Database, database_url: str) -> None:
    message_id = await enqueue(database)
    async with SmtpServer() as server, working(database_url):
        assert (await deliveries(database, message_id))[0]["state"] == "queued"
        await add_smtp(database, server)
        await settled(database, message_id, "sent")


async def test_stopping_finishes_what_is_in_flight(database: Database, database_url: str) -> None:
    """A slow server keeps its mail through the stop; what was not started goes back untouched."""
    async with SmtpServer(Faults(delay={"body": 0.5})) as server:
        await add_smtp(database, server)
        ids = [await enqueue(database) for _ in range(3)]
        async with working(database_url, worker_concurrency=3):
            await server.wait_for(lambda: any(c.startswith("DATA") for c in server.commands))
        rows = [row for one in ids for row in await deliveries(database, one)]
    assert {row["state"] for row in rows} <= {"sent", "queued"}
    assert sum(row["state"] == "sent" for row in rows) == len(server.mails) >= 1
    assert (
        await database.fetchval("SELECT count(*) FROM pillarbox.workers WHERE reaped_at IS NULL")
        == 0
    )


async def test_stopping_past_the_deadline_leaves_unknowns_not_stuck_rows(
    database: Database, database_url: str
) -> None:
    async with SmtpServer(Faults(body=Hang())) as server:
        await add_smtp(database, server, connections=1)
        ids = [await enqueue(database) for _ in range(3)]
        async with working(database_url, worker_drain_timeout="100ms"):
            await server.wait_for(lambda: any(c.startswith("DATA") for c in server.commands))
            await eventually(lambda: _all_claimed(database))
        rows = [row for one in ids for row in await deliveries(database, one)]
    assert {row["state"] for row in rows} == {"queued"}
    verdicts = [
        row["verdict"] for row in await database.fetch("SELECT verdict FROM pillarbox.attempts")
    ]
    assert "unknown" in verdicts


async def _all_claimed(database: Database) -> bool:
    return bool(
        await database.fetchval("SELECT bool_and(state = 'processing') FROM pillarbox.deliveries")
    )


async def test_a_worker_outlives_its_lost_lease(database: Database, database_url: str) -> None:
    """Reaped while alive, it registers anew and goes on; nothing is stuck."""
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url, worker_lease="2s"):
            await settled(database, await enqueue(database), "sent")
            await database.execute("UPDATE pillarbox.workers SET reaped_at = now()")
            message_id = await enqueue(database)
            await settled(database, message_id, "sent")


async def test_a_new_lease_does_not_revive_a_lost_claim(
    database: Database, database_url: str
) -> None:
    """A mail in the midst of its envelope when the lease was lost is not sent under the next lease."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(session: object, argument: object) -> None:
        asked.set()
        await go_on.wait()

    async with SmtpServer(Faults(data=[slowly])) as server:
        await add_smtp(database, server)
        async with working(database_url, worker_lease="2s", reap_interval="1h"):
            message_id = await enqueue(database)
            await asyncio.wait_for(asked.wait(), PATIENCE)
            await database.execute("UPDATE pillarbox.workers SET reaped_at = now()")
            await Ledger(database).reap(10, 0.0)
            await database.execute(
                "UPDATE pillarbox.deliveries SET next_attempt_at = now() + interval '1 hour'"
            )
            await eventually(
                lambda: database.fetchval(
                    "SELECT true FROM pillarbox.workers WHERE reaped_at IS NULL"
                )
            )
            go_on.set()
            await server.wait_for(lambda: server.open_connections == 0)
            assert server.mails == []
            assert [row["verdict"] for row in await attempts(database, message_id)] == ["unknown"]


async def test_many_mails_through_a_difficult_server(database: Database, database_url: str) -> None:
    """Greylisting, refusals, full pipelines: every mail ends as it should, none twice."""
    refused = {f"r{k}@x.example": "550 5.1.1 no" for k in range(0, 200, 10)}
    deferred = {f"r{k}@x.example": ["451 4.7.1 greylisted"] for k in range(1, 200, 10)}
    faults = Faults(recipients=refused | deferred, mails_per_connection=7)
    async with SmtpServer(faults, Extensions(pipelining=True)) as server:
        await add_smtp(database, server)
        for k in range(200):
            await enqueue(database, f"r{k}@x.example")
        async with working(database_url, worker_poll_interval="100ms"):

            async def nearly_done() -> bool:
                await database.execute(
                    "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state = 'queued'"
                )
                return not await database.fetchval(
                    "SELECT count(*) FROM pillarbox.deliveries WHERE state IN ('queued', 'processing')"
                )

            await eventually(nearly_done, PATIENCE)
    got = sorted(mail.recipients[0] for mail in server.mails)
    assert got == sorted(f"r{k}@x.example" for k in range(200) if k % 10 != 0)
    assert server.violations == []


async def test_two_workers_in_one_process_share_the_queue(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        ids = [await enqueue(database, f"r{k}@x.example") for k in range(100)]
        async with opened(database_url) as one, opened(database_url) as two:
            stop = asyncio.Event()
            tasks = [asyncio.create_task(work(app, stop)) for app in (one, two)]
            for message_id in ids:
                await settled(database, message_id, "sent")
            stop.set()
            await asyncio.gather(*tasks)
    assert sorted(mail.recipients[0] for mail in server.mails) == sorted(
        f"r{k}@x.example" for k in range(100)
    )
