"""The SMTP transport's pool: how many connections, for how long, and what closing leaves behind."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pillarbox.deliver.transports.smtp import SmtpTransport
from pillarbox.errors import NotStarted
from pillarbox.model.outcome import Reason, Verdict
from pillarbox.testing.smtp import Drop, Extensions, Faults, Hang, Session, SmtpServer
from tests import PATIENCE
from tests.integration.deliver.smtp_helpers import (
    outgoing,
    send,
    send_one,
    settings_for,
    talking,
    told,
)

ACCEPTED = (Verdict.ACCEPTED, None)
PIPELINING = pytest.mark.parametrize("pipelining", [True, False])


# --- the pool ---


async def test_connections_are_opened_on_demand_up_to_the_limit() -> None:
    gate = asyncio.Event()

    async def wait(session: Session, argument: str) -> None:
        await gate.wait()

    async with talking(Faults(body=wait), connections=3) as (server, transport):
        sending = asyncio.gather(*(transport.send(outgoing()) for _ in range(10)))
        await server.wait_for(lambda: server.commands.count("DATA") == 3)
        assert (transport.connections_open, transport.connections_busy) == (3, 3)
        gate.set()
        await sending
        assert (transport.connections_open, transport.connections_busy, transport.waiting) == (
            3,
            0,
            0,
        )
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert server.peak_connections == server.connections == 3
    assert len(server.mails) == 11


async def test_one_mail_after_another_needs_one_connection() -> None:
    async with talking() as (server, transport):
        for _ in range(5):
            assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert server.connections == 1
    assert server.commands[-1] == "QUIT"


@PIPELINING
async def test_connections_are_recycled_after_so_many_messages(pipelining: bool) -> None:
    async with talking(
        extensions=Extensions(pipelining=pipelining), connections=1, max_messages=3
    ) as (
        server,
        transport,
    ):
        reports = await send(transport, *(outgoing() for _ in range(10)))
    assert [told(report) for report in reports] == [[ACCEPTED]] * 10
    assert Counter(mail.connection for mail in server.mails) == {1: 3, 2: 3, 3: 3, 4: 1}
    assert server.peak_connections == 1
    assert server.commands.count("QUIT") == 4


async def test_connections_are_recycled_after_their_age() -> None:
    async with talking(max_age=0) as (server, transport):
        for _ in range(3):
            assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert server.connections == 3


async def test_idle_connections_say_goodbye() -> None:
    async with talking(max_idle=0.05) as (server, transport):
        await send_one(transport)
        await server.wait_for(lambda: server.open_connections == 0)
        assert server.commands[-1] == "QUIT"
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert server.connections == 2


async def test_a_server_that_limits_connections_still_gets_every_mail() -> None:
    async with talking(Faults(concurrent_connections=2), connections=8) as (server, transport):
        reports = await send(transport, *(outgoing() for _ in range(60)))
    assert [told(report) for report in reports] == [[ACCEPTED]] * 60
    assert len(server.mails) == 60


async def test_a_cancelled_sender_in_the_queue_is_forgotten() -> None:
    gate = asyncio.Event()

    async def wait(session: Session, argument: str) -> None:
        await gate.wait()

    async with talking(Faults(mail=wait), connections=1) as (server, transport):
        first = asyncio.create_task(transport.send(outgoing()))
        await server.wait_for(lambda: "DATA" in str(server.commands) or len(server.commands) > 1)
        second = asyncio.create_task(transport.send(outgoing("never@x.test")))
        while not transport.waiting:
            await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        assert (second.cancelled(), transport.waiting) == (True, 0)
        gate.set()
        assert told(await first) == [ACCEPTED]
    assert not any("never" in line for line in server.commands)


async def test_a_cancelled_sender_in_flight_leaves_the_connection_alone() -> None:
    gate = asyncio.Event()

    async def wait(session: Session, argument: str) -> None:
        await gate.wait()

    async with talking(Faults(body=[wait]), connections=1) as (server, transport):
        first = asyncio.create_task(transport.send(outgoing("gone@x.test")))
        await server.wait_for(lambda: "DATA" in server.commands)
        first.cancel()
        await asyncio.wait([first])
        gate.set()
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert [mail.recipients for mail in server.mails] == [("gone@x.test",), ("b@x.test",)]
    assert server.connections == 1


# --- closing ---


async def test_closing_finishes_what_is_in_flight_and_gives_the_rest_back() -> None:
    gate = asyncio.Event()

    async def wait(session: Session, argument: str) -> None:
        await gate.wait()

    async with SmtpServer(Faults(mail=wait)) as server:
        transport = SmtpTransport(settings_for(server, connections=1))
        tasks = [asyncio.create_task(transport.send(outgoing(f"{n}@x.test"))) for n in range(3)]
        await server.wait_for(lambda: any(line.startswith("MAIL") for line in server.commands))
        closing = asyncio.create_task(transport.close())
        await asyncio.wait(tasks[1:])
        gate.set()
        await asyncio.wait_for(closing, PATIENCE)
        assert told(await tasks[0]) == [ACCEPTED]
        assert [type(task.exception()) for task in tasks[1:]] == [NotStarted, NotStarted]
        with pytest.raises(NotStarted):
            await transport.send(outgoing())
        await server.wait_for(lambda: server.open_connections == 0)
        await transport.close()
    assert [mail.recipients for mail in server.mails] == [("0@x.test",)]
    assert server.commands[-1] == "QUIT"


@pytest.mark.parametrize("stage", ["mail", "body"])
async def test_an_impatient_close_tells_what_it_knows(stage: str) -> None:
    gate = asyncio.Event()

    async def wait(session: Session, argument: str) -> None:
        await gate.wait()

    async with SmtpServer(Faults(**{stage: wait})) as server:
        transport = SmtpTransport(settings_for(server))
        sending = asyncio.create_task(transport.send(outgoing()))
        seen = "DATA" if stage == "body" else "MAIL"
        await server.wait_for(lambda: any(line.startswith(seen) for line in server.commands))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(transport.close(), 0.05)
        if stage == "mail":
            with pytest.raises(NotStarted):
                await sending
        else:
            assert told(await sending) == [(Verdict.UNKNOWN, Reason.LOST)]
        gate.set()
        await server.wait_for(lambda: server.open_connections == 0)
        assert transport.connections_open == 0


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_lost_connection_while_closing_gives_its_envelope_back(cancelled: bool) -> None:
    gate = asyncio.Event()

    async def lose(session: Session, argument: str) -> Drop:
        await gate.wait()
        return Drop()

    async with SmtpServer(Faults(body=lose)) as server:
        transport = SmtpTransport(settings_for(server, connections=1))
        first, second = (
            asyncio.create_task(transport.send(outgoing(f"{n}@x.test"))) for n in range(2)
        )
        await server.wait_for(lambda: "DATA" in server.commands)
        closing = asyncio.create_task(transport.close())
        if cancelled:
            second.cancel()
        gate.set()
        await asyncio.wait_for(closing, PATIENCE)
        assert told(await first) == [(Verdict.UNKNOWN, Reason.LOST)]
        [result] = await asyncio.gather(second, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError if cancelled else NotStarted)


async def test_closing_while_connecting() -> None:
    async with SmtpServer(Faults(connect=Hang())) as server:
        transport = SmtpTransport(settings_for(server))
        sending = asyncio.create_task(transport.send(outgoing()))
        await server.wait_for(lambda: server.open_connections == 1)
        await asyncio.wait_for(transport.close(), PATIENCE)
        with pytest.raises(NotStarted):
            await sending
        await server.wait_for(lambda: server.open_connections == 0)
