"""The SMTP transport when servers hang, vanish, babble or cannot be reached: who is unknown, who is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pillarbox.deliver.transports.smtp import SmtpTransport
from pillarbox.model.outcome import Reason, Verdict
from pillarbox.model.provider_kinds.smtp import SmtpSettings, Tls
from pillarbox.model.secret import Secret
from pillarbox.testing.smtp import (
    BINARY,
    LONG_LINE,
    NOT_SMTP,
    UNENDED,
    Drop,
    Endless,
    Extensions,
    Faults,
    Hang,
    Raw,
    Session,
    SmtpServer,
)
from tests import PATIENCE
from tests.integration.deliver.smtp_helpers import (
    MAIL,
    outgoing,
    send,
    send_one,
    smtp,
    talking,
    told,
)

ACCEPTED = (Verdict.ACCEPTED, None)
LOST = (Verdict.UNKNOWN, Reason.LOST)
HASTE = {"command_timeout": 1.0, "data_timeout": 1.0}  # seconds a hanging server is given here
BIG = MAIL + (b"x" * 98 + b"\r\n") * 400_000  # 40 MB: more than sockets buffer


def deferred(reason: Reason) -> tuple[Verdict, Reason]:
    return Verdict.DEFERRED, reason


# --- 421 ---


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize("stage", ["rcpt", "data", "body"])
async def test_421_defers_its_mail_and_moves_the_others(stage: str, pipelining: bool) -> None:
    faults = Faults(**{stage: [None, "421 4.3.2 shutting down"]})
    async with talking(faults, Extensions(pipelining=pipelining), connections=1) as (
        server,
        transport,
    ):
        reports = await send(transport, *(outgoing(f"{number}@x.test") for number in range(4)))
    assert [told(report) for report in reports] == [
        [ACCEPTED],
        [deferred(Reason.UNAVAILABLE)],
        [ACCEPTED],
        [ACCEPTED],
    ]
    assert [mail.recipients[0] for mail in server.mails] == ["0@x.test", "2@x.test", "3@x.test"]
    assert server.connections == 2
    assert "421" in (reports[1].transcript or "")


@pytest.mark.parametrize("pipelining", [True, False])
async def test_421_to_a_used_connections_mail_means_the_connection(pipelining: bool) -> None:
    faults = Faults(
        mail=[None, "421 4.3.2 enough of you", None, None, "421 4.3.2 enough", "421 4.3.2 really"]
    )
    async with talking(faults, Extensions(pipelining=pipelining), connections=1) as (
        server,
        transport,
    ):
        reports = await send(transport, *(outgoing(f"{number}@x.test") for number in range(4)))
    # The second moves to a new connection; the fourth is refused there too, where it is the first.
    assert [told(report) for report in reports] == [[ACCEPTED]] * 3 + [
        [deferred(Reason.UNAVAILABLE)]
    ]
    assert [mail.recipients[0] for mail in server.mails] == ["0@x.test", "1@x.test", "2@x.test"]


async def test_421_between_recipients_leaves_refusals_alone() -> None:
    faults = Faults(
        recipients={"no@x.test": "550 5.1.1 nobody", "b@x.test": "421 4.7.0 too many mails"}
    )
    async with talking(faults) as (_, transport):
        [report] = await send(transport, outgoing("a@x.test", "no@x.test", "b@x.test", "c@x.test"))
    limited = deferred(Reason.RATE_LIMITED)
    assert told(report) == [limited, (Verdict.REJECTED, Reason.INVALID_RECIPIENT), limited, limited]


async def test_a_server_that_takes_few_mails_per_connection() -> None:
    async with talking(Faults(mails_per_connection=3), connections=1) as (server, transport):
        reports = await send(transport, *(outgoing() for _ in range(8)))
    assert [told(report) for report in reports] == [[ACCEPTED]] * 8
    assert server.connections == 3
    assert server.violations == []


# --- lost connections ---


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize(
    ("stage", "ending"),
    [
        ("mail", deferred(Reason.UNAVAILABLE)),
        ("rcpt", deferred(Reason.UNAVAILABLE)),
        ("data", deferred(Reason.UNAVAILABLE)),
        ("body", LOST),
    ],
)
async def test_only_a_written_dot_leaves_a_mail_unknown(
    stage: str, ending: tuple[Verdict, Reason], reset: bool, pipelining: bool
) -> None:
    faults = Faults(**{stage: [Drop(reset=reset)]})
    async with talking(faults, Extensions(pipelining=pipelining), connections=1) as (
        server,
        transport,
    ):
        first, second = await send(transport, outgoing(), outgoing("c@x.test"))
    assert told(first) == [ending]
    assert told(second) == [ACCEPTED]
    assert first.transcript
    assert [mail.recipients for mail in server.mails] == [("c@x.test",)]
    assert server.connections == 2


async def test_refused_recipients_stay_refused_when_the_rest_is_unknown() -> None:
    faults = Faults(recipients={"no@x.test": "550 5.1.1 nobody"}, body=Drop(stored=True))
    async with talking(faults) as (server, transport):
        [report] = await send(transport, outgoing("no@x.test", "b@x.test"))
    assert told(report) == [(Verdict.REJECTED, Reason.INVALID_RECIPIENT), LOST]
    assert [mail.recipients for mail in server.mails] == [("b@x.test",)]


async def test_an_envelope_behind_a_lost_mail_moves_to_another_connection() -> None:
    async def lose(session: Session, argument: str) -> Drop:
        while b"DATA\r\n" not in session.wire.buffer:  # until the next envelope has come, too
            await session.wire.more()
        return Drop(stored=True)

    async with talking(Faults(body=[lose]), connections=1) as (server, transport):
        first, second = await send(transport, outgoing(), outgoing("c@x.test"))
    assert (told(first), told(second)) == ([LOST], [ACCEPTED])
    assert [mail.recipients for mail in server.mails] == [("b@x.test",), ("c@x.test",)]


async def test_an_envelope_moves_once_and_is_then_deferred() -> None:
    async def lose(session: Session, argument: str) -> Drop:
        while b"DATA\r\n" not in session.wire.buffer:
            await session.wire.more()
        return Drop()

    # The second mail is behind the first, then behind nobody: its own connection is lost at MAIL.
    async with talking(Faults(body=[lose], mail=[None, Drop()]), connections=1) as (
        server,
        transport,
    ):
        first, second = await send(transport, outgoing(), outgoing("c@x.test"))
    assert (told(first), told(second)) == ([LOST], [deferred(Reason.UNAVAILABLE)])
    assert server.connections == 2


async def test_an_idle_connection_that_the_server_closed_costs_nothing() -> None:
    async with talking(connections=1) as (server, transport):
        await send_one(transport)
        await server.stop()
        await server.start()
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert server.connections == 2


async def test_a_stale_connection_is_replaced_unnoticed() -> None:
    """The server leaves just when the second mail's envelope is on its way."""
    async with talking(Faults(mail=[None, Drop(), None]), connections=1) as (server, transport):
        await send_one(transport)
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert len(server.mails) == 2


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize("fault", ["421 4.3.2 bye", "500 5.5.1 what?", Drop(), Hang(), NOT_SMTP])
async def test_trouble_with_rset_is_not_the_next_mails(fault: Any, pipelining: bool) -> None:
    """Clearing away one mail's envelope fails; the next, which waited behind it, goes elsewhere."""
    faults = Faults(recipients={"no@x.test": "550 5.1.1 nobody"}, rset=[fault])
    extensions = Extensions(pipelining=pipelining)
    async with talking(faults, extensions, connections=1, **HASTE) as (server, transport):
        first, second = await send(transport, outgoing("no@x.test"), outgoing())
    assert told(first) == [(Verdict.REJECTED, Reason.INVALID_RECIPIENT)]
    assert told(second) == [ACCEPTED]
    assert server.connections == 2


