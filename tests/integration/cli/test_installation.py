"""What an installation sets up for itself: its first provider, its warnings, the view others read."""

from __future__ import annotations

import io
import json

import pytest

from pillarbox.cli.first_run import ensure_provider
from pillarbox.deliver.gauge import Gauge
from pillarbox.deliver.provider_pool import ProviderPool
from pillarbox.deliver.worker import Worker, WorkerLimits
from pillarbox.queue.dispatcher import Dispatcher
from pillarbox.queue.ledger import Ledger
from pillarbox.queue.ready_queues.postgres import PostgresReadyQueue
from pillarbox.store import providers
from pillarbox.store.database import Database
from pillarbox.telemetry import logs
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Faults
from tests.harness import add_smtp, enqueue, opened, settled, working


async def test_smtp_host_makes_a_first_provider_and_a_sender(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as server:
        given = {
            "smtp_host": server.host,
            "smtp_port": server.port,
            "smtp_from_address": "noreply@shop.example",
            "smtp_from_name": "The Shop",
        }
        async with opened(database_url, **given) as app:
            await ensure_provider(app, development=False)
            await ensure_provider(app, development=False)
        [provider] = await providers.list_providers(database)
        assert (provider.name, provider.kind, provider.settings["tls"]) == (
            "default",
            "smtp",
            "opportunistic",
        )
        async with working(database_url):
            message_id = await enqueue(database, sender=None)
            mail = await server.next_mail()
            await settled(database, message_id, "sent")
    assert mail.sender == "noreply@shop.example"
    assert mail.message["From"] == "The Shop <noreply@shop.example>"


async def test_development_captures_and_production_adds_nothing(
    database: Database, database_url: str
) -> None:
    async with opened(database_url) as app:
        await ensure_provider(app, development=False)
        assert await providers.list_providers(database) == []
        await ensure_provider(app, development=True)
    assert [provider.kind for provider in await providers.list_providers(database)] == ["capture"]


@pytest.mark.req("REQ-QUEUE-S004")
async def test_a_saturated_worker_warns_once(database_url: str) -> None:
    async with opened(database_url) as app:
        shown = io.StringIO()
        logs.configure("json", "info", app.redactor, shown)
        pool = ProviderPool(app.load_providers, app.build_transport, app.redactor_for)
        ledger = Ledger(app.database)
        dispatcher = Dispatcher(ledger, PostgresReadyQueue(app.database, ledger))
        worker = Worker("w", dispatcher, pool, app.metrics, WorkerLimits(window=10))
        gauge = Gauge(worker, pool, app.database, app.metrics, 0.8)
        worker._held[1] = 10
        for _ in range(300):
            average = await gauge.read()
        assert average > 0.8
        worker._held.clear()
        for _ in range(300):
            await gauge.read()
        events = [json.loads(line)["event"] for line in shown.getvalue().splitlines()]
    assert events == ["workers are nearly saturated; add one", "workers have room again"]


@pytest.mark.req("REQ-QUEUE-U002")
async def test_delivery_logs_has_the_columns_of_a_classic_log(
    database: Database, database_url: str
) -> None:
    faults = Faults(recipients={"no@x.example": "550 5.1.1 <no@x.example> unknown"})
    async with SmtpServer(faults) as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(database, "yes@x.example", "no@x.example")
            await settled(database, message_id, "sent", "failed")
    rows = await database.fetch("SELECT * FROM pillarbox.delivery_logs ORDER BY id")
    assert list(rows[0].keys()) == [
        "id", "message_id", "tenant_id", "status", "provider", "provider_message_id", "retry_count", "last_error",
        "created_at", "updated_at",
    ]  # fmt: skip
    assert len({row["id"] for row in rows}) == 2
    assert [row["status"] for row in rows] == ["sent", "failed"]
    assert {row["message_id"] for row in rows} == {str(message_id)}
    assert {row["provider"] for row in rows} == {"relay"}
    assert rows[0]["last_error"] is None
    assert "invalid_recipient 550" in rows[1]["last_error"]
    assert "no@x" not in rows[1]["last_error"]
    assert all(row["created_at"] <= row["updated_at"] for row in rows)


@pytest.mark.req("REQ-QUEUE-S003")
async def test_a_deep_queue_raises_the_alert(database: Database, database_url: str) -> None:
    for _ in range(4):
        await enqueue(database)
    async with opened(database_url, depth_alert=3) as app:
        depth = await Ledger(database).depth()
        app.metrics.depth(depth, app.settings.depth_alert)
        assert b"pillarbox_depth_alert 1.0" in app.metrics.render()
        assert b'pillarbox_deliveries{state="queued"} 4.0' in app.metrics.render()
