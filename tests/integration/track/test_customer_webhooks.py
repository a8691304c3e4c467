"""Customers are told what becomes of their mails: signed, at least once, in order, patiently; and nobody else is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from pillarbox.app import App, notify
from pillarbox.errors import StoreError
from pillarbox.model.secret import Secret
from pillarbox.queue.ledger import Ledger
from pillarbox.store import operations, tenants, webhook_log, webhooks
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.retention import purge_webhook_calls
from pillarbox.testing import Faults, SmtpServer
from pillarbox.testing.webhook_receiver import ReceiverDials, WebhookReceiver
from tests import PATIENCE
from tests.harness import add_smtp, enqueue, eventually, opened, settled, working
from tests.integration.cli.cli_helpers import process

# Any key will do.
KEYS = {"secret_keys": "11" * 32, "webhook_allow_private": "true", "worker_poll_interval": "100ms"}
TELL = "SELECT pillarbox._tell_customers($1::uuid[], $2::int2[], $3::text[], $4::timestamptz[], $5::jsonb[])"


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    async with opened(database_url, **KEYS) as app:
        yield app


@asynccontextmanager
async def notifying(app: App) -> AsyncIterator[asyncio.Task[None]]:
    """The caller, stopped at the end."""
    stop = asyncio.Event()
    task = asyncio.create_task(notify(app, stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE)


async def add(
    app: App, receiver: WebhookReceiver, *kinds: str, tenant: str = "default"
) -> webhooks.WebhookEndpoint:
    owner = await tenants.get_tenant(app.database, tenant)
    endpoint, secret = await webhooks.add_endpoint(
        app.database, app.keys, owner.id, receiver.url, kinds
    )
    receiver.secrets.append(secret.reveal())
    return endpoint


async def tell(database: Database, message_id: UUID, *kinds: str, **data: Any) -> None:
    """What somebody does who changes a delivery."""
    at = await database.fetchval("SELECT now()")
    many = len(kinds)
    await database.execute(
        TELL, [message_id] * many, [0] * many, kinds, [at] * many, [json.dumps(data)] * many
    )


async def calls(database: Database) -> list[Any]:
    return await database.fetch("SELECT * FROM pillarbox.webhook_calls ORDER BY seq")


async def call_states(database: Database, *wanted: str) -> list[Any]:
    async def there() -> list[Any] | None:
        rows = await calls(database)
        return rows if [row["state"] for row in rows] == list(wanted) else None

    return await eventually(there)


async def make_due(database: Database) -> None:
    """Let the time until the next try pass."""
    await database.execute(
        "UPDATE pillarbox.webhook_calls SET next_at = now() WHERE state = 'waiting' AND claim IS NULL"
    )
    await database.execute("SELECT pg_notify('pillarbox_webhooks', '')")


@pytest.mark.req("REQ-QUEUE-E007")
async def test_a_customer_is_told_what_becomes_of_a_mail(
    database_url: str, receiver: WebhookReceiver
) -> None:
    async with SmtpServer() as server, working(database_url, **KEYS) as app:
        endpoint = await add(app, receiver)
        await add_smtp(app.database, server)
        more = {"kind": "order", "tags": ["a", "b"], "metadata": json.dumps({"order": 7})}
        message_id = await enqueue(app.database, "ada@mail.example", **more)
        await settled(app.database, message_id, "sent")
        await receiver.wait_for(lambda: len(receiver.calls) == 1)
        (call,) = receiver.calls
        assert call.told, "no secret fits the signature"
        assert call.type == "message.sent"
        assert call.data == {
            "message_id": str(message_id), "delivery_id": f"{message_id}.0", "recipient": "ada@mail.example",
            "kind": "order", "tags": ["a", "b"], "metadata": {"order": 7}, "state": "sent", "reason": None,
            "attempt": 1, "code": 250, "next_attempt_at": None,
        }  # fmt: skip
        assert call.headers["Content-Type"] == "application/json"
        assert call.headers["User-Agent"].startswith("pillarbox-webhooks/")
        (row,) = await call_states(app.database, "delivered")
        assert (str(row["id"]), row["endpoint_id"], row["attempts"], row["status"]) == (
            call.id,
            endpoint.id,
            1,
            200,
        )


@pytest.mark.req("REQ-QUEUE-E007")
async def test_every_way_a_delivery_can_go_is_told(
    database_url: str, receiver: WebhookReceiver
) -> None:
    async with SmtpServer() as server, working(database_url, **KEYS) as app:
        await add(app, receiver)
        await add_smtp(app.database, server)
        server.faults = Faults(rcpt="550 5.1.1 no such user")
        failed = await enqueue(app.database)
        await receiver.wait_for(lambda: len(receiver.calls) == 1)
        server.faults = Faults(rcpt="450 4.2.0 come back later")
        deferred = await enqueue(app.database)
        await receiver.wait_for(lambda: len(receiver.calls) == 2)
        later = await enqueue(
            app.database, send_at=await app.database.fetchval("SELECT now() + interval '1 day'")
        )
        await operations.change_message(app.database, operations.CANCEL, later)
        await receiver.wait_for(lambda: len(receiver.calls) == 3)
        told = {(call.type, call.data["message_id"], call.data["state"]) for call in receiver.calls}
        assert told == {
            ("message.failed", str(failed), "failed"),
            ("message.deferred", str(deferred), "queued"),
            ("message.cancelled", str(later), "cancelled"),
        }
        by_type = {call.type: call.data for call in receiver.calls}
        assert by_type["message.failed"]["reason"]
        assert by_type["message.deferred"]["next_attempt_at"]


async def test_what_is_held_or_lost_with_a_worker_is_told(app: App) -> None:
    """The reaper's statement tells, too."""
    database = app.database
    async with WebhookReceiver() as receiver:
        await add(app, receiver)
        await database.execute(
            "INSERT INTO pillarbox.classes (name, unknown) VALUES ('codes', 'hold')"
        )
        for name in ("codes", "transactional"):
            await enqueue(database, **{"class": name})
        await database.execute(
            "INSERT INTO pillarbox.workers (name, lease_until) VALUES ('dead', now() - interval '1 h')"
        )
        await database.execute(
            "UPDATE pillarbox.deliveries SET state = 'processing', claim = 1, worker = 1, claimed_at = now()"
        )
        assert await Ledger(database).reap(100, 0) == 2
        rows = await calls(database)
        assert {row["kind"] for row in rows} == {"message.held", "message.deferred"}
        assert {json.loads(row["payload"])["reason"] for row in rows} == {"lost"}


