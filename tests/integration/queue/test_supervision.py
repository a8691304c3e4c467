"""Every background task of every role survives errors of PostgreSQL, or ends the process after draining."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from pillarbox import supervisor
from pillarbox.app import App, Role, collect, serve, tend, work
from pillarbox.deliver import health_monitor, settler, worker
from pillarbox.errors import StoreBug, StoreDataError, StoreError, TaskEnded
from pillarbox.lifecycle import collector
from pillarbox.queue.ledger import SQL
from pillarbox.store import lifecycle_schema, opening
from pillarbox.store.database import Database
from pillarbox.testing import Faults, SmtpServer
from pillarbox.track import webhook_dispatcher
from tests import PATIENCE
from tests.faulty_database import EachStatementFails, FaultyDatabase, StatementFails
from tests.harness import add_smtp, enqueue, eventually, opened, settled
from tests.integration.api.api_helpers import MAIL, api_of, serving
from tests.integration.lifecycle.collector_helpers import SETTINGS, accounts, mailed

# Of a read-only phase, a role without login, a wrong password, a missing privilege, a lock timeout,
# a full disk, a terminated connection, an internal error; and one that nobody has heard of.
RETRYABLE = ["25006", "28000", "28P01", "42501", "55P03", "53100", "57P01", "XX000", "99999"]
# The tasks of a worker process that use the database without being asked.
TASKS = {
    "availability", "budgets", "checks", "claim", "count webhook calls", "feedback", "heartbeat", "listen", "measure",
    "promote", "reap", "retention", "roster", "settle", "vitals", "webhook hints", "webhooks",
}  # fmt: skip

# Their one call lasts as long as its connection, and succeeds when it ends.
LISTENING = {"listen", "webhook hints", "listen for tokens"}

Fault = Callable[[str], Exception | None]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures follow each other quickly, and the app gets a database that can fail."""
    monkeypatch.setattr(opening, "Database", FaultyDatabase)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(opening, "CONNECT_PAUSE", 0.02)
    monkeypatch.setattr(health_monitor, "BUDGET_INTERVAL", 0.1)
    monkeypatch.setattr(health_monitor, "CHECK_INTERVAL", 0.6)
    monkeypatch.setattr(webhook_dispatcher, "MEASURE", 0.1)
    for module in (settler, worker, webhook_dispatcher, supervisor):
        monkeypatch.setattr(module, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(collector, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(collector, "MAX_PAUSE", 0.1)


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault], None]:
    return lambda fault: monkeypatch.setattr(FaultyDatabase, "fault", staticmethod(fault))


def count(app: App, name: str, **labels: str) -> float:
    return app.metrics.registry.get_sample_value(f"pillarbox_{name}", labels) or 0.0


@asynccontextmanager
async def running(app: App, *roles: Role) -> AsyncIterator[asyncio.Task[None]]:
    """Roles in this process; stopped at the end, unless they have ended."""
    stop = asyncio.Event()
    task = asyncio.create_task(serve(app, stop, *roles))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait([task], timeout=PATIENCE)


def gated(gate: asyncio.Event) -> Faults:
    """A server that takes a mail when the gate is open."""

    async def body(session: Any, argument: Any) -> None:
        await gate.wait()

    return Faults(body=body)


async def is_state(database: Database, message_id: UUID, state: str) -> bool:
    query = "SELECT bool_and(state = $2::text::pillarbox.state) FROM pillarbox.deliveries WHERE message_id = $1"
    return bool(await database.fetchval(query, message_id, state))


@pytest.mark.parametrize("sqlstate", RETRYABLE)
async def test_every_task_of_a_worker_goes_on_after_each_of_its_statements_failed(
    database: Database, database_url: str, inject: Callable[[Fault], None], sqlstate: str
) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        hasty = {
            "worker_poll_interval": "100ms",
            "reap_interval": "100ms",
            "retention_interval": "50ms",
        }
        async with opened(database_url, worker_lease="4s", **hasty) as app:
            inject(EachStatementFails(sqlstate, 1))
            async with running(app, work, tend) as task:
                ids = [await enqueue(database, f"r{n}@mail.example") for n in range(5)]
                for message_id in ids:
                    await settled(database, message_id, "sent", seconds=PATIENCE)

                async def all_failed() -> bool:
                    return all(count(app, "task_failures_total", task=name) for name in TASKS)

                async def none_fails() -> bool:
                    return app.supervisor.failing <= LISTENING

                try:
                    await eventually(all_failed, PATIENCE)
                except AssertionError:
                    missing = {
                        name for name in TASKS if not count(app, "task_failures_total", task=name)
                    }
                    raise AssertionError(f"these tasks never failed: {missing}") from None
                await eventually(none_fails, PATIENCE)
                assert not task.done()
            assert task.exception() is None
    sent = Counter(recipient for mail in server.mails for recipient in mail.recipients)
    assert sent == Counter(f"r{n}@mail.example" for n in range(5))


