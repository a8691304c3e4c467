"""Every adapter of the Queue port, for the contract tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.contract.queues import NewQueue

from pillarbox.queue.base import Queue
from pillarbox.queue.postgres import PostgresQueue
from pillarbox.store.database import Database


@pytest.fixture(params=["postgres"])
async def new_queue(request: pytest.FixtureRequest, database: Database) -> NewQueue:
    """Makes a queue for one more worker, registered with a lease of a minute. A new adapter is one more name."""
    build: dict[str, Callable[[], Queue]] = {"postgres": lambda: PostgresQueue(database)}

    async def make(lease: float = 60) -> Queue:
        queue = build[request.param]()
        await queue.register("contract", lease)
        return queue

    return make