async def test_lost_in_the_middle_of_a_big_body() -> None:
    faults = Faults(data=[Drop(after_bytes=1_000_000)])
    async with talking(faults, Extensions(size=0)) as (server, transport):
        outcome = await send_one(transport, outgoing(content=BIG))
        assert (outcome.verdict, outcome.reason) == deferred(Reason.UNAVAILABLE)
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert [mail.content for mail in server.mails] == [MAIL]


# --- servers that hang ---


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize(
    ("stage", "ending"),
    [
        ("mail", deferred(Reason.TIMEOUT)),
        ("rcpt", deferred(Reason.TIMEOUT)),
        ("data", deferred(Reason.TIMEOUT)),
        ("body", LOST),
    ],
)
async def test_a_hanging_server_is_given_up(
    stage: str, ending: tuple[Verdict, Reason], pipelining: bool
) -> None:
    faults = Faults(**{stage: [Hang()]})
    extensions = Extensions(pipelining=pipelining)
    async with talking(faults, extensions, connections=1, **HASTE) as (server, transport):
        first, second = await send(transport, outgoing(), outgoing("c@x.test"))
    assert (told(first), told(second)) == ([ending], [ACCEPTED])
    assert [mail.recipients for mail in server.mails] == [("c@x.test",)]


async def test_the_final_dot_has_a_patience_of_its_own() -> None:
    """A server that thinks longer about the content than a command may take is waited for."""
    faults = Faults(delay={"body": 1.5})
    async with talking(faults, command_timeout=1, data_timeout=PATIENCE) as (_, transport):
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED


