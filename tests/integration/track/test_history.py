"""What people are shown of a mail's history: states with their times, attempts with their numbers, the log."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pillarbox.store import feedback, providers, shared_health
from pillarbox.store.database import Database
from pillarbox.store.feedback import FeedbackRow
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Faults
from tests.harness import add_smtp, attempts, enqueue, eventually, settled, working
from tests.integration.api.api_helpers import Api
from tests.integration.cli.cli_helpers import Cli

EARLIER = timedelta(minutes=35)
REASON = "invalid_recipient"


async def sent_earlier(database: Database, message_id: UUID) -> None:
    """As if everything so far had happened a while ago."""
    for table, columns in (("messages", ("created_at",)), ("attempts", ("started_at", "ended_at")),
                           ("deliveries", ("claimed_at", "settled_at", "next_attempt_at"))):  # fmt: skip
        sets = ", ".join(f"{one} = {one} - $2::interval" for one in columns)
        key = "id" if table == "messages" else "message_id"
        await database.execute(
            f"UPDATE pillarbox.{table} SET {sets} WHERE {key} = $1", message_id, EARLIER
        )


async def tell(
    database: Database, provider: int, message_id: UUID, kind: str, at: datetime
) -> None:
    data = json.dumps({"reason": REASON})
    row = FeedbackRow(
        provider,
        f"{kind}-{at}",
        None,
        message_id,
        0,
        None,
        None,
        kind,
        at,
        False,
        REASON,
        data,
        None,
    )
    assert (await feedback.apply_feedback(database, [row], None))[0] is not None


async def test_a_bounce_is_told_at_its_time_and_the_sending_at_its_own(
    api: Api, database_url: str
) -> None:
    database = api.database
    async with SmtpServer() as server:
        number = await add_smtp(database, server)
        async with working(database_url):
            message_id = UUID(await api.shop.sent_id())
            await settled(database, message_id, "sent", seconds=60)
    await sent_earlier(database, message_id)
    [before] = await database.fetch("SELECT updated_at FROM pillarbox.delivery_logs")
    heard = datetime.now(UTC)
    await tell(database, number, message_id, "bounced", heard)

    [delivery] = (await api.shop.get(f"/messages/{message_id}")).json["deliveries"]
    assert [one["state"] for one in delivery["history"]] == [
        "queued",
        "processing",
        "sent",
        "bounced",
    ]
    times = [datetime.fromisoformat(one["at"]) for one in delivery["history"]]
    assert times == sorted(times)
    assert times[2] < heard - EARLIER / 2
    assert abs(times[3] - heard) < timedelta(milliseconds=1)
    assert delivery["history"][3]["reason"] == REASON

    shown = (await asyncio.to_thread(Cli(database_url), "queue", "show", str(message_id))).out
    lines = {
        word: line
        for line in shown.splitlines()
        for word in ("sent (delivery 0)", "bounced (delivery 0)")
        if word in line
    }
    assert f"{times[2]:%H:%M:%S}" in lines["sent (delivery 0)"]
    assert f"{times[3]:%H:%M:%S}" in lines["bounced (delivery 0)"]
    [log] = await database.fetch("SELECT status, updated_at FROM pillarbox.delivery_logs")
    assert (log["status"], log["updated_at"] >= heard) == ("bounced", True)
    assert before["updated_at"] < log["updated_at"]


async def test_attempts_are_numbered_from_one(database: Database, database_url: str) -> None:
    """Not by the claims, which count all mails of the installation. Each provider that was tried is an attempt."""
    await database.execute("SELECT setval('pillarbox.claim_seq', 887)")
    async with SmtpServer() as gone:
        await add_smtp(database, gone, "first")
    async with SmtpServer(Faults(body=["451 4.3.0 later", "250 2.0.0 ok"])) as server:
        await add_smtp(database, server, "second")
        async with working(database_url):
            message_id = await enqueue(database)
            await eventually(lambda: _tries(database, message_id, 2), 60)
            await database.execute(
                "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state = 'queued'"
            )
            await settled(database, message_id, "sent", seconds=60)
    assert {row["claim"] > 887 for row in await attempts(database, message_id)} == {True}
    shown = (await asyncio.to_thread(Cli(database_url), "queue", "show", str(message_id))).out
    numbered = re.findall(r"attempt (\d+) via (\w+)", shown)
    assert numbered[:2] == [("1", "first"), ("2", "second")]
    assert [int(number) for number, _ in numbered] == list(range(1, len(numbered) + 1))
    assert numbered[-1][1] == "second"


async def _tries(database: Database, message_id: UUID, count: int) -> bool:
    return len(await attempts(database, message_id)) >= count


async def test_the_log_is_found_by_its_message(database: Database) -> None:
    """With the column as text, which it is, and however many messages there are."""
    await database.execute("SELECT pillarbox.enqueue(sender => 'a@b.example', \"to\" => '{c@d.example}', text => 'x')"
                           " FROM generate_series(1, 3000)")  # fmt: skip
    message_id = await enqueue(database)
    for table in ("messages", "deliveries", "attempts", "events", "feedback"):
        await database.execute(f"ANALYZE pillarbox.{table}")
    query = "SELECT * FROM pillarbox.delivery_logs WHERE message_id = $1"
    assert len(await database.fetch(query, str(message_id))) == 1
    plan = "\n".join(row[0] for row in await database.fetch(f"EXPLAIN {query}", str(message_id)))
    assert "messages_as_text" in plan
    for table in ("messages", "deliveries"):
        assert f"Seq Scan on {table}" not in plan


async def test_updated_at_moves_with_what_people_do(database: Database, database_url: str) -> None:
    message_id = await enqueue(database, send_at=datetime.now(UTC) + timedelta(hours=1))
    seen = [await _updated(database)]
    await database.execute(
        "INSERT INTO pillarbox.events (message_id, n, kind, data) VALUES ($1, 0, 'rescheduled', '{}')",
        message_id,
    )
    seen.append(await _updated(database))
    await asyncio.to_thread(Cli(database_url), "queue", "cancel", str(message_id))
    seen.append(await _updated(database))
    assert seen == sorted(set(seen))


async def _updated(database: Database) -> datetime:
    found: datetime = await database.fetchval("SELECT updated_at FROM pillarbox.delivery_logs")
    return found


async def test_a_provider_that_is_enabled_again_is_shown_as_it_is(
    database: Database, database_url: str
) -> None:
    """Its breaker was open when it was disabled: it is tried at once, and closes while mail flows."""
    async with SmtpServer() as server:
        number = await add_smtp(database, server)
        await shared_health.change_state(
            database, number, "open", "credential", 6, 3600.0, "elsewhere"
        )
        await providers.enable_provider(database, "relay", False)
        assert await _circuit(database) == "open"
        async with working(database_url):
            await providers.enable_provider(database, "relay", True)
            assert await _circuit(database) == "half_open"
            ids = [await enqueue(database) for _ in range(5)]
            for message_id in ids:
                await settled(database, message_id, "sent", seconds=60)
            await eventually(lambda: _is_closed(database), 60)
    kinds = await database.fetch("SELECT kind FROM pillarbox.provider_events ORDER BY id")
    assert [row["kind"] for row in kinds] == ["opened", "half_opened", "closed"]


async def test_enabling_what_is_enabled_changes_nothing(database: Database) -> None:
    async with SmtpServer() as server:
        number = await add_smtp(database, server)
    await shared_health.change_state(database, number, "open", "credential", 6, 3600.0, "elsewhere")
    await providers.enable_provider(database, "relay", True)
    assert await _circuit(database) == "open"


async def _circuit(database: Database) -> str:
    [one] = await shared_health.list_shared_health(database)
    return one.state


async def _is_closed(database: Database) -> bool:
    return await _circuit(database) == "closed"
