"""What became of a mail can be read back: each state, each answer of a provider, the end of one that was given up."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pillarbox.model.retry import ESP
from pillarbox.store import providers, tenants
from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Extensions, Faults
from tests.harness import add_smtp, attempts, deliveries, enqueue, eventually, settled, working
from tests.integration.api.api_helpers import Api

# --- states


async def delivery(api: Api, message_id: str) -> Any:
    """The only delivery of a message, as the API tells it."""
    (one,) = (await api.shop.get(f"/messages/{message_id}")).json["deliveries"]
    return one


async def due(database: Database) -> None:
    await database.execute(
        "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state = 'queued'"
    )


@pytest.mark.req("REQ-QUEUE-U002")
@pytest.mark.parametrize(("last", "end"), [("250 2.0.0 ok", "sent"), ("554 5.7.1 no", "failed")])
async def test_each_state_is_told_and_stays_readable(
    api: Api, database_url: str, last: str, end: str
) -> None:
    seen: list[str] = []

    async def look(session: object, argument: object) -> None:
        seen.append((await delivery(api, message_id))["state"])

    send_at = datetime.now(UTC) + timedelta(hours=1)
    message_id = await api.shop.sent_id(send_at=send_at.isoformat())
    await look(None, None)
    back = {"send_at": datetime.now(UTC).isoformat()}
    assert (await api.shop.post(f"/messages/{message_id}/reschedule", back)).status == 200
    await look(None, None)
    async with SmtpServer(Faults(data=look, body=["451 4.3.0 later", last])) as server:
        await add_smtp(api.database, server)
        async with working(database_url, worker_poll_interval="100ms"):
            await eventually(lambda: _deferred(api, message_id))
            await look(None, None)
            await due(api.database)
            await settled(api.database, UUID(message_id), end)
            await look(None, None)
    assert seen == ["pending", "queued", "processing", "queued", "processing", end]

    story = (await api.shop.get(f"/messages/{message_id}")).json
    told = await delivery(api, message_id)
    first, second = told["attempts"]
    assert [one["kind"] for one in story["events"]] == ["rescheduled"]
    assert [one["verdict"] for one in (first, second)] == [
        "deferred",
        "accepted" if end == "sent" else "rejected",
    ]
    times = [story["created_at"], story["events"][0]["at"]]
    times += [one[when] for one in (first, second) for when in ("started_at", "ended_at")]
    assert times == sorted(times, key=datetime.fromisoformat)
    assert told["settled_at"] is not None


async def _deferred(api: Api, message_id: str) -> bool:
    told = await delivery(api, message_id)
    return told["state"] == "queued" and told["attempts_made"] == 1


# --- what providers say


@pytest.mark.req("REQ-QUEUE-E003")
async def test_a_sent_mail_has_the_providers_name_for_it(api: Api, database_url: str) -> None:
    async with SmtpServer(Faults(body="250 2.0.0 Ok: queued as 4B1C2D")) as server:
        await add_smtp(api.database, server)
        async with working(database_url):
            message_id = await api.shop.sent_id()
            await settled(api.database, UUID(message_id), "sent")
    told = await delivery(api, message_id)
    (attempt,) = told["attempts"]
    assert (attempt["provider"], attempt["provider_message_id"], attempt["code"]) == (
        "relay",
        "4B1C2D",
        250,
    )
    assert datetime.fromisoformat(attempt["ended_at"]) <= datetime.fromisoformat(told["settled_at"])
    row = await api.database.fetchrow(
        "SELECT status, provider, provider_message_id FROM pillarbox.delivery_logs"
    )
    assert tuple(row or ()) == ("sent", "relay", "4B1C2D")


@pytest.mark.req("REQ-QUEUE-U005")
async def test_an_answer_is_kept_and_logged_under_the_mails_id(
    database: Database, database_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    faults = Faults(recipients={"no@x.example": "550 5.1.1 <no@x.example> unknown"})
    async with SmtpServer(faults) as server:
        await add_smtp(database, server)
        async with working(database_url, log_level="info"):
            message_id = await enqueue(database, "yes@x.example", "no@x.example")
            await settled(database, message_id, "sent", "failed")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    logged = [line for line in lines if line["event"] == "attempt settled"]
    kept = await attempts(database, message_id)
    assert [(one["message"], one["delivery"], one["attempt"]) for one in logged] == [
        (str(message_id), row["n"], row["claim"]) for row in kept
    ]
    assert [(one["provider"], one["outcome"], one["reason"]) for one in logged] == [
        ("relay", "accepted", None),
        ("relay", "rejected", "invalid_recipient"),
    ]
    assert [row["code"] for row in kept] == [250, 550]
    said = await database.fetchrow(
        "SELECT claim, lines FROM pillarbox.conversations WHERE message_id = $1", message_id
    )
    assert said
    assert said["claim"] == kept[1]["claim"]
    assert "550 5.1.1" in said["lines"]
    assert "no@x.example" not in said["lines"] + kept[1]["reply"]


@pytest.mark.req("REQ-QUEUE-S006")
async def test_a_mail_too_big_for_the_server_fails_at_once(
    database: Database, database_url: str
) -> None:
    async with SmtpServer(extensions=Extensions(size=2000)) as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(database, text="x" * 5000)
            [row] = await settled(database, message_id, "failed")
    assert (row["reason"], row["attempts"]) == ("too_big", 1)
    assert server.mails == []


# --- dead letters


@pytest.mark.req("REQ-QUEUE-E004")
@pytest.mark.req("REQ-QUEUE-E006")
@pytest.mark.req("REQ-QUEUE-S001")
async def test_after_five_retries_a_mail_is_a_dead_letter_with_its_history(
    api: Api, database_url: str
) -> None:
    retries = len(ESP.schedule())
    async with SmtpServer(Faults(rcpt="451 4.3.0 <ada@mail.example> later")) as server:
        settings = {"host": server.host, "port": server.port, "tls": "none"}
        await providers.add_provider(
            api.database, lambda: None, "relay", "smtp", settings, retry="esp"
        )
        async with working(database_url, worker_poll_interval="100ms"):
            message_id = await api.shop.sent_id()
            for made, wait in enumerate(ESP.schedule(), 1):
                seconds = await eventually(lambda made=made: _waits(api.database, message_id, made))
                assert 0 < seconds <= wait
                await due(api.database)
            await settled(api.database, UUID(message_id), "failed")
    assert retries == 5
    (dead,) = (await api.shop.get("/messages?state=failed")).json["messages"]
    assert dead["id"] == message_id
    told = await delivery(api, message_id)
    assert (told["reason"], told["next_attempt_at"]) == ("unavailable", None)
    assert [one["number"] for one in told["attempts"]] == list(range(1, retries + 2))
    assert {(one["verdict"], one["code"]) for one in told["attempts"]} == {("deferred", 451)}
    assert all("4.3.0" in one["reply"] and "ada@" not in one["reply"] for one in told["attempts"])
    assert (
        await api.shop.get(f"/messages/{message_id}/raw")
    ).status == 200  # the mail itself is still there


async def _waits(database: Database, message_id: str, made: int) -> float | None:
    """How long a delivery still waits, once so many attempts were made."""
    [row] = await deliveries(database, UUID(message_id))
    if (row["attempts"], row["state"]) != (made, "queued"):
        return None
    now = await database.fetchval("SELECT now()")
    return float((row["next_attempt_at"] - now).total_seconds())


# --- depth


def value(metrics: Any, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"pillarbox_{name}", labels)


@pytest.mark.req("REQ-QUEUE-S003")
async def test_the_alert_rises_and_falls_with_the_queue(
    database: Database, database_url: str
) -> None:
    for _ in range(4):
        await enqueue(database)
    async with (
        working(database_url, depth_alert=3, worker_poll_interval="100ms") as app,
        SmtpServer() as server,
    ):

        async def alert_is(wanted: float) -> bool:
            return value(app.metrics, "depth_alert") == wanted

        await eventually(lambda: alert_is(1))
        await add_smtp(database, server)
        await eventually(lambda: alert_is(0))
        assert len(server.mails) >= 1


@pytest.mark.req("REQ-QUEUE-O004")
async def test_depth_and_rate_are_measured_by_tenant(database: Database, database_url: str) -> None:
    await tenants.add_tenant(database, "shop")
    for tenant in ("default", "shop", "shop", "shop"):
        await enqueue(database, tenant=tenant)
    async with working(database_url, worker_poll_interval="100ms") as app, SmtpServer() as server:

        async def waiting(shop: float, default: float) -> bool:
            return [
                value(app.metrics, "tenant_waiting", tenant=one) for one in ("shop", "default")
            ] == [shop, default]

        async def sent(shop: float, default: float) -> bool:
            counts = [
                value(app.metrics, "tenant_settled_total", tenant=one, state="sent")
                for one in ("shop", "default")
            ]
            return counts == [shop, default]

        await eventually(lambda: waiting(3, 1))
        await add_smtp(database, server)
        await eventually(lambda: sent(3, 1))
        await eventually(lambda: waiting(0, 0))