async def test_a_server_that_stops_reading_a_big_body_is_given_up() -> None:
    async def stop_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await reader.readuntil(b"DATA\r\n")
        writer.write(b"250 ok\r\n250 ok\r\n354 go\r\n")

    async with raw_server(stop_reading, **HASTE) as transport:
        outcome = await send_one(transport, outgoing(content=BIG))
    assert (outcome.verdict, outcome.reason) == deferred(Reason.TIMEOUT)


# --- servers that babble ---


@pytest.mark.parametrize("noise", [NOT_SMTP, BINARY, LONG_LINE, Endless()])
@pytest.mark.parametrize("stage", ["mail", "rcpt", "data", "body"])
async def test_garbage_is_no_answer(stage: str, noise: Any) -> None:
    async with talking(Faults(**{stage: [noise]}), connections=1) as (_, transport):
        first, second = await send(transport, outgoing(), outgoing("c@x.test"))
    assert told(first) == [LOST if stage == "body" else deferred(Reason.PROTOCOL)]
    assert told(second) == [ACCEPTED]


async def test_a_reply_without_end_runs_out_of_time() -> None:
    async with talking(Faults(rcpt=[UNENDED]), Extensions(pipelining=False), **HASTE) as (
        _,
        transport,
    ):
        outcome = await send_one(transport)
    assert (outcome.verdict, outcome.reason) == deferred(Reason.TIMEOUT)
    async with talking(Faults(body=[UNENDED]), **HASTE) as (_, transport):
        outcome = await send_one(transport)
    assert (outcome.verdict, outcome.reason) == LOST


@pytest.mark.parametrize(
    ("stage", "reply", "ending"),
    [
        ("mail", b"354 too early\r\n", deferred(Reason.PROTOCOL)),
        ("rcpt", b"354 too early\r\n", deferred(Reason.PROTOCOL)),
        ("data", b"250 what?\r\n", deferred(Reason.PROTOCOL)),
        ("data", b"354 go\r\n250 thanks already\r\n", deferred(Reason.PROTOCOL)),
        ("body", b"354 more?\r\n", LOST),
        ("body", b"250-one\r\n550 or another\r\n", LOST),
    ],
)
async def test_answers_that_do_not_fit(
    stage: str, reply: bytes, ending: tuple[Verdict, Reason]
) -> None:
    async with talking(Faults(**{stage: [Raw(reply)]}), connections=1) as (_, transport):
        first, second = await send(transport, outgoing(), outgoing("c@x.test"))
    assert told(first) == [ending]
    assert told(second) == [ACCEPTED]


async def test_one_answer_too_many_is_not_taken_for_the_next() -> None:
    async with talking(Faults(body=[Raw(b"250 ok\r\n250 ok\r\n")]), connections=1) as (
        server,
        transport,
    ):
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert server.connections == 2


