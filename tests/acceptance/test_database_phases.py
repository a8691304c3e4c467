"""Phases in which PostgreSQL refuses, under load: afterwards everything drains without a restart, once each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import quote

import asyncpg
import pytest
from tests import PATIENCE
from tests.harness import add_smtp, enqueue, eventually, working

from pillarbox.app import App
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.testing import SmtpServer

MAILS = 150
# Failures of claiming and settling that make a phase long enough: each is retried after a pause.
FAILURES = 3


async def terminate(admin: asyncpg.Connection) -> None:
    """End every other connection, so that each must be opened again."""
    await admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'mailer'"
    )


@asynccontextmanager
async def read_only(admin: asyncpg.Connection) -> AsyncIterator[None]:
    await admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    await admin.execute("SELECT pg_reload_conf()")
    await terminate(admin)
    yield
    await admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
    await admin.execute("SELECT pg_reload_conf()")


@asynccontextmanager
async def no_login(admin: asyncpg.Connection) -> AsyncIterator[None]:
    await admin.execute("ALTER ROLE mailer NOLOGIN")
    await terminate(admin)
    yield
    await admin.execute("ALTER ROLE mailer LOGIN")


@asynccontextmanager
async def other_password(admin: asyncpg.Connection) -> AsyncIterator[None]:
    await admin.execute("ALTER ROLE mailer PASSWORD 'other'")
    await terminate(admin)
    yield
    await admin.execute("ALTER ROLE mailer PASSWORD 'usual'")


@asynccontextmanager
async def lock_timeout(admin: asyncpg.Connection) -> AsyncIterator[None]:
    await admin.execute("ALTER ROLE mailer SET lock_timeout = '50ms'")
    await terminate(admin)
    async with admin.transaction():
        await admin.execute(
            "LOCK TABLE pillarbox.deliveries, pillarbox.attempts IN ACCESS EXCLUSIVE MODE"
        )
        yield


PHASES = [read_only, no_login, other_password, lock_timeout]


async def admitted(server: EmbeddedPostgres, admin: asyncpg.Connection) -> str:
    """Let a role in by its password; returns its URL."""
    await admin.execute("CREATE ROLE mailer LOGIN SUPERUSER PASSWORD 'usual'")
    place = await admin.fetchval("SHOW hba_file")
    rules = await admin.fetchval("SELECT pg_read_file($1)", place)
    await asyncio.to_thread(_prepend, place, "local all mailer scram-sha-256\n" + rules)
    await admin.execute("SELECT pg_reload_conf()")
    return f"postgresql://mailer:usual@/postgres?host={quote(str(server.sockets), safe='/')}"


def _prepend(place: str, text: str) -> None:
    with open(place, "w") as file:
        file.write(text)


def failures(app: App) -> float:
    value = app.metrics.registry.get_sample_value
    return sum(
        value("pillarbox_task_failures_total", {"task": task}) or 0
        for task in ("claim", "settle", "heartbeat")
    )


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
async def test_everything_drains_after_a_phase_without_a_restart(
    stoppable: EmbeddedPostgres, phase: Callable[[asyncpg.Connection], AsyncIterator[None]]
) -> None:
    admin = await asyncpg.connect(stoppable.url())
    url = await admitted(stoppable, admin)
    database = await Database.connect(stoppable.url())
    async with SmtpServer() as server:
        server.faults.delay["body"] = 0.05  # so that a phase begins in the middle
        await add_smtp(database, server)
        for n in range(MAILS):
            await enqueue(database, f"r{n}@mail.example")
        settings = {"worker_poll_interval": "200ms", "worker_concurrency": 2, "worker_pipeline": 5}
        async with working(url, **settings) as app:

            async def some_sent() -> bool:
                return len(server.mails) > 20

            await eventually(some_sent, PATIENCE)
            before = failures(app)
            async with phase(admin):

                async def failed_often() -> bool:
                    return failures(app) >= before + FAILURES

                await eventually(failed_often, PATIENCE)

            async def all_sent() -> bool:
                count = "SELECT count(*) FROM pillarbox.deliveries WHERE state <> 'sent'"
                return await admin.fetchval(count) == 0

            await eventually(all_sent, PATIENCE)
    sent = Counter(recipient for mail in server.mails for recipient in mail.recipients)
    unknown = await admin.fetchval(
        "SELECT count(*) FROM pillarbox.attempts WHERE verdict = 'unknown'"
    )
    assert len(sent) == MAILS
    assert unknown == 0  # the lease outlived the phase, so every outcome stayed known
    assert set(sent.values()) == {1}
    await database.close()
    await admin.close()
