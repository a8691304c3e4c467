"""One kill leaves at most `worker_concurrency` × `worker_pipeline` mails unknown, with any number of providers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.acceptance.crew import Crew
from tests.harness import add_smtp, enqueue, eventually

from pillarbox.queue.ledger import Ledger
from pillarbox.store import tenants
from pillarbox.store.database import Database
from pillarbox.testing import Faults, SmtpServer
from pillarbox.testing.smtp_faults import Hang

CONCURRENCY, PIPELINE = 2, 5
WINDOW = CONCURRENCY * PIPELINE
PROVIDERS = 4
HELD = "SELECT count(DISTINCT message_id) FROM pillarbox.deliveries WHERE state = 'processing'"
UNKNOWN = "SELECT count(DISTINCT message_id) FROM pillarbox.attempts WHERE verdict = 'unknown'"
ROUTE = """INSERT INTO pillarbox.routes (name, place, tenant_id, providers)
           SELECT $1, 1, id, ARRAY[$2::int4] FROM pillarbox.tenants WHERE name = $1"""


@pytest.mark.req("REQ-QUEUE-N005")
async def test_a_kill_leaves_one_window_unknown_with_several_providers(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Every provider hangs, and each has a tenant with more mails than a window holds."""
    crew = Crew(database_url, tmp_path / "workers.log")
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(SmtpServer(Faults(body=Hang())))
            for _ in range(PROVIDERS)
        ]
        for number, server in enumerate(servers):
            name = f"shop{number}"
            await tenants.add_tenant(database, name)
            await database.execute(ROUTE, name, await add_smtp(database, server, name))
            for _ in range(3 * WINDOW):
                await enqueue(database, tenant=name)
        settings = {"WORKER_CONCURRENCY": str(CONCURRENCY), "WORKER_PIPELINE": str(PIPELINE)}
        worker = await crew.start(**settings)
        try:
            for (
                server
            ) in servers:  # a provider that hangs does not keep the others from their first mail
                await server.wait_for(
                    lambda server=server: any(line.startswith("DATA") for line in server.commands),
                    60,
                )
            held = await database.fetchval(HELD)
            await crew.kill(worker)
        finally:
            await crew.end()
    assert PROVIDERS <= held <= WINDOW
    await eventually(lambda: Ledger(database).reap(1000, 0.0), 60)
    assert PROVIDERS <= await database.fetchval(UNKNOWN) <= WINDOW
