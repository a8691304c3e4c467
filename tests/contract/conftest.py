"""Every adapter of the ReadyQueue port, for the contract tests."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from tests.contract.queues import NewQueue, QueueWorker, postgres_worker
from tests.contract.unreliable_broker import BrokerReadyQueue, UnreliableBroker

from pillarbox.queue.ledger import Ledger
from pillarbox.store.database import Database


@pytest.fixture
def chance() -> random.Random:
    """Chance with a seed that is shown when a test fails; PILLARBOX_TEST_SEED repeats one."""
    seed = int(os.environ.get("PILLARBOX_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"PILLARBOX_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def broker(database: Database, chance: random.Random) -> UnreliableBroker:
    return UnreliableBroker(database, chance)


@pytest.fixture(params=["postgres", "unreliable broker"])
async def new_queue(request: pytest.FixtureRequest, database: Database) -> NewQueue:
    """Makes one more worker with a lease of a minute; a new adapter is one more name."""
    build: Callable[[], QueueWorker] = lambda: postgres_worker(database)  # noqa: E731
    if request.param == "unreliable broker":
        broker = request.getfixturevalue("broker")
        build = lambda: broker_worker(database, broker)  # noqa: E731

    async def make(lease: float = 60) -> QueueWorker:
        queue = build()
        await queue.register("contract", lease)
        return queue

    return make


def broker_worker(database: Database, broker: UnreliableBroker) -> QueueWorker:
    ledger = Ledger(database)
    return QueueWorker(ledger, BrokerReadyQueue(broker, ledger, patience=0.0))
