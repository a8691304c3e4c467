"""Hostile and broken SMTP clients over real sockets: each is bounded and answered, while an honest one is served."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from pillarbox.accept.smtp.rules import SessionLimits
from pillarbox.accept.smtp.server import SmtpConnectionLimits, Timeouts
from pillarbox.errors import (
    InvalidMail,
    NotAllowed,
    StoreError,
    Throttled,
    Unauthorized,
    UnknownName,
)
from pillarbox.model.proxies import TrustedProxies, parse_network
from tests.harness import eventually
from tests.integration.accept.submission_helpers import (
    ENVELOPE,
    MAIL,
    Client,
    Running,
    connected,
    running,
    served,
)

ON_BOTH_LOOPS = True


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    async with running() as one:
        yield one


async def told(client: Client, data: bytes) -> str:
    return (await client.say(data))[:9]


@pytest.mark.parametrize(
    "end", [b"\n.\n", b"\n.\r\n", b"\r.\r\n", b"\r.\r", b"\r\n.\n", b"\r\n.\r", b"\n\r.\r\n"]
)
async def test_smuggling(server: Running, end: bytes) -> None:
    """What looks like the end of a mail to others is none here; the mail is refused whole."""
    async with connected(server.ports["smtp"]) as client:
        for command in ENVELOPE.splitlines(keepends=True):
            await client.say(command)
        hidden = b"MAIL FROM:<evil@x.example>\r\nRCPT TO:<victim@y.example>\r\nDATA\r\n"
        assert await told(client, MAIL + end + hidden + MAIL + b"\r\n.\r\n") == "554 5.6.0"
        assert (await client.mail()).startswith("250")
    assert [mail.content for mail in server.shelf.mails] == [MAIL]


@pytest.mark.parametrize(
    "content", [b"a: b\r\n\r\nx\0y\r\n", b"a: b\r\n\r\nx\ry\r\n", b"Subject: \xff\xfe\r\n\r\nx\r\n"]
)
async def test_bad_octets(server: Running, content: bytes) -> None:
    async with connected(server.ports["smtp"]) as client:
        assert (await client.mail(content))[:9] == "554 5.6.0"
    assert server.shelf.mails == []
    assert server.count("smtp_messages_total", listener="smtp", code="5xx") == 1
    await served(server.ports["smtp"])


async def test_commands_with_odd_octets(server: Running) -> None:
    async with connected(server.ports["smtp"]) as client:
        assert await told(client, b"NOOP\n") == "500 5.5.2"
        assert await told(client, b"MAIL FROM:<\xff@x.example> SMTPUTF8\r\n") == "501 5.5.2"
        assert await told(client, "MAIL FROM:<ä@x.example>\r\n".encode()) == "553 5.6.7"
        assert await told(client, b"MAIL FROM:<a\0@x.example>\r\n") == "553 5.1.7"
        assert await told(client, b"\0\0\0\r\n") == "500 5.5.2"
        assert (await client.mail()).startswith("250")


async def test_a_line_without_end() -> None:
    async with running() as server, connected(server.ports["smtp"]) as client:
        assert await told(client, b"x" * 5000) == "500 5.5.2"
        client.writer.write(b"x" * 200_000)
        assert await client.gone()
        await served(server.ports["smtp"])


async def test_endless_headers_and_deep_mime() -> None:
    limits = SessionLimits(header=10_000, header_lines=100, nesting=10)
    async with running(limits) as server, connected(server.ports["smtp"]) as client:
        assert (await client.mail(b"X: y\r\n" * 1000 + b"\r\nx\r\n"))[:9] == "554 5.6.0"
        assert (await client.mail(b"X: " + b"y" * 20_000 + b"\r\n\r\nx\r\n"))[:9] == "554 5.6.0"
        bomb = b"".join(
            b"Content-Type: multipart/mixed; boundary=%d\r\n\r\n--%d\r\n" % (n, n)
            for n in range(50)
        )
        assert (await client.mail(bomb))[:9] == "554 5.6.0"
        assert (await client.mail()).startswith("250")


async def test_a_mail_that_is_too_big() -> None:
    async with (
        running(SessionLimits(message=100_000)) as server,
        connected(server.ports["smtp"]) as client,
    ):
        assert await told(client, b"MAIL FROM:<a@x.example> SIZE=100001\r\n") == "552 5.3.4"
        assert (await client.mail(MAIL + b"x" * 60_000 + b"\r\n" + b"x" * 60_000 + b"\r\n"))[
            :9
        ] == "552 5.3.4"
        assert (await client.mail()).startswith("250")
        for command in ENVELOPE.splitlines(keepends=True):
            await client.say(command)
        client.writer.write((b"x" * 998 + b"\r\n") * 1000)
        assert (await client.reply())[:9] == "552 5.3.4"
        assert await client.gone()
        await served(server.ports["smtp"])
        assert len(server.shelf.mails) == 2


async def test_too_many_errors_and_commands() -> None:
    async with running(SessionLimits(errors=5, commands=50)) as server:
        async with connected(server.ports["smtp"]) as client:
            client.writer.write(b"FOO\r\n" * 100)
            replies = [(await client.reply())[:9] for _ in range(6)]
            assert replies == ["500 5.5.2"] * 5 + ["421 4.7.0"]
            assert await client.gone()
        async with connected(server.ports["smtp"]) as client:
            client.writer.write(b"NOOP\r\n" * 100)
            replies = [(await client.reply())[:9] for _ in range(50)]
            assert replies[-1] == "421 4.7.0"
            assert await client.gone()
        assert server.count("smtp_refusals_total", listener="smtp", code="421") == 2


async def test_a_browser_is_turned_away(server: Running) -> None:
    async with connected(server.ports["smtp"], hello=False) as client:
        request = (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nEHLO x\r\n"
            + ENVELOPE
            + MAIL
            + b".\r\n"
        )
        assert await told(client, request) == "554 5.7.0"
        assert await client.gone()
    assert server.shelf.mails == []


async def test_slow_loris() -> None:
    """A byte now and then keeps nobody a place: not in a command, not in a mail."""
    async with running(timeouts=Timeouts(idle=1.0, mail=1.5)) as server:
        port = server.ports["smtp"]
        async with connected(port) as commands, connected(port) as mails:
            for command in ENVELOPE.splitlines(keepends=True):
                await mails.say(command)
            dribbling = [asyncio.create_task(dribble(one)) for one in (commands, mails)]
            assert (await commands.reply())[:9] == "421 4.4.2"
            assert (await mails.reply())[:9] == "421 4.4.2"
            await served(port)
            for task in dribbling:
                task.cancel()


async def dribble(client: Client) -> None:
    while True:
        client.writer.write(b"x")
        await asyncio.sleep(0.05)  # this slowness is what is tested


async def test_a_client_that_does_not_read() -> None:
    """Its replies are not heaped up: we stop reading it, and end it when its time is over."""
    async with running(SessionLimits(commands=10**9), Timeouts(idle=1.0, goodbye=0.5)) as server:
        with socket.create_connection(("127.0.0.1", server.ports["smtp"])) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            await eventually(lambda: _count(server, 1))
            talking = asyncio.create_task(talk(deaf))
            await served(server.ports["smtp"])
            await eventually(lambda: _count(server, 0))
            talking.cancel()


async def talk(deaf: socket.socket) -> None:
    while True:
        await asyncio.get_running_loop().sock_sendall(deaf, b"HELP\r\n" * 10_000)


async def _count(server: Running, connections: int) -> bool:
    return server.count("smtp_connections", listener="smtp") == connections


async def test_too_many_connections() -> None:
    async with running(
        connection_limits=SmtpConnectionLimits(connections=20, per_peer=10)
    ) as server:
        port = server.ports["smtp"]
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(15)]
        greetings = [(await reader.readline())[:9] for reader, _ in idle]
        assert greetings == [b"220 mail."] * 10 + [b"421 4.7.0"] * 5
        async with connected(port, source="127.0.0.2") as other:  # another address is served
            assert (await other.mail()).startswith("250")
        for _, writer in idle:
            writer.close()
        await eventually(lambda: _count(server, 0))
        await served(port)
        assert server.count("smtp_turned_away_total", listener="smtp") == 5
        await eventually(lambda: _count(server, 0))
        assert server.server._places == {}


async def test_a_trusted_balancer_has_the_places_of_all_its_clients() -> None:
    proxies = TrustedProxies((parse_network("127.0.0.1"),))
    async with running(
        connection_limits=SmtpConnectionLimits(connections=20, per_peer=2, proxies=proxies)
    ) as server:
        opened = [
            await asyncio.open_connection("127.0.0.1", server.ports["smtp"]) for _ in range(21)
        ]
        greetings = [(await reader.readline())[:9] for reader, _ in opened]
        assert greetings == [b"220 mail."] * 20 + [b"421 4.7.0"]
        for _, writer in opened:
            writer.close()
        await eventually(lambda: _count(server, 0))


async def test_two_thousand_idle_connections() -> None:
    async with running(
        connection_limits=SmtpConnectionLimits(connections=3000, per_peer=2500)
    ) as server:
        port = server.ports["smtp"]
        idle = []
        for _ in range(20):
            idle += await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", port) for _ in range(100))
            )
        await eventually(lambda: _count(server, 2000))
        for _ in range(20):
            await served(port)
        for _, writer in idle:
            writer.close()
        await eventually(lambda: _count(server, 0))


@pytest.mark.parametrize(
    "said", [b"", b"EHLO x\r\n", b"EHLO x\r\n" + ENVELOPE, b"EHLO x\r\n" + ENVELOPE + MAIL]
)
async def test_resets_and_no_quit(server: Running, said: bytes) -> None:
    for _ in range(20):
        rude = socket.create_connection(("127.0.0.1", server.ports["smtp"]))
        rude.sendall(said)
        rude.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )  # close() resets
        rude.close()
    await served(server.ports["smtp"])
    await eventually(lambda: _count(server, 0))
    assert len(server.shelf.mails) == 1
    assert server.server._budget.taken == 0


async def test_a_client_that_leaves_while_its_mail_is_stored(server: Running) -> None:
    server.shelf.gate.clear()
    async with connected(server.ports["smtp"]) as client:
        client.writer.write(ENVELOPE + MAIL + b".\r\n")
        await eventually(lambda: _asked(server, 1))
    await eventually(lambda: _count(server, 0))
    assert server.server._budget.taken == len(MAIL)
    server.shelf.gate.set()
    await served(server.ports["smtp"])
    assert (
        len(server.shelf.mails) == 2
    )  # it was whole: it is kept, as after a 250 that was lost on its way
    assert server.server._budget.taken == 0


async def _asked(server: Running, mails: int) -> bool:
    return server.shelf.asked == mails


async def test_what_is_pipelined_behind_a_mail_is_not_read_without_bound(server: Running) -> None:
    server.shelf.gate.clear()
    async with connected(server.ports["smtp"]) as client:
        client.writer.write(ENVELOPE + MAIL + b".\r\n")
        await eventually(lambda: _asked(server, 1))
        client.writer.transport.set_write_buffer_limits(0)
        client.writer.write(b"NOOP\r\n" * 1_000_000)  # 6 MB: more than sockets hold
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.writer.drain(), 0.5)
        [connection] = server.server.connections
        assert len(connection._machine._rest) < 2**19
        await served_soon(server)


async def served_soon(server: Running) -> None:
    server.shelf.gate.set()
    await served(server.ports["smtp"])


async def test_memory_for_mails_is_shared(server: Running) -> None:
    async with (
        running(connection_limits=SmtpConnectionLimits(octets=1_000_000)) as small,
        connected(small.ports["smtp"]) as hog,
    ):
        for command in ENVELOPE.splitlines(keepends=True):
            await hog.say(command)
        hog.writer.write(b"x" * 900_000)
        await eventually(lambda: _taken(small, 900_000))
        async with connected(small.ports["smtp"]) as client:
            assert (await client.mail(MAIL + (b"y" * 900 + b"\r\n") * 200))[:9] == "452 4.3.1"
            assert (await client.mail()).startswith("250")  # there is budget for a usual one


async def _taken(server: Running, octets: int) -> bool:
    return server.server._budget.taken >= octets


async def test_shutting_down_finishes_what_is_being_stored(server: Running) -> None:
    server.shelf.gate.clear()
    async with connected(server.ports["smtp"]) as idle, connected(server.ports["smtp"]) as storing:
        storing.writer.write(ENVELOPE + MAIL + b".\r\n")
        await eventually(lambda: _asked(server, 1))
        server.stop.set()
        assert (await idle.reply())[:9] == "421 4.3.2"
        assert await idle.gone()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", server.ports["smtp"])
        server.shelf.gate.set()
        replies = [(await storing.reply())[:9] for _ in range(5)]
        assert replies == ["250 2.1.0", "250 2.1.5", "354 end t", "250 2.0.0", "421 4.3.2"]
        assert await storing.gone()


@pytest.mark.parametrize(
    ("trouble", "reply"),
    [
        (StoreError("away"), "451 4.3.0"),
        (RuntimeError("a fault of ours"), "451 4.3.0"),
        (InvalidMail("too_big", "message", "25 MiB"), "552 5.3.4"),
        (InvalidMail("recipient_count", "to", "at most 5"), "452 4.5.3"),
        (InvalidMail("bad_address", "to", "not legal"), "553 5.1.3"),
        (InvalidMail("control_character", "raw", "NUL"), "554 5.6.0"),
        (UnknownName("unknown_class", "class", "gone"), "554 5.6.0"),
        (NotAllowed("sender_domain", "From", "not yours"), "550 5.7.1"),
        (Unauthorized("revoked"), "421 4.7.0"),
        (Throttled("slowly", 5), "421 4.7.0"),
    ],
)  # fmt: skip
async def test_errors_become_replies(server: Running, trouble: Exception, reply: str) -> None:
    server.shelf.trouble = trouble
    async with connected(server.ports["smtp"]) as client:
        assert (await client.mail())[:9] == reply
        assert server.shelf.mails == []
        server.shelf.trouble = None
        if reply[:3] == "421":
            assert await client.gone()
        else:
            assert (await client.mail()).startswith("250")
