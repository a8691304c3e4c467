"""A failed SMTP call moves the next retry."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.harness import add_smtp, attempts, deliveries, enqueue, eventually, settled, working

from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Faults


@pytest.mark.req("REQ-QUEUE-E004")
async def test_failed_smtp_call_updates_next_retry(database: Database, database_url: str) -> None:
    """A 4xx puts the mail back to `queued`, one attempt further, attempts² minutes later, with the redacted reason."""
    async with SmtpServer(Faults(rcpt="451 4.3.0 <reader@mail.example> try again later")) as server:
        await add_smtp(database, server)
        async with working(database_url, worker_poll_interval="100ms"):
            message_id = await enqueue(database, "reader@mail.example")
            for made in (1, 2, 3):
                [row] = await eventually(lambda made=made: _attempted(database, message_id, made))
                assert row["state"] == "queued"
                assert row["retry"] == "quadratic"
                now = await database.fetchval("SELECT now()")
                wait = row["next_attempt_at"] - now
                assert wait <= timedelta(minutes=made**2)
                *_, last = await attempts(database, message_id)
                assert row["next_attempt_at"] - last["ended_at"] >= timedelta(minutes=made**2)
                await database.execute("UPDATE pillarbox.deliveries SET next_attempt_at = now()")
    rows = await attempts(database, message_id)
    assert {row["verdict"] for row in rows} == {"deferred"}
    assert "451" in str(rows[0]["code"])
    assert "reader@" not in rows[0]["reply"]
    assert "<redacted:" in rows[0]["reply"]


async def _attempted(database: Database, message_id: object, made: int) -> list[object] | None:
    rows = await deliveries(database, message_id)
    return rows if rows[0]["attempts"] >= made and rows[0]["state"] == "queued" else None


@pytest.mark.req("REQ-QUEUE-E006")
@pytest.mark.req("REQ-QUEUE-S001")
async def test_the_last_attempt_is_final(database: Database, database_url: str) -> None:
    async with SmtpServer(Faults(mail="421 4.3.2 going down")) as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(database, max_attempts=1)
            [row] = await settled(database, message_id, "failed")
    assert row["reason"] == "unavailable"


@pytest.mark.req("REQ-QUEUE-N002")
async def test_permanent_failure_is_not_retried(database: Database, database_url: str) -> None:
    async with SmtpServer(Faults(rcpt="550 5.1.1 no such user")) as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(database)
            [row] = await settled(database, message_id, "failed")
    assert (row["attempts"], row["reason"]) == (1, "invalid_recipient")
