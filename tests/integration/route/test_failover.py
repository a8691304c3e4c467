"""Mails leave through the next provider of their route when the first cannot carry them, refuses, fails or hangs."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

import pytest

from pillarbox.deliver.delivery_attempt import DeliveryAttempt
from pillarbox.model import return_path
from pillarbox.route import circuit_breaker
from pillarbox.store import providers, routes, shared_health, tenants
from pillarbox.store.database import Database
from pillarbox.testing import Faults, SmtpServer
from pillarbox.testing.smtp import Hang
from tests import PATIENCE
from tests.harness import (
    add_smtp,
    attempts,
    deliveries,
    enqueue,
    eventually,
    opened,
    settled,
    working,
)


@pytest.fixture
def quick_breakers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open breakers are probed soon."""
    monkeypatch.setattr(circuit_breaker, "FIRST_WAIT", 0.3)


async def add_route(
    database: Database, *names: str, tenant: str | None = None, **match: Any
) -> None:
    numbers = {one.name: one.id for one in await providers.list_providers(database)}
    tenant_id = await database.fetchval("SELECT id FROM pillarbox.tenants WHERE name = $1", tenant)
    columns = {"name": f"r{time.monotonic_ns()}", "place": 1, "tenant_id": tenant_id} | match
    columns["providers"] = [numbers[name] for name in names]
    places = ", ".join(f"${place}" for place in range(1, len(columns) + 1))
    await database.execute(
        f"INSERT INTO pillarbox.routes ({', '.join(columns)}) VALUES ({places})", *columns.values()
    )
    assert await routes.list_rules(database)


async def circuit(database: Database, number: int) -> str | None:
    return next(
        (
            one.state
            for one in await shared_health.list_shared_health(database)
            if one.provider_id == number
        ),
        None,
    )


async def events(database: Database, message_id: UUID, kind: str) -> list[Any]:
    return await database.fetch(
        "SELECT * FROM pillarbox.events WHERE message_id = $1 AND kind = $2", message_id, kind
    )


async def dead_port(database: Database, name: str, **settings: Any) -> int:
    """A provider where nobody listens."""
    async with SmtpServer() as gone:
        return await add_smtp(database, gone, name, **settings)


@pytest.mark.req("REQ-QUEUE-E009")
@pytest.mark.req("REQ-QUEUE-S002")
async def test_a_provider_that_refuses_is_left_at_once(
    database: Database, database_url: str
) -> None:
    first = await dead_port(database, "first")
    async with SmtpServer() as second:
        await add_smtp(database, second, "second")
        async with working(database_url) as app:
            ids = [await enqueue(database) for _ in range(5)]
            for message_id in ids:
                [delivery] = await settled(database, message_id, "sent")
                assert delivery["attempts"] == 1, "it went elsewhere in the same attempt"
            await eventually(lambda: _is(database, first, "open"))
            later = await enqueue(database)
            await settled(database, later, "sent")
            text = app.metrics.render().decode()
    assert len(second.mails) == 6
    [told] = await events(database, ids[0], "failed_over")
    assert '"from": "first"' in told["data"]
    assert '"to": "second"' in told["data"]
    tries = await attempts(database, ids[0])
    assert [(one["step"], one["provider_id"], one["verdict"]) for one in tries] == [
        (0, first, "deferred"),
        (1, first + 1, "accepted"),
    ]
    assert tries[0]["claim"] == tries[1]["claim"]
    assert tries[0]["started_at"] <= tries[0]["ended_at"] <= tries[1]["ended_at"]
    assert await events(database, later, "failed_over") == [], (
        "it was not even tried with the first"
    )
    assert 'pillarbox_failovers_total{from="first",reason="unavailable",to="second"}' in text
    assert 'pillarbox_provider_circuit{provider="first",state="open"} 1.0' in text


async def _is(database: Database, number: int, state: str) -> bool:
    return await circuit(database, number) == state


async def test_a_provider_that_hangs_loses_what_it_was_not_given_yet(
    database: Database, database_url: str
) -> None:
    """It accepts connections and says nothing: nothing was handed over, and all leave through the other."""
    async with SmtpServer(Faults(connect=Hang())) as first, SmtpServer() as second:
        await add_smtp(
            database, first, "first", connect_timeout=10 * PATIENCE
        )  # what helps is not that it times out
        await add_smtp(database, second, "second")
        ids = [await enqueue(database) for _ in range(20)]
        async with working(database_url):
            for message_id in ids:
                await settled(database, message_id, "sent")
    assert len(second.mails) == 20
    assert first.mails == []