@pytest.mark.parametrize("sqlstate", RETRYABLE)
async def test_the_collector_goes_on_after_each_of_its_statements_failed(
    database: Database, database_url: str, inject: Callable[[Fault], None], sqlstate: str
) -> None:
    async with database.connection() as connection:
        await lifecycle_schema.install(connection, "lifecycle")
    await accounts(database, 20)
    async with opened(database_url, worker_poll_interval="100ms", **SETTINGS) as app:
        inject(EachStatementFails(sqlstate, 1))
        async with running(app, collect) as task:

            async def all_mailed() -> bool:
                return len(await mailed(database)) == 20

            async def all_tasks_failed_and_work() -> bool:
                names = ("collect", "sweep tokens", "listen for tokens")
                failed = all(count(app, "task_failures_total", task=one) for one in names)
                return failed and app.supervisor.failing <= LISTENING

            await eventually(all_mailed, PATIENCE)
            await eventually(all_tasks_failed_and_work, PATIENCE)
        assert task.exception() is None
    assert set((await mailed(database)).values()) == {1}


@pytest.mark.parametrize("sqlstate", [*RETRYABLE, "42P01"])
async def test_the_api_answers_503_and_never_500(
    database_url: str, inject: Callable[[Fault], None], sqlstate: str
) -> None:
    async with api_of(database_url) as api:
        inject(StatementFails("", sqlstate))
        answers = [
            await api.shop.send(),
            await api.shop.post("/messages/batch", {"messages": [MAIL, MAIL]}),
            await api.shop.get("/messages"),
            await api.admin.get("/admin/tenants"),
        ]
        for answer in answers:
            assert (answer.status, answer.json["type"]) == (503, "/problems/store-away")
            assert int(answer.headers["retry-after"]) > 0
        assert await probe(api.shop.url, "healthz") == 200
        assert await probe(api.shop.url, "readyz") == 503
        inject(lambda statement: None)
        assert (await api.shop.send()).status == 202
        assert await probe(api.shop.url, "readyz") == 200


async def probe(url: str, name: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url.rstrip('/')}/{name}") as answer,
    ):
        return answer.status


async def test_while_settling_fails_nothing_is_claimed_and_readiness_fails(
    database: Database, database_url: str, inject: Callable[[Fault], None]
) -> None:
    fails = StatementFails(SQL["settle"], "25006")
    async with SmtpServer() as server:
        await add_smtp(database, server)
        settings = {"worker_poll_interval": "50ms", "worker_concurrency": 2, "worker_pipeline": 2}
        async with opened(database_url, http="127.0.0.1:0", **settings) as app, serving(app) as url:
            inject(fails)
            async with running(app, work, tend):
                ids = [await enqueue(database, f"r{n}@mail.example") for n in range(40)]

                async def not_ready() -> bool:
                    return await probe(url, "readyz") == 503

                await eventually(not_ready, PATIENCE)
                assert await probe(url, "healthz") == 200  # a restart would not help
                tries = fails.failures

                async def tried_again() -> bool:
                    return fails.failures > tries + 3

                await eventually(tried_again, PATIENCE)
                assert len(server.mails) <= 4  # the window
                fails.active = False
                for message_id in ids:
                    await settled(database, message_id, "sent", seconds=PATIENCE)
                assert await probe(url, "readyz") == 200
    assert len(server.mails) == 40
    assert (
        await database.fetchval("SELECT count(*) FROM pillarbox.attempts WHERE verdict = 'unknown'")
        == 0
    )


@pytest.mark.parametrize(
    ("sqlstate", "error"), [("42601", StoreBug), ("42P01", StoreBug), ("22P02", StoreDataError)]
)
@pytest.mark.parametrize("statement", ["claim", "survey"])
async def test_a_claim_that_proves_a_bug_ends_the_worker_after_draining(
    database: Database,
    database_url: str,
    inject: Callable[[Fault], None],
    sqlstate: str,
    error: type[StoreError],
    statement: str,
) -> None:
    gate = asyncio.Event()
    async with SmtpServer(gated(gate)) as server:
        await add_smtp(database, server)
        async with opened(database_url, worker_poll_interval="50ms") as app:
            async with running(app, work, tend) as task:
                message_id = await enqueue(database)
                await eventually(lambda: is_state(database, message_id, "processing"), PATIENCE)
                fails = StatementFails(SQL[statement], sqlstate)
                inject(fails)
                await enqueue(database, "second@mail.example")

                async def failed() -> bool:
                    return bool(fails.failures)

                await eventually(failed, PATIENCE)
                gate.set()
                with pytest.raises(error):
                    await asyncio.wait_for(task, PATIENCE)
            assert app.supervisor.dead() == "work"
    assert await is_state(database, message_id, "sent")
    assert [mail.recipients for mail in server.mails].count(("reader@mail.example",)) == 1


@pytest.mark.parametrize("statement", ["settle", "heartbeat"])
async def test_settling_or_a_heartbeat_that_proves_a_bug_ends_the_worker_after_trying(
    database: Database,
    database_url: str,
    inject: Callable[[Fault], None],
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
) -> None:
    monkeypatch.setattr(worker, "LAST_SETTLE", 1.0)
    fails = StatementFails(SQL[statement], "42703")
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with opened(database_url, worker_poll_interval="50ms", worker_lease="2s") as app:
            inject(fails)
            async with running(app, work) as task:
                await enqueue(database)
                with pytest.raises(StoreBug):
                    await asyncio.wait_for(task, PATIENCE)
    assert fails.failures > (1 if statement == "settle" else 0)


async def test_a_role_that_returns_too_early_ends_the_process(database_url: str) -> None:
    async def early(app: App, stop: asyncio.Event) -> None:
        """Return without being asked to."""

    async with opened(database_url) as app:
        with pytest.raises(TaskEnded, match="early"):
            await asyncio.wait_for(serve(app, asyncio.Event(), tend, early), PATIENCE)
        assert app.supervisor.dead() == "early"
