"""Outcomes that PostgreSQL refuses: written without their texts, alone; the others of the batch as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from pillarbox.deliver.attempt_result import AttemptResult
from pillarbox.deliver.settler import Settler, stripped_outcome
from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason, accepted, rejected
from pillarbox.queue.records import ClaimedMessage, Settlement
from pillarbox.store.database import Database
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry.metrics import Metrics
from pillarbox.testing import SmtpServer
from tests import PATIENCE
from tests.contract.queues import postgres_worker
from tests.harness import add_smtp, deliveries, enqueue, eventually, settled, working

NUL = "provider said \0"
MAILS = 9


class Bench:
    """A settler on a real queue, and what it said of claims."""

    def __init__(self, database: Database) -> None:
        self.queue = postgres_worker(database)
        self.metrics = Metrics()
        self.freed: list[ClaimedMessage] = []
        self.abandoned: list[ClaimedMessage] = []
        self.broken: list[Exception] = []
        self.settler = Settler(
            self.queue.ledger, self.queue.ready, self.metrics, Supervisor(self.metrics), self.freed.extend, lambda seconds: None,
            self.abandoned.append, self.broken.append,
        )  # fmt: skip

    def count(self, result: str) -> float:
        name = "pillarbox_settlement_refusals_total"
        return self.metrics.registry.get_sample_value(name, {"result": result}) or 0.0


@asynccontextmanager
async def bench(database: Database) -> AsyncIterator[tuple[Bench, list[ClaimedMessage]]]:
    for n in range(MAILS):
        await enqueue(database, f"r{n}@mail.example")
    one = Bench(database)
    await one.queue.register("w", 60)
    claims = await one.queue.claim(MAILS, 2**25, True)
    assert len(claims) == MAILS
    task = asyncio.create_task(one.settler.run())
    try:
        yield one, claims
    finally:
        task.cancel()
        await asyncio.wait([task])


def result_of(claimed: ClaimedMessage) -> AttemptResult:
    outcome = accepted(250, "ok", f"id-{claimed.message.id}")
    settlement = Settlement(
        claimed.message.id, 0, claimed.claim, State.SENT, outcome, reply="250 ok"
    )
    return AttemptResult(claimed, [settlement], "250 ok", False, [("failed_over", '{"from": "a"}')])


def with_nul(result: AttemptResult, where: str) -> AttemptResult:
    """The result with a value that PostgreSQL cannot hold."""
    [settlement] = result.settlements
    match where:
        case "reply":
            return replace(result, settlements=[replace(settlement, reply=NUL)])
        case "provider_message_id":
            outcome = replace(settlement.outcome, provider_message_id=NUL)
            return replace(result, settlements=[replace(settlement, outcome=outcome)])
        case "surrogate":  # asyncpg cannot even encode it
            return replace(result, settlements=[replace(settlement, reply="\ud800")])
        case "code":
            outcome = replace(settlement.outcome, code=10**6)
            return replace(result, settlements=[replace(settlement, outcome=outcome)])
        case "conversation":
            return replace(result, transcript=NUL)
        case _:
            return replace(result, events=[("failed_over", '{"said": "\\u0000"}')])


async def rows(database: Database, message_id: UUID) -> Any:
    return await database.fetchrow(
        "SELECT d.state::text, a.reply, a.provider_message_id,"
        " (SELECT lines FROM pillarbox.conversations c WHERE c.message_id = d.message_id) AS lines,"
        " (SELECT count(*) FROM pillarbox.events e WHERE e.message_id = d.message_id AND kind = 'failed_over')"
        " AS events"
        " FROM pillarbox.deliveries d LEFT JOIN pillarbox.attempts a USING (message_id, n) WHERE d.message_id = $1",
        message_id,
    )


@pytest.mark.parametrize(
    "where", ["reply", "provider_message_id", "surrogate", "code", "conversation", "event"]
)
@pytest.mark.parametrize("place", [0, 4, MAILS - 1])
async def test_the_offending_outcome_is_written_without_its_texts(
    database: Database, where: str, place: int
) -> None:
    async with bench(database) as (one, claims):
        for number, claimed in enumerate(claims):
            result = result_of(claimed)
            one.settler.settle(with_nul(result, where) if number == place else result)

        async def all_freed() -> bool:
            return len(one.freed) == MAILS

        await eventually(all_freed, PATIENCE)
    assert (one.count("stripped"), one.count("abandoned"), one.broken) == (1, 0, [])
    for number, claimed in enumerate(claims):
        row = await rows(database, claimed.message.id)
        assert row["state"] == "sent"
        assert row["events"] == 1
        if number == place:
            assert (row["reply"], row["provider_message_id"], row["lines"]) == (None, None, None)
        else:
            assert row["provider_message_id"] == f"id-{claimed.message.id}"
            assert (row["reply"], row["lines"]) == ("250 ok", "250 ok")


async def test_an_outcome_that_cannot_be_written_at_all_is_abandoned_alone(
    database: Database,
) -> None:
    async with bench(database) as (one, claims):
        bad = claims[3].message.id
        await database.execute(
            "ALTER TABLE pillarbox.deliveries ADD CONSTRAINT never"
            f" CHECK (NOT (message_id = '{bad}' AND state = 'sent'))"
        )
        for claimed in claims:
            one.settler.settle(result_of(claimed))

        async def all_ended() -> bool:
            return len(one.freed) + len(one.abandoned) == MAILS

        await eventually(all_ended, PATIENCE)
    assert [claimed.message.id for claimed in one.abandoned] == [bad]
    assert (one.count("stripped"), one.count("abandoned")) == (0, 1)
    for claimed in claims:
        [row] = await deliveries(database, claimed.message.id)
        assert row["state"] == ("processing" if claimed.message.id == bad else "sent")


async def test_claims_that_cannot_be_released_or_postponed_are_abandoned_alone(
    database: Database,
) -> None:
    async with bench(database) as (one, claims):
        bad = {claims[1].message.id, claims[6].message.id}
        listed = ", ".join(f"'{one}'" for one in bad)
        await database.execute(
            "ALTER TABLE pillarbox.deliveries ADD CONSTRAINT never"
            f" CHECK (NOT (message_id IN ({listed}) AND state <> 'processing')) NOT VALID"
        )
        for claimed in claims[:5]:
            one.settler.release(claimed)
        for claimed in claims[5:]:
            one.settler.postpone(claimed, 60.0, Reason.RATE_LIMITED)

        async def all_ended() -> bool:
            return len(one.freed) + len(one.abandoned) == MAILS

        await eventually(all_ended, PATIENCE)
    assert {claimed.message.id for claimed in one.abandoned} == bad
    states = [(await deliveries(database, claimed.message.id))[0]["state"] for claimed in claims]
    assert states == [
        "queued",
        "processing",
        *["queued"] * 3,
        "pending",
        "processing",
        "pending",
        "pending",
    ]


async def test_a_worker_goes_on_and_what_it_abandoned_becomes_unknown_when_it_ends(
    database: Database, database_url: str
) -> None:
    """It is neither settled nor given back while the worker lives: it was sent, and a second send needs an unknown."""
    async with SmtpServer() as server:
        await add_smtp(database, server)
        bad = await enqueue(database, "bad@mail.example")
        await database.execute(
            "ALTER TABLE pillarbox.deliveries ADD CONSTRAINT never"
            f" CHECK (NOT (message_id = '{bad}' AND state = 'sent'))"
        )
        async with working(database_url, worker_poll_interval="50ms", worker_lease="2s") as app:

            async def abandoned() -> bool:
                name, labels = "pillarbox_settlement_refusals_total", {"result": "abandoned"}
                return app.metrics.registry.get_sample_value(name, labels) == 1

            await eventually(abandoned, PATIENCE)
            loop = asyncio.get_running_loop()
            enough = (
                loop.time() + 2.0
            )  # past the next look for claims whose answer was lost, at half a lease
            while loop.time() < enough:
                await settled(database, await enqueue(database), "sent", seconds=PATIENCE)
            assert [row["state"] for row in await deliveries(database, bad)] == ["processing"]
        await database.execute("ALTER TABLE pillarbox.deliveries DROP CONSTRAINT never")
        async with working(
            database_url, worker_poll_interval="50ms", reap_interval="100ms", worker_lease="2s"
        ):

            async def unknown() -> bool:
                query = "SELECT count(*) FROM pillarbox.attempts WHERE message_id = $1 AND verdict = 'unknown'"
                return bool(await database.fetchval(query, bad))

            await eventually(unknown, PATIENCE)


def test_a_rejection_keeps_its_reason_without_texts() -> None:
    outcome = stripped_outcome(rejected(Reason.POLICY, 550, NUL))
    assert (outcome.verdict, outcome.reason, outcome.code, outcome.text) == (
        "rejected",
        Reason.POLICY,
        550,
        None,
    )
