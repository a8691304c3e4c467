"""Settling is atomic: whatever fails, all of a batch is written or nothing of it, and never twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pillarbox.errors import StoreError
from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason, Verdict, accepted, deferred, unknown
from pillarbox.queue.records import ClaimedMessage, Settlement, SettlementBatch
from pillarbox.store.database import Database
from tests.contract.queues import NewQueue, QueueWorker, end, postgres_worker, take
from tests.harness import enqueue, eventually, states

# Each table that settling changes, and how: a fault in any of them is a fault between two steps.
STEPS = {
    "deliveries": "AFTER UPDATE",
    "attempts": "AFTER INSERT",
    "conversations": "AFTER INSERT",
    "events": "AFTER INSERT",
    "webhook_calls": "AFTER INSERT",
    "contents": "AFTER DELETE",
}
WRITTEN = ("attempts", "conversations", "events", "webhook_calls")


@pytest.fixture
def new_queue(database: Database) -> NewQueue:
    """Makes one more worker, registered with a lease of a minute."""

    async def make() -> QueueWorker:
        queue = postgres_worker(database)
        await queue.register("settling", 60)
        return queue

    return make


def settlements(
    claimed: ClaimedMessage, numbers: Sequence[int] | None = None, **changes: Any
) -> list[Settlement]:
    usual = {
        "state": State.SENT,
        "outcome": accepted(250, "2.0.0 ok"),
        "ended": asyncio.get_running_loop().time(),
    }
    chosen = claimed.recipient_numbers if numbers is None else numbers
    return [Settlement(claimed.message.id, n, claimed.claim, **(usual | changes)) for n in chosen]


def full_batch(claimed: ClaimedMessage) -> SettlementBatch:
    """Everything that a batch can hold, in one."""
    message_id, claim = claimed.message.id, claimed.claim
    return SettlementBatch(
        settlements(
            claimed, outcome=unknown(Reason.LOST, "cut"), state=State.FAILED, reason=Reason.LOST
        ),
        [(message_id, claim, "-> DATA")],
        [(message_id, claim, "failed_over", "{}")],
        [message_id],
    )


async def written(database: Database) -> dict[str, int]:
    query = "SELECT count(*) FROM pillarbox.{}"
    return {table: await database.fetchval(query.format(table)) for table in WRITTEN}


async def bodies(database: Database) -> int:
    return int(await database.fetchval("SELECT count(*) FROM pillarbox.contents"))


async def add_listener(database: Database) -> None:
    await database.execute(
        """INSERT INTO pillarbox.webhook_endpoints (id, tenant_id, url, secret)
           SELECT gen_random_uuid(), id, 'https://hooks.example/', 'x' FROM pillarbox.tenants"""
    )


async def break_step(database: Database, table: str) -> None:
    await database.execute(
        """CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN RAISE 'injected' USING ERRCODE = 'query_canceled'; END $$"""
    )
    await database.execute(
        f"CREATE TRIGGER fault {STEPS[table]} ON pillarbox.{table} FOR EACH ROW EXECUTE FUNCTION fault()"
    )


@pytest.mark.parametrize("table", STEPS)
async def test_a_fault_between_any_two_steps_leaves_nothing_behind(
    table: str, new_queue: NewQueue, database: Database
) -> None:
    queue = await new_queue()
    await add_listener(database)
    message_id = await enqueue(database, "a@x.example", "b@x.example", **{"class": "lifecycle"})
    [claimed] = await take(queue)
    await break_step(database, table)
    with pytest.raises(StoreError):
        await queue.settle(full_batch(claimed))
    assert await states(database, message_id) == ["processing", "processing"]
    assert await written(database) == dict.fromkeys(WRITTEN, 0)
    assert await bodies(database) == 1
    await database.execute(f"DROP TRIGGER fault ON pillarbox.{table}")
    assert len(await queue.settle(full_batch(claimed))) == 2
    assert await states(database, message_id) == ["failed", "failed"]
    # An event for each unknown end, and the one that was given.
    assert await written(database) == {
        "attempts": 2,
        "conversations": 1,
        "events": 3,
        "webhook_calls": 2,
    }
    assert await bodies(database) == 0


async def test_a_lost_answer_writes_nothing_twice_and_loses_nothing(
    new_queue: NewQueue, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke after COMMIT: the repeated call says that everything is settled."""
    queue = await new_queue()
    await add_listener(database)
    message_id = await enqueue(database, "a@x.example", "b@x.example", **{"class": "lifecycle"})
    [claimed] = await take(queue)

    async def fetch_but_lose(query: str, *arguments: Any) -> Any:
        await original(query, *arguments)
        raise StoreError("the answer was lost")

    original = database.fetch
    with monkeypatch.context() as patched:
        patched.setattr(database, "fetch", fetch_but_lose)
        with pytest.raises(StoreError):
            await queue.settle(full_batch(claimed))
    before = await written(database)
    assert {
        (key.recipient_number, key.claim) for key in await queue.settle(full_batch(claimed))
    } == {
        (0, claimed.claim),
        (1, claimed.claim),
    }
    assert await written(database) == before
    assert await states(database, message_id) == ["failed", "failed"]