async def test_what_was_handed_over_to_a_provider_that_hangs_is_unknown(
    database: Database, database_url: str
) -> None:
    """After the final dot there is no way back; what waited behind goes elsewhere, and nothing is sent twice."""
    async with SmtpServer(Faults(body=Hang(stored=True))) as first, SmtpServer() as second:
        await add_smtp(database, first, "first", connections=3, data_timeout=10 * PATIENCE)
        await add_smtp(database, second, "second")
        await database.execute(
            "UPDATE pillarbox.classes SET unknown = 'hold' WHERE name = 'transactional'"
        )
        ids = [await enqueue(database) for _ in range(20)]
        async with working(database_url):
            await second.wait_for(lambda: len(second.mails) == 17)
            await first.stop()  # the conversations end: nobody saw how
            found = [(await _finished(database, one))["state"] for one in ids]
    assert sorted(found) == ["held"] * 3 + ["sent"] * 17
    assert len(first.mails) == 3
    assert len({mail.message["Message-ID"] for mail in first.mails + second.mails}) == 20


async def _finished(database: Database, message_id: UUID) -> Any:
    async def one() -> Any:
        [row] = await deliveries(database, message_id)
        return row if row["state"] in ("sent", "held", "failed") else None

    return await eventually(one)


async def test_a_wrong_password_marks_the_provider_not_the_mail(
    database: Database, database_url: str
) -> None:
    async with (
        SmtpServer(Faults(mail="530 5.7.0 Authentication required")) as first,
        SmtpServer() as second,
    ):
        number = await add_smtp(database, first, "first")
        await add_smtp(database, second, "second")
        async with working(database_url):
            message_id = await enqueue(database)
            await settled(database, message_id, "sent")
            await eventually(lambda: _is(database, number, "open"))
            kinds = await database.fetch(
                "SELECT kind, data->>'reason' AS reason FROM pillarbox.provider_events"
            )
    assert [tuple(row) for row in kinds] == [("opened", "credential")]
    assert len(second.mails) == 1


async def test_a_provider_that_is_back_is_used_again(
    database: Database, database_url: str, quick_breakers: None
) -> None:
    async with SmtpServer() as first, SmtpServer() as second:
        number = await add_smtp(database, first, "first")
        await add_smtp(database, second, "second")
        async with working(database_url):
            await first.stop()
            await settled(database, await enqueue(database), "sent")
            for _ in range(3):
                await settled(database, await enqueue(database), "sent")
            await eventually(lambda: _is(database, number, "open"))
            await first.start()
            await eventually(lambda: _is(database, number, "half_open"))
            for _ in range(4):
                await settled(database, await enqueue(database), "sent")
            await eventually(lambda: _is(database, number, "closed"))
    assert len(first.mails) >= 3
    assert len(first.mails) + len(second.mails) == 8


async def test_with_no_provider_left_mails_wait_and_lose_no_attempt(
    database: Database, database_url: str, quick_breakers: None
) -> None:
    async with SmtpServer() as server:
        number = await add_smtp(database, server)
        await server.stop()
        async with working(database_url, worker_poll_interval="0.2"):
            for _ in range(4):
                await enqueue(database)
            await eventually(lambda: _is(database, number, "open"))
            waiting = [await enqueue(database) for _ in range(10)]
            await server.start()
            for message_id in waiting:
                [delivery] = await settled(database, message_id, "sent")
                assert delivery["attempts"] == 1


async def test_processes_share_what_they_know(database: Database, database_url: str) -> None:
    """One process finds a provider dead; another does not even try."""
    number = await dead_port(database, "first")
    async with SmtpServer() as second:
        await add_smtp(database, second, "second")
        async with working(database_url), working(database_url) as other:
            for _ in range(6):
                await settled(database, await enqueue(database), "sent")
            await eventually(lambda: _is(database, number, "open"))

            async def heard() -> bool:
                return (
                    'provider_circuit{provider="first",state="open"} 1.0'
                    in other.metrics.render().decode()
                )

            await eventually(heard, 2)