async def test_only_the_kinds_asked_for(app: App, receiver: WebhookReceiver) -> None:
    await add(app, receiver, "message.bounced", "message.complained")
    message_id = await enqueue(app.database)
    await tell(app.database, message_id, "message.sent", "message.bounced", "message.opened")
    assert [row["kind"] for row in await calls(app.database)] == ["message.bounced"]


async def test_without_endpoints_nothing_is_written(app: App) -> None:
    message_id = await enqueue(app.database)
    await tell(app.database, message_id, "message.sent")
    assert await calls(app.database) == []


async def test_a_change_that_is_rolled_back_is_not_told(
    app: App, receiver: WebhookReceiver
) -> None:
    await add(app, receiver)
    message_id = await enqueue(app.database)
    async with app.database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        at = await connection.fetchval("SELECT now()")
        await connection.execute(TELL, [message_id], [0], ["message.sent"], [at], ["{}"])
        await transaction.rollback()
    assert await calls(app.database) == []


async def test_the_calls_of_a_message_come_in_order(app: App, receiver: WebhookReceiver) -> None:
    """A later call waits while an earlier one is tried again; other messages do not."""
    await add(app, receiver)
    first, second = await enqueue(app.database), await enqueue(app.database)
    receiver.dials = ReceiverDials(status=500, times=1)
    async with notifying(app):
        await tell(app.database, first, "message.sent")
        await receiver.wait_for(lambda: len(receiver.calls) == 1)
        await eventually(lambda: _tried_once(app.database))
        await tell(app.database, first, "message.delivered", "message.opened")
        await tell(app.database, second, "message.sent")
        await receiver.wait_for(lambda: len(receiver.calls) == 2)
        assert receiver.calls[1].data["message_id"] == str(second)
        await call_states(app.database, "waiting", "waiting", "waiting", "delivered")
        waits = [row["next_at"] for row in await calls(app.database)][:3]
        assert waits[1] >= waits[0], "it is not even looked at before the first is due"
        await make_due(app.database)
        await receiver.wait_for(lambda: len(receiver.calls) == 5)
    of_first = [call.type for call in receiver.calls if call.data["message_id"] == str(first)]
    assert of_first == ["message.sent", "message.sent", "message.delivered", "message.opened"]