@pytest.mark.parametrize(
    ("reply", "ending"),
    [
        (b"552 5.3.4 too big\r\n", (Verdict.REJECTED, Reason.TOO_BIG)),
        (b"421 4.3.2 bye\r\n", deferred(Reason.UNAVAILABLE)),
        (b"250 thanks\r\n", deferred(Reason.PROTOCOL)),
    ],
)
async def test_an_answer_in_the_middle_of_a_big_body(
    reply: bytes, ending: tuple[Verdict, Reason]
) -> None:
    async def interrupt(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await reader.readuntil(b"DATA\r\n")
        writer.write(b"250 ok\r\n250 ok\r\n354 go\r\n")
        await reader.readexactly(100_000)
        writer.write(reply)

    async with raw_server(interrupt) as transport:
        outcome = await send_one(transport, outgoing(content=BIG))
    assert (outcome.verdict, outcome.reason) == ending


# --- servers that cannot be reached ---


@pytest.mark.parametrize(
    ("banner", "ending"),
    [
        ("421 4.3.2 not now", deferred(Reason.UNAVAILABLE)),
        ("421 4.7.0 too many connections", deferred(Reason.RATE_LIMITED)),
        ("554 5.7.1 not you", deferred(Reason.POLICY)),
        (Drop(), deferred(Reason.UNAVAILABLE)),
        (Drop(reset=True), deferred(Reason.UNAVAILABLE)),
        (Hang(), deferred(Reason.TIMEOUT)),
        (NOT_SMTP, deferred(Reason.PROTOCOL)),
        (BINARY, deferred(Reason.PROTOCOL)),
        (LONG_LINE, deferred(Reason.PROTOCOL)),
        (Endless("220-" + "x" * 4000), deferred(Reason.PROTOCOL)),
    ],
)
@pytest.mark.parametrize("stage", ["connect", "ehlo"])
async def test_handshakes_that_fail(
    stage: str, banner: Any, ending: tuple[Verdict, Reason]
) -> None:
    faults = Faults(**{stage: banner}, helo="502 no")
    async with talking(faults, connect_timeout=2) as (server, transport):
        reports = await send(transport, *(outgoing() for _ in range(20)))
        if (
            stage == "connect" or banner != "554 5.7.1 not you"
        ):  # after 554 to EHLO, HELO has the last word
            assert {one for report in reports for one in told(report)} == {ending}
        assert all(report.transcript for report in reports)
        assert transport.waiting == transport.connections_open == 0
        server.faults = Faults()
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert server.connections <= 4


async def test_nobody_listens() -> None:
    async with SmtpServer() as server:
        await server.stop()
        async with smtp(server) as transport:
            reports = await send(transport, *(outgoing() for _ in range(50)))
            assert {one for report in reports for one in told(report)} == {
                deferred(Reason.UNAVAILABLE)
            }
            await server.start()
            assert (await send_one(transport)).verdict is Verdict.ACCEPTED
        assert server.connections == 1


async def test_no_such_host() -> None:
    settings = SmtpSettings("nowhere.invalid", 25, Tls.NONE, helo="client.test", connect_timeout=5)
    transport = SmtpTransport(settings)
    outcome = await send_one(transport)
    assert outcome.verdict is Verdict.DEFERRED
    assert outcome.reason in (Reason.UNAVAILABLE, Reason.TIMEOUT)
    await transport.close()


async def test_a_server_that_is_down_is_not_hammered() -> None:
    """Mails that keep coming share connection attempts, and each is answered in time."""
    async with talking(Faults(connect="421 4.3.2 not now"), connect_timeout=PATIENCE) as (
        server,
        transport,
    ):
        loop = asyncio.get_running_loop()
        for _ in range(5):
            began = loop.time()
            reports = await send(transport, *(outgoing() for _ in range(20)))
            assert all(told(report) == [deferred(Reason.UNAVAILABLE)] for report in reports)
            assert loop.time() - began < 2
    assert (
        server.connections == 6
    )  # one for each round, and one because the first might have been a hiccup


async def test_one_failed_connect_costs_one_mail() -> None:
    async with talking(Faults(connect=[Drop()]), connections=1) as (server, transport):
        reports = await send(transport, *(outgoing() for _ in range(20)))
    assert [told(report) for report in reports] == [[deferred(Reason.UNAVAILABLE)]] + [
        [ACCEPTED]
    ] * 19
    assert server.connections == 2


@pytest.mark.req("REQ-QUEUE-N002")
async def test_a_wrong_password_is_tried_once() -> None:
    """Servers lock accounts out: everybody who waits is told after one attempt."""
    login = {"username": "user", "password": Secret("wrong")}
    extensions = Extensions(users={"user": "right"}, mechanisms=["PLAIN"])
    async with talking(extensions=extensions, **login) as (server, transport):
        reports = await send(transport, *(outgoing() for _ in range(20)))
    assert {one for report in reports for one in told(report)} == {deferred(Reason.CREDENTIAL)}
    assert sum(line.upper().startswith("AUTH") for line in server.commands) == 1


# --- servers written for one test ---


@asynccontextmanager
async def raw_server(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], **changes: Any
) -> AsyncIterator[SmtpTransport]:
    """A server that does just this, and then keeps the connection until the test ends."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await talk(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = SmtpTransport(
        SmtpSettings("127.0.0.1", port, Tls.NONE, helo="client.test", **changes)
    )
    try:
        yield transport
    finally:
        await asyncio.wait_for(transport.close(), PATIENCE)
        for writer in writers:
            writer.transport.abort()
        server.close()
        await server.wait_closed()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 raw\r\n")
    await reader.readline()
    writer.write(b"250-raw\r\n250 PIPELINING\r\n")
