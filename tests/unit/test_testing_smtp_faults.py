"""The scripted SMTP server fails as it is told to, over real sockets."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from itertools import cycle

import pytest
from tests import PATIENCE

from pillarbox.testing.certificates import make_ca
from pillarbox.testing.smtp import (
    BINARY,
    LONG_LINE,
    NOT_SMTP,
    STARTTLS_INJECTION,
    UNENDED,
    BrokenTls,
    Drop,
    Endless,
    Extensions,
    Faults,
    Hang,
    Raw,
    SmtpServer,
    Trickle,
    chaos,
)
from pillarbox.testing.smtp_client import raw_client

MAIL = b"Subject: hello\r\n\r\n.dot\r\nline\r\n"
ENVELOPE = b"MAIL FROM:<a@x.test>\r\nRCPT TO:<b@x.test>\r\nDATA\r\n"
SEND = b"Subject: hello\r\n\r\n..dot\r\nline\r\n.\r\n"


def client_of(server):
    return raw_client(server.host, server.port)


def send_with_smtplib(server, content=MAIL, context=None, login=None, recipients=("b@x.test",)):
    with smtplib.SMTP(server.host, server.port, timeout=PATIENCE) as client:
        if context:
            client.starttls(context=context)
        if login:
            client.login(*login)
        return client.sendmail("a@x.test", list(recipients), content)


@pytest.fixture
def ca(tmp_path):
    return make_ca(tmp_path)


# hangs, drops, garbage


@pytest.mark.parametrize("stage", ["connect", "ehlo", "mail", "rcpt", "data"])
async def test_hangs_at_a_stage(stage):
    async with SmtpServer(Faults(**{stage: Hang()})) as server, client_of(server) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.begin("a@x.test", "b@x.test")
        assert server.open_connections == 1


async def test_a_hanging_session_ends_with_its_client():
    async with SmtpServer(Faults(connect=Hang())) as server:
        async with client_of(server):
            await server.wait_for(lambda: server.open_connections == 1)
        await server.wait_for(lambda: server.open_connections == 0)


@pytest.mark.parametrize("stage", ["mail", "rcpt", "data"])
@pytest.mark.parametrize("after_reply", [False, True])
async def test_drops_at_a_stage(stage, after_reply):
    async with (
        SmtpServer(Faults(**{stage: Drop(after_reply=after_reply)})) as server,
        client_of(server) as client,
    ):
        await client.greet()
        client.write(ENVELOPE)
        kept = {"mail": 0, "rcpt": 1, "data": 2}[stage] + after_reply
        codes = ["250", "250", "354"][:kept]
        assert await client.codes(kept + 1) == [*codes, ""]


@pytest.mark.parametrize(
    "fault", [Drop(), Drop(stored=True), Drop(reset=True), Drop(after_reply=True)]
)
async def test_drops_after_the_dot(fault):
    async with SmtpServer(Faults(body=fault)) as server, client_of(server) as client:
        await client.begin("a@x.test", "b@x.test")
        if fault.reset:
            with pytest.raises(ConnectionResetError):
                await client.say(SEND)
        else:
            assert (await client.say(SEND))[:3] == ("250" if fault.after_reply else "")
    assert len(server.mails) == (fault.stored or fault.after_reply)


async def test_drops_in_the_body():
    async with (
        SmtpServer(Faults(data=Drop(after_bytes=100))) as server,
        client_of(server) as client,
    ):
        await client.begin("a@x.test", "b@x.test")
        client.write(b"x" * 99)
        await server.wait_for(lambda: server.commands[-1] == "DATA")
        assert server.open_connections == 1
        assert await client.say(b"x") == ""
    assert server.mails == []


@pytest.mark.parametrize("fault", [NOT_SMTP, BINARY, LONG_LINE, UNENDED])
async def test_says_garbage(fault):
    async with SmtpServer(Faults(mail=fault)) as server, client_of(server) as client:
        await client.greet()
        client.write(b"MAIL FROM:<a@x>\r\n")
        assert await client.reader.readexactly(len(fault.data)) == fault.data


async def test_never_ends_a_reply():
    async with SmtpServer(Faults(ehlo=Endless())) as server, client_of(server) as client:
        await client.reply()
        client.write(b"EHLO c\r\n")
        assert set((await client.reader.readexactly(23 * 10_000)).splitlines()) == {
            b"250-and another thing"
        }


async def test_trickles_a_reply_byte_by_byte():
    async with SmtpServer(Faults(connect=Trickle())) as server, client_of(server) as client:
        first = await client.reader.read(100)
        assert len(first) < 20
        assert first + await client.reader.readuntil(b"\r\n") == b"220 smtp.test ESMTP\r\n"


async def test_an_iterator_is_a_dial_without_end():
    async with (
        SmtpServer(Faults(noop=cycle(["450 no", None]))) as server,
        client_of(server) as client,
    ):
        await client.greet()
        assert [(await client.say("NOOP"))[:3] for _ in range(4)] == ["450", "250"] * 2


# STARTTLS gone wrong


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("454 4.7.0 not today", smtplib.SMTPResponseException),
        (BrokenTls(), ssl.SSLError),
        (BrokenTls(b""), (ssl.SSLError, OSError)),
    ],
)
async def test_starttls_fails(ca, fault, error):
    offers = Extensions(starttls=ca.issue().server_context())
    async with SmtpServer(Faults(starttls=fault), offers) as server:
        with pytest.raises(error):
            await asyncio.to_thread(send_with_smtplib, server, context=ca.client_context())
    assert server.mails == []


async def test_injects_plaintext_after_the_220(ca):
    offers = Extensions(starttls=ca.issue().server_context())
    async with (
        SmtpServer(Faults(starttls=STARTTLS_INJECTION), offers) as server,
        client_of(server) as client,
    ):
        await client.greet()
        client.write(b"STARTTLS\r\n")
        assert (
            await client.reader.readexactly(len(STARTTLS_INJECTION.data)) == STARTTLS_INJECTION.data
        )
        await client.start_tls(ca.client_context())
        assert (await client.say("MAIL FROM:<a@x>")).startswith("503")  # forgot the greeting
        assert (await client.say("EHLO c")).startswith("250")


async def test_forgets_what_a_client_sent_ahead_of_the_handshake(ca):
    offers = Extensions(starttls=ca.issue().server_context())
    async with SmtpServer(extensions=offers) as server, client_of(server) as client:
        await client.greet()
        assert (await client.say(b"STARTTLS\r\nNOOP\r\n")).startswith("220")
        await client.start_tls(ca.client_context())
        assert (await client.say("EHLO c")).startswith("250")
    assert server.violations == ["connection 1: sent more after STARTTLS before its reply"]
    assert "NOOP" not in server.commands


@pytest.mark.parametrize("words", [b"this is no handshake\r\n", b""])
async def test_a_failed_handshake_ends_the_connection(ca, words):
    offers = Extensions(starttls=ca.issue().server_context())
    async with SmtpServer(extensions=offers) as server, client_of(server) as client:
        await client.greet()
        await client.say("STARTTLS")
        client.write(words)
        client.writer.write_eof()
        await server.wait_for(lambda: server.open_connections == 0)


# chaos


async def test_chaos_is_the_same_for_the_same_seed():
    async def run(seed: int) -> list[str]:
        async with SmtpServer(
            chaos(seed, defer=0.3, reject=0.3, drop_after_dot=0.3, drop_before=0.3)
        ) as server:
            said = []
            for _ in range(20):
                try:
                    async with client_of(server) as client:
                        said.append(await client.begin("a@x.test", "b@x.test"))
                        said.append(await client.say(SEND))
                except ConnectionError:
                    said.append("reset")
            return [text[:3] for text in said]

    assert await run(7) == await run(7) != await run(8)


async def test_a_raw_code_is_believed():
    async with SmtpServer(Faults(body=Raw(b"250\r\n"))) as server, client_of(server) as client:
        await client.begin("a@x.test", "b@x.test")
        assert await client.say(SEND) == "250"
    assert len(server.mails) == 1