async def _tried_once(database: Database) -> bool:
    return [row["attempts"] for row in await calls(database)] == [1]


async def test_two_callers_keep_the_order_too(database_url: str, receiver: WebhookReceiver) -> None:
    kinds = (
        "message.deferred",
        "message.sent",
        "message.delivered",
        "message.opened",
        "message.clicked",
    )
    async with opened(database_url, **KEYS) as one, opened(database_url, **KEYS) as two:
        await add(one, receiver)
        messages = [await enqueue(one.database) for _ in range(20)]
        for kind in kinds:
            for message_id in messages:
                await tell(one.database, message_id, kind)
        async with notifying(one), notifying(two):
            await receiver.wait_for(lambda: len(receiver.calls) == 100, PATIENCE)
    for message_id in messages:
        assert (
            tuple(
                call.type for call in receiver.calls if call.data["message_id"] == str(message_id)
            )
            == kinds
        )


async def test_a_call_that_fails_is_made_again_ever_later(
    app: App, receiver: WebhookReceiver
) -> None:
    await add(app, receiver)
    receiver.dials = ReceiverDials(status=503, body="down, says ada@mail.example")
    await tell(app.database, await enqueue(app.database), "message.sent")
    async with notifying(app):
        for attempt, (least, most) in enumerate([(4, 6), (24, 36), (96, 144), (480, 720)], 1):

            async def tried(attempt: int = attempt) -> Any:
                (row,) = await calls(app.database)
                return row["attempts"] == attempt and row["claim"] is None and row

            row = await eventually(tried)
            assert least <= (row["next_at"] - row["ended_at"]).total_seconds() <= most
            assert (row["state"], row["status"]) == ("waiting", 503)
            assert row["error"].startswith("answered 503: down")
            assert "ada@mail.example" not in row["error"]
            await make_due(app.database)
        receiver.dials = ReceiverDials()
        await make_due(app.database)
        await call_states(app.database, "delivered")
    assert len({call.id for call in receiver.calls}) == 1, "the same id for every try"


async def test_a_call_is_given_up_at_last_and_the_next_goes_on(
    app: App, receiver: WebhookReceiver
) -> None:
    await add(app, receiver)
    message_id = await enqueue(app.database)
    await tell(app.database, message_id, "message.sent", "message.delivered")
    await app.database.execute(
        "UPDATE pillarbox.webhook_calls SET attempts = 17 WHERE kind = 'message.sent'"
    )
    receiver.dials = ReceiverDials(status=500, times=1)
    async with notifying(app):
        await call_states(app.database, "failed", "delivered")
    assert [call.type for call in receiver.calls] == ["message.sent", "message.delivered"]


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        (ReceiverDials(hang=True), "no answer in time"),
        (ReceiverDials(drop=True), "the connection was lost before an answer came"),
        (ReceiverDials(redirect="http://127.0.0.1:1/elsewhere"), "redirects are not followed"),
        (ReceiverDials(endless=True), "answered 500"),
        (ReceiverDials(status=404), "answered 404"),
        (ReceiverDials(status=199 + 500, body="\x1b[31mred\nline"), "[31mred line"),
    ],
)
async def test_receivers_that_misbehave(
    database_url: str, receiver: WebhookReceiver, dials: Any, said: str
) -> None:
    async with opened(database_url, **KEYS, webhook_timeout="1s") as app:
        await add(app, receiver)
        await tell(app.database, await enqueue(app.database), "message.sent")
        receiver.dials = dials

        async def tried() -> Any:
            (row,) = await calls(app.database)
            return row["attempts"] == 1 and row

        async with notifying(app):
            row = await eventually(tried)
        assert said in row["error"]
        assert (row["state"], len(receiver.calls), len(row["error"]) <= 500) == ("waiting", 1, True)


async def test_addresses_that_are_not_public_are_never_called(
    database_url: str, receiver: WebhookReceiver
) -> None:
    """One added while it was allowed, or changed behind our back, meets the rule at each call."""
    async with opened(database_url, **KEYS | {"webhook_allow_private": "false"}) as app:
        for url in (
            receiver.url,
            f"https://127.0.0.1:{receiver.port}/",
            f"https://localhost:{receiver.port}/",
        ):
            owner = await tenants.get_tenant(app.database, "default")
            await webhooks.add_endpoint(app.database, app.keys, owner.id, url)
        await tell(app.database, await enqueue(app.database), "message.sent")

        async def tried() -> Any:
            rows = await calls(app.database)
            return all(row["attempts"] == 1 for row in rows) and rows

        async with notifying(app):
            rows = await eventually(tried)
        assert len(rows) == 3
        assert all(row["error"].startswith("not called: ") for row in rows)
        assert "127.0.0.1" not in str([row["error"] for row in rows])
        assert receiver.calls == []


