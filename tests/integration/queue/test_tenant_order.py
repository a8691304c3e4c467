"""A tenant's mails begin in the order of their acceptance, with several workers and some trouble on the way."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack

import pytest

from pillarbox.store import tenants
from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Faults
from tests import PATIENCE
from tests.harness import add_smtp, enqueue, eventually, working

TENANTS, MAILS, WORKERS = ("default", "shop"), 40, 3


def begun(server: SmtpServer, tenant: str) -> list[int]:
    """The numbers of a tenant's mails in the order in which the server first heard of them."""
    numbers = (re.match(rf"RCPT TO:<{tenant}-(\d+)@", line) for line in server.commands)
    return list(dict.fromkeys(int(found[1]) for found in numbers if found))


async def all_sent(database: Database) -> bool:
    """Whether all are; what was deferred is made due."""
    await database.execute(
        "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state = 'queued' AND attempts > 0"
    )
    return not await database.fetchval(
        "SELECT count(*) FROM pillarbox.deliveries WHERE state <> 'sent'"
    )


@pytest.mark.req("REQ-QUEUE-U001")
@pytest.mark.req("REQ-QUEUE-N004")
@pytest.mark.parametrize("order", ["fifo", "strict"])
async def test_mails_begin_in_order_with_several_workers(
    database: Database, database_url: str, order: str
) -> None:
    await tenants.add_tenant(database, "shop")
    for tenant in TENANTS:
        await tenants.change_tenant(database, tenant, order=order)
    settings = {"worker_poll_interval": "50ms", "worker_concurrency": 1, "worker_pipeline": 2}
    later = {
        f"{tenant}-{n}@x.example": ["451 4.3.0 later"]
        for tenant in TENANTS
        for n in range(0, MAILS, 7)
    }
    async with SmtpServer(Faults(recipients=later)) as server:
        await add_smtp(database, server, connections=1)
        for n in range(MAILS):
            for tenant in TENANTS:
                await enqueue(database, f"{tenant}-{n}@x.example", tenant=tenant)
        async with AsyncExitStack() as stack:
            for _ in range(WORKERS):
                await stack.enter_async_context(working(database_url, **settings))
            await eventually(lambda: all_sent(database), PATIENCE)
    arrived = [mail.recipients[0].partition("@")[0] for mail in server.mails]
    for tenant in TENANTS:
        assert begun(server, tenant) == list(range(MAILS))
        if order == "strict":  # nothing overtakes a mail that waits
            assert [one for one in arrived if one.startswith(tenant)] == [
                f"{tenant}-{n}" for n in range(MAILS)
            ]