@pytest.mark.req("REQ-QUEUE-E002")
async def test_recipients_of_one_mail_may_go_different_ways(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as first, SmtpServer() as second:
        await add_smtp(database, first, "first")
        await add_smtp(database, second, "second")
        await add_route(database, "second", recipient_domains=["special.example"])
        async with working(database_url):
            message_id = await enqueue(
                database, "a@mail.example", "b@special.example", "c@mail.example"
            )
            await settled(database, message_id, "sent", "sent", "sent")
    assert [mail.recipients for mail in first.mails] == [("a@mail.example", "c@mail.example")]
    assert [mail.recipients for mail in second.mails] == [("b@special.example",)]
    names = {one.id: one.name for one in await providers.list_providers(database)}
    rows = await attempts(database, message_id)
    assert [names[row["provider_id"]] for row in rows] == ["first", "second", "first"]


async def test_a_person_may_choose_the_provider_of_a_delivery(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as first, SmtpServer() as second:
        await add_smtp(database, first, "first")
        number = await add_smtp(database, second, "second")
        message_id = await enqueue(database)
        await database.execute("UPDATE pillarbox.deliveries SET via = $1", number)
        async with working(database_url):
            await settled(database, message_id, "sent")
    assert (len(first.mails), len(second.mails)) == (0, 1)


async def test_a_chosen_provider_that_was_removed_does_not_hold_the_mail(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as first, SmtpServer() as second:
        await add_smtp(database, first, "first")
        number = await add_smtp(database, second, "second")
        message_id = await enqueue(database)
        await database.execute("UPDATE pillarbox.deliveries SET via = $1", number)
        await providers.remove_provider(database, "second")
        async with working(database_url):
            await settled(database, message_id, "sent")
    assert len(first.mails) == 1


async def test_a_provider_that_cannot_be_used_here_leaves_the_others_alone(
    database: Database, database_url: str
) -> None:
    """As of a kind that only a newer version knows, while one is being rolled out."""
    async with SmtpServer() as first, SmtpServer() as second:
        number = await add_smtp(database, first, "first")
        await add_smtp(database, second, "second")
        await database.execute(
            "UPDATE pillarbox.providers SET kind = 'pigeon' WHERE id = $1", number
        )
        async with working(database_url):
            await settled(database, await enqueue(database), "sent")
    assert len(second.mails) == 1


async def test_a_fault_of_ours_before_anything_is_sent_does_not_keep_the_mail(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(attempt: DeliveryAttempt) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(DeliveryAttempt, "groups", broken)
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(database)
            await settled(database, message_id, "pending")
            monkeypatch.undo()
            await database.execute("UPDATE pillarbox.deliveries SET next_attempt_at = now()")
            await settled(database, message_id, "sent")
    assert len(server.mails) == 1


async def test_a_suppressed_recipient_fails_at_once_and_the_others_get_the_mail(
    database: Database, database_url: str
) -> None:
    await database.execute(
        """INSERT INTO pillarbox.suppressions (tenant_id, address, reason, expires_at) VALUES
             (1, 'gone@mail.example', 'hard_bounce', NULL), (1, 'past@mail.example', 'manual', now() - interval '1 s'),
             (2, 'a@mail.example', 'manual', NULL)"""
    )
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(
                database, "a@mail.example", "Gone@Mail.example", "past@mail.example"
            )
            rows = await settled(database, message_id, "sent", "failed", "sent")
    assert rows[1]["reason"] == "suppressed"
    assert [mail.recipients for mail in server.mails] == [("a@mail.example", "past@mail.example")]


async def test_a_route_without_a_usable_provider_lets_the_others_pass(
    database: Database, database_url: str
) -> None:
    """The tenant's other mails do not wait for a provider that is down, and the mail says what it waits for."""
    async with SmtpServer() as server:
        await add_smtp(database, server, "first")
        number = await dead_port(database, "down")
        await add_route(database, "down", kinds=["report"])
        async with working(database_url):
            for _ in range(4):
                await enqueue(database, kind="report")
            await eventually(lambda: _is(database, number, "open"))
            stuck = await enqueue(database, kind="report")

            async def aside() -> bool:
                [row] = await deliveries(database, stuck)
                return (row["state"], row["reason"], row["attempts"]) == (
                    "pending",
                    "no_provider",
                    0,
                )

            await eventually(aside)
            await settled(database, await enqueue(database), "sent")


async def test_a_provider_that_asks_for_less_gets_less(
    database: Database, database_url: str
) -> None:
    """421 and 451 for the rate slow one provider down; it is not unhealthy, and its mails are not lost."""
    full = [None, "451 4.7.28 rate limit exceeded, try again in 1 seconds", *[None] * 100]
    async with SmtpServer(Faults(mail=list(full))) as server:
        number = await add_smtp(database, server)
        async with working(database_url) as app:
            ids = [await enqueue(database) for _ in range(2)]
            await eventually(lambda: _any_deferred(database))

            async def slower() -> bool:
                return (
                    'pillarbox_provider_pace{provider="relay"} 5.0' in app.metrics.render().decode()
                )

            await eventually(slower)
            assert await circuit(database, number) in (None, "closed")
    assert len(ids) == 2


async def _any_deferred(database: Database) -> bool:
    return bool(
        await database.fetchval(
            "SELECT count(*) FROM pillarbox.deliveries WHERE reason = 'rate_limited'"
        )
    )


async def test_an_idle_provider_is_checked(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.deliver.health_monitor.CHECK_INTERVAL", 0.2)
    number = await dead_port(database, "first")
    async with working(database_url):
        await eventually(lambda: _is(database, number, "open"), PATIENCE)
    row = await database.fetchrow(
        "SELECT * FROM pillarbox.provider_health WHERE provider_id = $1", number
    )
    assert row["check_ok"] is False
    assert "unavailable" in row["check_said"]


async def test_an_app_without_a_worker_checks_nobody(database: Database, database_url: str) -> None:
    await dead_port(database, "first")
    async with opened(database_url):
        assert await shared_health.list_shared_health(database) == []


async def test_bounces_of_smtp_come_back_to_a_signed_return_path(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url, return_path_domain="bounces.shop.example") as app:
            message_id = await enqueue(database)
            await settled(database, message_id, "sent")
            key = await app.return_path_key()
    [mail] = server.mails
    assert mail.sender.endswith("@bounces.shop.example")
    assert return_path.read(mail.sender, key) == message_id
    assert mail.message["From"] == "Sender <sender@shop.example>"


async def test_with_several_providers_nothing_is_claimed_in_vain(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as first, SmtpServer() as second:
        await add_smtp(database, first, "first")
        await add_smtp(database, second, "second")
        ids = [await enqueue(database) for _ in range(300)]
        async with working(database_url, worker_concurrency=2) as app:
            for message_id in ids:
                await settled(database, message_id, "sent")
            text = app.metrics.render().decode()
    assert "pillarbox_claimed_deliveries_total 300.0" in text
    assert len(first.mails) == 300


async def test_a_slow_provider_does_not_take_the_places_of_another(
    database: Database, database_url: str
) -> None:
    """One tenant's mails pile up before a slow provider; another tenant's leave through theirs at once."""
    release = asyncio.Event()

    async def slow(session: object, argument: object) -> None:
        await release.wait()

    async with SmtpServer(Faults(body=slow)) as first, SmtpServer() as second:
        await add_smtp(database, first, "first")
        await add_smtp(database, second, "second")
        await tenants.add_tenant(database, "other")
        await add_route(database, "second", tenant="other")
        many = [await enqueue(database) for _ in range(200)]
        async with working(database_url, worker_concurrency=2):
            await first.wait_for(
                lambda: sum(line.startswith("DATA") for line in first.commands) == 2
            )
            for _ in range(3):
                await settled(database, await enqueue(database, tenant="other"), "sent")
            release.set()
            for message_id in many:
                await settled(database, message_id, "sent")
    assert len(second.mails) >= 3
    assert len(first.mails) + len(second.mails) == 203


async def test_many_lanes_of_a_slow_provider_leave_places_for_another(
    database: Database, database_url: str
) -> None:
    """Each mail for the slow one is the first of its lane, so that nobody can know where it will go."""
    release = asyncio.Event()

    async def slow(session: object, argument: object) -> None:
        await release.wait()

    async with SmtpServer(Faults(body=slow)) as first, SmtpServer() as second:
        await add_smtp(database, first, "first")
        await add_smtp(database, second, "second")
        for name in ("other", *(f"t{number}" for number in range(60))):
            await tenants.add_tenant(database, name)
        await add_route(database, "second", tenant="other")
        many = [await enqueue(database, tenant=f"t{number}") for number in range(60)]
        async with working(database_url, worker_concurrency=2, worker_pipeline=5):
            await first.wait_for(
                lambda: sum(line.startswith("DATA") for line in first.commands) == 2
            )
            for _ in range(20):
                await settled(database, await enqueue(database, tenant="other"), "sent")
            release.set()
            for message_id in many:
                await settled(database, message_id, "sent")
    assert len(first.mails) + len(second.mails) == 80
    assert len(second.mails) >= 20


async def test_a_server_that_is_slow_to_greet_is_not_taken_for_hung_for_ever(
    database: Database, database_url: str, quick_breakers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some servers let everybody wait before they greet. The first probe tells how long, and mails get that time."""
    monkeypatch.setattr(circuit_breaker, "SLOW", 0.1)

    async def tarpit(session: object, argument: object) -> None:
        await asyncio.sleep(2.0)

    async with SmtpServer(Faults(connect=tarpit)) as server:
        number = await add_smtp(database, server, connections=1)
        async with working(database_url):
            ids = [await enqueue(database) for _ in range(5)]
            await eventually(lambda: _is(database, number, "open"))
            for message_id in ids:
                await settled(database, message_id, "sent")
            await eventually(lambda: _is(database, number, "closed"))