async def test_a_caller_that_is_killed_in_the_middle_of_a_call(
    app: App, database_url: str, receiver: WebhookReceiver
) -> None:
    """At least once: when the lease is over another makes the call again, under the same id."""
    receiver.dials = ReceiverDials(hang=True, times=1)
    await add(app, receiver)
    await tell(app.database, await enqueue(app.database), "message.sent")
    given = {
        "database_url": database_url,
        "secret_keys": KEYS["secret_keys"],
        "webhook_allow_private": "true",
    }
    with process(
        "worker", env={f"PILLARBOX_{name.upper()}": value for name, value in given.items()}
    ) as worker:
        await receiver.wait_for(lambda: len(receiver.calls) == 1, PATIENCE)
        worker.popen.kill()
        await asyncio.to_thread(worker.popen.wait)
    receiver.let_go()
    (row,) = await calls(app.database)
    assert (row["state"], row["attempts"], row["claim"] is not None) == ("waiting", 0, True)
    assert (row["next_at"] - await app.database.fetchval("SELECT now()")).total_seconds() < 46
    await app.database.execute("UPDATE pillarbox.webhook_calls SET next_at = now()")
    async with notifying(app):
        await call_states(app.database, "delivered")
    assert len(receiver.calls) == 2
    assert receiver.calls[0].id == receiver.calls[1].id
    assert receiver.calls[0].body == receiver.calls[1].body


async def test_whoever_lost_the_claim_settles_nothing(app: App, receiver: WebhookReceiver) -> None:
    await add(app, receiver)
    await tell(app.database, await enqueue(app.database), "message.sent")
    (late,) = await webhooks.claim(app.database, app.keys, 0, 10, 10, {})
    (now,) = await webhooks.claim(app.database, app.keys, 60, 10, 10, {})
    assert late.id == now.id
    result = webhooks.CallResult(webhooks.CallState.FAILED, 500, "late", 1.0)
    assert not (await webhooks.settle(app.database, late, result, 60)).held
    done = webhooks.CallResult(webhooks.CallState.DELIVERED, 200, None, 1.0)
    assert (await webhooks.settle(app.database, now, done, 60)).held
    await call_states(app.database, "delivered")


async def test_stopping_waits_for_calls_and_gives_back_the_rest(
    database_url: str, receiver: WebhookReceiver
) -> None:
    receiver.dials = ReceiverDials(hang=True)
    async with opened(database_url, **KEYS, worker_drain_timeout="200ms") as app:
        await add(app, receiver)
        await tell(app.database, await enqueue(app.database), "message.sent")
        async with notifying(app):
            await receiver.wait_for(lambda: len(receiver.calls) == 1)
        (row,) = await calls(app.database)
        assert (row["state"], row["claim"], row["attempts"]) == ("waiting", None, 0)


async def test_one_slow_receiver_does_not_delay_another(
    database_url: str, receiver: WebhookReceiver
) -> None:
    async with (
        WebhookReceiver(dials=ReceiverDials(hang=True)) as slow,
        opened(database_url, **KEYS, webhook_concurrency=5) as app,
    ):
        await tenants.add_tenant(app.database, "slow")
        await add(app, slow, tenant="slow")
        await add(app, receiver)
        for _ in range(20):
            await tell(app.database, await enqueue(app.database, tenant="slow"), "message.sent")
        async with notifying(app):
            await slow.wait_for(lambda: len(slow.calls) == 1)
            for _ in range(5):
                await tell(app.database, await enqueue(app.database), "message.sent")
            await receiver.wait_for(lambda: len(receiver.calls) == 5)
            assert len(slow.calls) == 1, "a fifth of five, and no more"
            slow.let_go()
            slow.dials = ReceiverDials()