async def test_nothing_is_written_for_claims_that_were_taken_away(
    new_queue: NewQueue, database: Database
) -> None:
    dead, alive = await new_queue(), await new_queue()
    await enqueue(database)
    [claimed] = await take(dead)
    await dead.heartbeat(0.0)
    assert await alive.reap(100, 0.0) == 1
    before = await written(database)
    batch = full_batch(claimed)
    batch.settlements[0].provider_id = 7  # whoever sends has a provider; the reaper knows none
    assert await dead.settle(batch) == set()
    assert await written(database) == before
    assert await database.fetchval("SELECT verdict FROM pillarbox.attempts") == Verdict.UNKNOWN


async def test_only_what_was_still_held_brings_its_events(
    new_queue: NewQueue, database: Database
) -> None:
    """Two claims of one message in one batch: one was given back meanwhile, and nothing of it is told."""
    queue = await new_queue()
    message_id = await enqueue(database, "a@x.example", "b@x.example")
    first, second = await two_claims(queue)
    await queue.release([first])
    batch = SettlementBatch(
        settlements(first, [0]) + settlements(second, [1]),
        [(message_id, first.claim, "lost"), (message_id, second.claim, "kept")],
        [
            (message_id, first.claim, "failed_over", '{"of": "lost"}'),
            (message_id, second.claim, "failed_over", "{}"),
        ],
    )
    assert [key.claim for key in await queue.settle(batch)] == [second.claim]
    assert (
        await database.fetchval("SELECT string_agg(lines, ',') FROM pillarbox.conversations")
        == "kept"
    )
    assert (
        await database.fetchval("SELECT string_agg(data::text, ',') FROM pillarbox.events") == "{}"
    )


async def two_claims(queue: QueueWorker) -> tuple[ClaimedMessage, ClaimedMessage]:
    """The two deliveries of the only message, under a claim each."""
    [first] = await take(queue)
    later = {
        "state": State.QUEUED,
        "outcome": deferred(Reason.GREYLISTED, 451),
        "reason": Reason.GREYLISTED,
    }
    await queue.settle(SettlementBatch(settlements(first, [1], delay=0.0, **later)))
    [second] = await take(queue)
    assert list(second.recipient_numbers) == [1]
    return first, second


@pytest.mark.parametrize("ending", [State.SENT, State.FAILED])
async def test_a_secret_body_is_gone_after_the_last_settlement(
    ending: State, new_queue: NewQueue, database: Database
) -> None:
    queue = await new_queue()
    message_id = await enqueue(database, "a@x.example", "b@x.example", **{"class": "lifecycle"})
    first, second = await two_claims(queue)
    await queue.settle(
        SettlementBatch(settlements(first, [0], state=ending), secret_messages=[message_id])
    )
    assert await bodies(database) == 1  # the other recipient still needs it
    await queue.settle(
        SettlementBatch(settlements(second, state=ending), secret_messages=[message_id])
    )
    assert await bodies(database) == 0
    end(queue, [first, second])


async def test_a_secret_body_is_gone_when_its_last_deliveries_settle_at_once(
    new_queue: NewQueue, database: Database
) -> None:
    """Neither settlement sees the other's delivery as settled when it begins."""
    queue = await new_queue()
    message_id = await enqueue(database, "a@x.example", "b@x.example", **{"class": "lifecycle"})
    first, second = await two_claims(queue)
    async with database.transaction() as blocking:
        await blocking.execute("SELECT FROM pillarbox.contents FOR UPDATE")
        settling = [
            asyncio.create_task(queue.settle(SettlementBatch(made, secret_messages=[message_id])))
            for made in (settlements(first, [0]), settlements(second, [1]))
        ]
        await eventually(lambda: both_wait(database), 60)
    assert [len(one) for one in await asyncio.gather(*settling)] == [1, 1]
    assert await states(database, message_id) == ["sent", "sent"]
    assert await bodies(database) == 0


async def test_a_secret_body_is_gone_when_feedback_and_a_settlement_end_its_last_deliveries_at_once(
    new_queue: NewQueue, database: Database
) -> None:
    queue = await new_queue()
    message_id = await enqueue(database, "a@x.example", "b@x.example", **{"class": "lifecycle"})
    first, second = await two_claims(queue)
    held = {"outcome": unknown(Reason.LOST, "cut"), "state": State.HELD, "reason": Reason.LOST}
    await queue.settle(
        SettlementBatch(settlements(first, [0], **held), secret_messages=[message_id])
    )
    feedback = await database.fetchval(
        """INSERT INTO pillarbox.feedback (provider_id, event_id, message_id, n, kind, at, hard, data, waiting)
           VALUES (0, 'one', $1, 0, 'delivered', now(), false, '{}', false) RETURNING id""",
        message_id,
    )
    async with database.transaction() as blocking:
        await blocking.execute("SELECT FROM pillarbox.contents FOR UPDATE")
        tasks = [
            asyncio.create_task(
                queue.settle(
                    SettlementBatch(settlements(second, [1]), secret_messages=[message_id])
                )
            ),
            asyncio.create_task(
                database.fetchval(
                    "SELECT pillarbox._apply_feedback(ARRAY[$1::bigint], NULL)", feedback
                )
            ),
        ]
        await eventually(lambda: both_wait(database))
    await asyncio.gather(*tasks)
    assert await states(database, message_id) == ["delivered", "sent"]
    assert await bodies(database) == 0


async def both_wait(database: Database) -> bool:
    query = """SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock'"""
    return bool(await database.fetchval(query) == 2)


async def test_a_body_that_is_not_secret_stays(new_queue: NewQueue, database: Database) -> None:
    queue = await new_queue()
    await enqueue(database)
    [claimed] = await take(queue)
    await queue.settle(SettlementBatch(settlements(claimed)))
    assert await bodies(database) == 1
