"""Another tenant's mail waits behind one batch at most, however many mails a tenant has.

Counted is what the dispatcher hands to providers between the commit of a mail and that mail itself.
No time is measured, so that the machine's speed does not matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from pillarbox.app import App
from pillarbox.deliver.transports.base import OutgoingMail, SendResult
from pillarbox.model.outcome import accepted
from pillarbox.model.provider_kind import TransportLimits
from pillarbox.queue import survey_schedule
from pillarbox.store.database import Database
from pillarbox.store.providers import add_provider
from tests.contract.record import add_tenant, fill
from tests.harness import eventually, no_keys, working

CROWD = 1200
EVERY = 60  # mails of the crowd between two commits of single ones
SINGLES = CROWD // EVERY - 2  # none at the end, when hardly anything is before them


class Order:
    """What was handed to providers, in order; commits a single mail now and then and counts what goes before it."""

    def __init__(self, database: Database, crowd: Sequence[UUID]) -> None:
        self.left = set(crowd)
        self.committed: dict[
            UUID, int
        ] = {}  # single mails: how many of the crowd had been handed over by then
        self.arrived: dict[UUID, int] = {}  # the same, when they were handed over themselves
        self._database = database
        self._handed = 0

    async def hand_over(self, message_id: UUID) -> None:
        if message_id not in self.left:
            self.arrived[message_id] = self._handed
            return
        self.left.remove(message_id)
        self._handed += 1
        if self._handed % EVERY == 0 and len(self.left) > EVERY:
            tenant, priority = (
                ("second", "normal") if self._handed % (2 * EVERY) else ("third", "urgent")
            )
            [single] = await fill(self._database, 1, tenant, priority)
            self.committed[single] = self._handed
        else:
            await asyncio.sleep(0)

    async def is_done(self) -> bool:
        return not self.left and len(self.committed) == len(self.arrived) == SINGLES

    def before(self) -> list[int]:
        return [self.arrived[one] - at for one, at in self.committed.items()]


class Relay:
    """A transport that only notes what it gets."""

    limits = TransportLimits()
    connections_open = connections_busy = 0

    def __init__(self, connections: int, order: Order) -> None:
        self.connections = connections
        self._order = order

    async def send(self, outgoing: OutgoingMail) -> SendResult:
        assert outgoing.may_begin()
        started = asyncio.get_running_loop().time()
        await self._order.hand_over(outgoing.message_id)
        return SendResult(
            [accepted(250)] * len(outgoing.recipients), started, asyncio.get_running_loop().time()
        )

    def recall(self) -> None:
        pass

    async def check(self) -> str:
        return "ok"

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(("connections", "pipeline"), [(10, 10), (50, 10)], ids=["1x10", "1x50"])
@pytest.mark.parametrize("providers", [1, 2])
async def test_a_single_mail_waits_behind_one_batch_at_most(
    providers: int,
    connections: int,
    pipeline: int,
    database: Database,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("second", "third"):
        await add_tenant(database, name)
    for number in range(providers):
        settings = {"host": "relay.example", "tls": "none"}
        await add_provider(database, no_keys, f"relay{number}", "smtp", settings)
    order = Order(database, await fill(database, CROWD))
    # Looking after some time is not enough, however slow the machine that runs this.
    monkeypatch.setattr(survey_schedule, "SURVEY_INTERVAL", 3600.0)
    monkeypatch.setattr(survey_schedule, "HINTED_INTERVAL", 3600.0)
    monkeypatch.setattr(App, "build_transport", lambda app, provider: Relay(connections, order))
    async with working(database_url, worker_concurrency=connections, worker_pipeline=pipeline):
        await eventually(order.is_done, 60)
    assert max(order.before()) <= connections * pipeline