async def test_one_that_only_fails_is_disabled_with_notice(
    database_url: str, receiver: WebhookReceiver
) -> None:
    async with opened(database_url, **KEYS, webhook_disable_after="1h") as app:
        endpoint = await add(app, receiver)
        receiver.dials = ReceiverDials(status=500)
        message_id = await enqueue(app.database)
        await tell(app.database, message_id, "message.sent")

        async def now() -> webhooks.WebhookEndpoint:
            return await webhooks.get_endpoint(app.database, endpoint.id)

        async with notifying(app):

            async def failing() -> bool:
                return (await now()).failing_since is not None

            await eventually(failing)
            assert (await now()).enabled
            await app.database.execute(
                "UPDATE pillarbox.webhook_endpoints SET failing_since = now() - interval '2 hours'"
            )
            await make_due(app.database)

            async def disabled() -> bool:
                return not (await now()).enabled

            await eventually(disabled)
            found = await now()
            assert (found.disabled_reason, found.disabled_at is not None, found.waiting) == (
                "failing",
                True,
                1,
            )
            assert (
                app.metrics.registry.get_sample_value(
                    "pillarbox_webhook_disabled_total", {"reason": "failing"}
                )
                == 1
            )
            await tell(app.database, message_id, "message.delivered")  # nothing new is kept for it
            receiver.dials = ReceiverDials()
            await webhooks.enable_endpoint(app.database, endpoint.id, endpoint.tenant_id)
            await call_states(app.database, "delivered")
            assert (await now()).failing_since is None


async def test_one_success_ends_the_failing(app: App, receiver: WebhookReceiver) -> None:
    endpoint = await add(app, receiver)
    receiver.dials = ReceiverDials(status=500, times=1)
    async with notifying(app):
        await tell(app.database, await enqueue(app.database), "message.sent")
        await eventually(
            lambda: app.database.fetchval("SELECT attempts = 1 FROM pillarbox.webhook_calls")
        )
        await tell(app.database, await enqueue(app.database), "message.sent")
        await call_states(app.database, "waiting", "delivered")
    assert (await webhooks.get_endpoint(app.database, endpoint.id)).failing_since is None


async def test_410_disables_at_once(app: App, receiver: WebhookReceiver) -> None:
    endpoint = await add(app, receiver)
    receiver.dials = ReceiverDials(status=410)
    await tell(app.database, await enqueue(app.database), "message.sent")
    async with notifying(app):

        async def gone() -> bool:
            return (
                await webhooks.get_endpoint(app.database, endpoint.id)
            ).disabled_reason == "gone"

        await eventually(gone)


async def test_after_a_rotation_both_secrets_fit_for_a_while(
    app: App, receiver: WebhookReceiver
) -> None:
    endpoint = await add(app, receiver)
    (old,) = receiver.secrets
    new = (
        await webhooks.rotate_endpoint(app.database, app.keys, endpoint.id, endpoint.tenant_id)
    ).reveal()
    async with notifying(app):
        for secrets in ([old], [new]):
            receiver.secrets = secrets
            many = len(receiver.calls)
            await tell(app.database, await enqueue(app.database), "message.sent")
            await receiver.wait_for(lambda many=many: len(receiver.calls) > many)
            assert receiver.calls[-1].told
        await app.database.execute(
            "UPDATE pillarbox.webhook_endpoints SET old_secret_until = now()"
        )
        receiver.secrets = [old]
        await tell(app.database, await enqueue(app.database), "message.sent")
        await receiver.wait_for(lambda: len(receiver.calls) == 3)
        assert receiver.calls[-1].told is None


async def test_secrets_are_sealed_bound_to_their_row_and_resealed(
    app: App, receiver: WebhookReceiver
) -> None:
    first, second = await add(app, receiver), await add(app, receiver)
    await webhooks.rotate_endpoint(app.database, app.keys, first.id, first.tenant_id)
    kept = await app.database.fetch("SELECT secret FROM pillarbox.webhook_endpoints")
    assert not any(
        secret.removeprefix("whsec_").encode() in row["secret"]
        for row in kept
        for secret in receiver.secrets
    )
    app.settings = replace(app.settings, secret_keys=(Secret("22" * 32), *app.settings.secret_keys))
    assert await webhooks.rotate_secrets(app.database, app.keys()) == (3, 3)
    assert await webhooks.rotate_secrets(app.database, app.keys()) == (0, 3)
    await app.database.execute(
        "UPDATE pillarbox.webhook_endpoints SET secret = (SELECT secret FROM pillarbox.webhook_endpoints WHERE id = $1)"
        " WHERE id = $2",
        first.id, second.id,
    )  # fmt: skip
    await tell(app.database, await enqueue(app.database), "message.sent")
    async with notifying(app):

        async def tried() -> Any:
            rows = {row["endpoint_id"]: row for row in await calls(app.database)}
            return all(row["attempts"] for row in rows.values()) and rows

        rows = await eventually(tried)
    assert rows[first.id]["state"] == "delivered"
    assert "secret cannot be opened" in rows[second.id]["error"]


async def test_replaying(app: App, receiver: WebhookReceiver) -> None:
    endpoint = await add(app, receiver)
    messages = [await enqueue(app.database) for _ in range(5)]
    for message_id in messages:
        await tell(app.database, message_id, "message.sent")
    await app.database.execute(
        "UPDATE pillarbox.webhook_calls SET state = 'failed' WHERE message_id = ANY ($1::uuid[])",
        messages[:3],
    )
    of = endpoint.id, endpoint.tenant_id
    async with notifying(app):
        await call_states(app.database, "failed", "failed", "failed", "delivered", "delivered")
        rows = await calls(app.database)
        assert (
            await webhook_log.replay(app.database, *of, calls=[rows[0]["id"], rows[4]["id"]])
        ).count == 2
        await call_states(app.database, "delivered", "failed", "failed", "delivered", "delivered")
        some = await webhook_log.replay(app.database, *of, limit=1)
        assert (some.count, some.last) == (1, rows[1]["id"])
        rest = await webhook_log.replay(app.database, *of, limit=10, after=some.last)
        assert (rest.count, rest.last) == (1, None)
        await call_states(app.database, *["delivered"] * 5)
        await receiver.wait_for(lambda: len(receiver.calls) == 6)
    assert sum(call.id == str(rows[4]["id"]) for call in receiver.calls) == 2
    assert [row["replays"] for row in await calls(app.database)] == [1, 1, 1, 0, 1]


async def test_the_database_goes_away_in_the_middle_of_a_call(
    stoppable: EmbeddedPostgres, receiver: WebhookReceiver
) -> None:
    """A result that cannot be written is written later; nothing is lost, and calls go on."""
    receiver.dials = ReceiverDials(hang=True, times=1)
    async with opened(stoppable.url(), **KEYS) as app:
        await add(app, receiver)
        await tell(app.database, await enqueue(app.database), "message.sent")
        async with notifying(app):
            await receiver.wait_for(lambda: len(receiver.calls) == 1)
            await asyncio.to_thread(stoppable.stop, "immediate")
            receiver.let_go()
            with pytest.raises(StoreError):
                await webhooks.due_in(app.database)
            await asyncio.to_thread(stoppable.start)

            async def delivered() -> bool:
                try:
                    return [row["state"] for row in await calls(app.database)] == ["delivered"]
                except StoreError:
                    return False

            await eventually(delivered)
            await tell(app.database, await enqueue(app.database), "message.sent")
            await call_states(app.database, "delivered", "delivered")
    assert len(receiver.calls) == 2


async def test_calls_are_told_to_the_message_s_tenant_alone(
    app: App, receiver: WebhookReceiver
) -> None:
    await tenants.add_tenant(app.database, "shop")
    async with WebhookReceiver() as shops, notifying(app):
        mine, theirs = await add(app, receiver), await add(app, shops, tenant="shop")
        message_id = await enqueue(app.database, tenant="shop")
        await tell(app.database, message_id, "message.sent")
        await shops.wait_for(lambda: len(shops.calls) == 1)
        assert [row["endpoint_id"] for row in await calls(app.database)] == [theirs.id]
        assert receiver.calls == []
    assert await webhook_log.list_calls(app.database, theirs.id, mine.tenant_id) == []


async def test_retention(app: App, receiver: WebhookReceiver) -> None:
    await add(app, receiver)
    for _ in range(5):
        await tell(app.database, await enqueue(app.database), "message.sent")
    await app.database.execute(
        "UPDATE pillarbox.webhook_calls SET state = 'delivered'"
        " WHERE seq <= (SELECT min(seq) + 2 FROM pillarbox.webhook_calls)"
    )
    assert await purge_webhook_calls(app.database, 3600, 2) == 0
    assert await purge_webhook_calls(app.database, None, 2) == 0
    assert await purge_webhook_calls(app.database, -60, 2) == 3
    await app.database.execute(
        "UPDATE pillarbox.webhook_endpoints SET enabled = false, disabled_at = now(), disabled_reason = 'person'"
    )
    assert await purge_webhook_calls(app.database, -60, 2) == 2
