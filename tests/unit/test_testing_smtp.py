"""The scripted SMTP server does what its dials say, over real sockets."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from itertools import cycle

import aiosmtplib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import PATIENCE

from pillarbox.testing.certificates import make_ca
from pillarbox.testing.smtp import (
    Extensions,
    Faults,
    SmtpServer,
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


# everyday use


async def test_keeps_what_was_sent():
    async with SmtpServer() as server:
        await asyncio.to_thread(send_with_smtplib, server)
        mail = await server.next_mail()
    assert (mail.sender, mail.recipients, mail.content) == ("a@x.test", ("b@x.test",), MAIL)
    assert mail.message["Subject"] == "hello"
    assert (mail.tls, mail.username, mail.connection) == (False, None, 1)
    assert mail.parameters == {"SIZE": str(len(MAIL))}
    assert [line[:4] for line in server.commands] == ["ehlo", "mail", "rcpt", "data", "QUIT"]
    assert server.violations == []


async def test_counts_connections():
    async with SmtpServer() as server:
        async with client_of(server) as one, client_of(server) as two:
            await one.greet()
            await two.greet()
            assert (server.connections, server.open_connections) == (2, 2)
        await server.wait_for(lambda: server.open_connections == 0)
    assert (server.connections, server.peak_connections) == (2, 2)


async def test_next_mail_gives_each_once_and_says_what_it_saw_when_none_comes():
    async with SmtpServer() as server:
        for number in (b"1", b"2"):
            await asyncio.to_thread(send_with_smtplib, server, number + b"\r\n")
        assert [(await server.next_mail()).content for _ in range(2)] == [b"1\r\n", b"2\r\n"]
        with pytest.raises(TimeoutError, match="2 mails, 2 connections"):
            await server.next_mail(timeout=0.01)


async def test_listens_on_the_same_port_after_a_restart():
    server = SmtpServer()
    await server.start()
    port = server.port
    await server.stop()
    async with server:
        assert server.port == port
        await asyncio.to_thread(send_with_smtplib, server)
    assert len(server.mails) == 1


async def test_an_error_in_a_dial_reaches_the_test():
    def broken(session, argument):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with SmtpServer(Faults(mail=broken)) as server, client_of(server) as client:
            assert await client.begin("a@x.test", "b@x.test") == ""


async def test_takes_a_whole_pipeline_in_one_segment():
    async with SmtpServer() as server, client_of(server) as client:
        await client.greet()
        client.write(ENVELOPE)
        assert await client.codes(3) == ["250", "250", "354"]
        client.write(SEND + ENVELOPE)
        assert await client.codes(4) == ["250", "250", "250", "354"]
        client.write(SEND + b"QUIT\r\n")
        assert await client.codes(2) == ["250", "221"]
    assert [mail.content for mail in server.mails] == [MAIL, MAIL]
    assert server.violations == []


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 40), min_size=1),
    st.lists(st.sampled_from([b".", b"\r\n", b"x", b"\n.\n"])),
)
def test_any_chunking_gives_the_same_mails(sizes, pieces):
    content = b"S: 1\r\n\r\n" + b"".join(pieces) + b"\r\n"
    stuffed = content.replace(b"\r\n.", b"\r\n..")
    stream = b"EHLO c\r\n" + (ENVELOPE + stuffed + b".\r\n") * 2 + b"QUIT\r\n"

    async def send() -> list[bytes]:
        async with SmtpServer() as server, client_of(server) as client:
            position = 0
            for size in cycle(sizes):
                client.write(stream[position : position + size])
                await asyncio.sleep(0)  # lets the server read this much alone
                position += size
                if position >= len(stream):
                    break
            assert await client.codes(10) == ["220", "250", *["250", "250", "354", "250"] * 2]
            return [mail.content for mail in server.mails]

    assert asyncio.run(send()) == [content] * 2


# extensions


async def test_offers_what_it_is_told():
    nothing = Extensions(
        pipelining=False,
        size=None,
        eight_bit_mime=False,
        smtputf8=False,
        enhanced_status_codes=False,
    )
    async with SmtpServer(extensions=nothing) as server, client_of(server) as client:
        await client.reply()
        assert await client.say("EHLO c") == "250 smtp.test"
        assert await client.say("MAIL FROM:<a@x>") == "250 sender OK"


async def test_an_old_server_knows_only_helo():
    async with SmtpServer(extensions=Extensions(helo_only=True)) as server:
        await asyncio.to_thread(send_with_smtplib, server)
        assert (await server.next_mail()).parameters == {}
    assert [line[:4] for line in server.commands[:2]] == ["ehlo", "helo"]


async def test_enforces_size_declared_and_real():
    async with SmtpServer(extensions=Extensions(size=20)) as server, client_of(server) as client:
        await client.greet()
        assert (await client.say("MAIL FROM:<a@x> SIZE=21")).startswith("552 5.3.4")
        client.write(ENVELOPE)
        await client.codes(3)
        assert (await client.say(SEND)).startswith("552 5.3.4")
    assert server.mails == []


@pytest.mark.parametrize("mechanism", ["plain", "login"])
async def test_logs_in_under_starttls_only(ca, mechanism):
    offers = Extensions(
        starttls=ca.issue().server_context(),
        users={"user": "pässword"},
        auth_needs_tls=True,
        auth_required=True,
        mechanisms=[mechanism.upper()],
    )
    async with SmtpServer(extensions=offers) as server:
        async with client_of(server) as client:
            await client.greet()
            assert (await client.say("AUTH PLAIN AHUAcA==")).startswith("538")
            assert (await client.say("MAIL FROM:<a@x>")).startswith("530")
        for password, code in (("wrong", 535), ("pässword", 235)):
            async with aiosmtplib.SMTP(
                hostname="localhost",
                port=server.port,
                start_tls=True,
                tls_context=ca.client_context(),
            ) as smtp:
                if code == 535:
                    with pytest.raises(aiosmtplib.SMTPAuthenticationError):
                        await smtp.login("user", password)
                else:
                    await smtp.login("user", password)
                    await smtp.sendmail("a@x.test", ["b@x.test"], MAIL)
        mail = await server.next_mail()
    assert (mail.tls, mail.username) == (True, "user")
    assert server.violations == ["connection 1: AUTH was not offered"]
    assert not any("AUTH" in line for line in server.commands_in_clear[3:])


async def test_takes_any_login_in_clear():
    async with SmtpServer(extensions=Extensions(any_login=True)) as server:
        await asyncio.to_thread(send_with_smtplib, server, login=("who", "ever"))
        assert (await server.next_mail()).username == "who"


async def test_speaks_tls_from_the_first_byte(ca):
    async with SmtpServer(implicit_tls=ca.issue().server_context()) as server:
        await aiosmtplib.send(
            MAIL.decode(),
            sender="a@x.test",
            recipients=["b@x.test"],
            hostname="127.0.0.1",
            port=server.port,
            use_tls=True,
            tls_context=ca.client_context(),
        )
        assert (await server.next_mail()).tls


@pytest.mark.parametrize(("kind", "problem"), [("expired", "expired"), ("wrong_name", "mismatch")])
async def test_bad_certificates_are_refused(ca, kind, problem):
    offers = Extensions(starttls=getattr(ca, kind)().server_context())
    async with SmtpServer(extensions=offers) as server:
        with pytest.raises(ssl.SSLCertVerificationError, match=problem):
            await asyncio.to_thread(send_with_smtplib, server, context=ca.client_context())
    assert server.mails == []


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (["AUTH CRAM-MD5"], "504"),
        (["AUTH PLAIN", "*"], "501"),
        (["AUTH PLAIN", "AHUAcA=="], "235"),
        (["AUTH LOGIN dQ==", "cA=="], "235"),
        (["AUTH LOGIN", "dQ==", "eA=="], "535"),
        (["AUTH PLAIN AHUAcA==", "AUTH PLAIN AHUAcA=="], "503"),
    ],
)
async def test_auth_exchanges(said, code):
    async with (
        SmtpServer(extensions=Extensions(users={"u": "p"})) as server,
        client_of(server) as client,
    ):
        await client.greet()
        assert [await client.say(line) for line in said][-1].startswith(code)


async def test_takes_internationalised_mail():
    async with SmtpServer() as server, client_of(server) as client:
        await client.greet()
        await client.say("MAIL FROM:<é@x.test> SMTPUTF8 BODY=8BITMIME")
        await client.say("RCPT TO:<ö@x.test>")
        await client.say("DATA")
        await client.say("Subject: ü\r\n\r\nä\r\n.".encode() + b"\r\n")
    assert (server.mails[0].sender, server.mails[0].recipients) == ("é@x.test", ("ö@x.test",))
    assert server.mails[0].parameters == {"SMTPUTF8": "", "BODY": "8BITMIME"}
    assert server.violations == []


# replies


async def test_replies_by_string_sequence_callable_and_address():
    async def by_argument(session, argument):
        return "552 5.2.2 full" if "full@" in argument else None

    faults = Faults(
        mail=["451 4.7.1 later", None],
        rcpt=by_argument,
        recipients={"gone@x": "550 5.1.1 gone"},
        body="250 fine",
    )
    async with SmtpServer(faults) as server, client_of(server) as client:
        await client.greet()
        said = [await client.say(f"MAIL FROM:<{name}@x>") for name in "ab"]
        said += [await client.say(f"RCPT TO:<{name}@x>") for name in ("gone", "full", "ok")]
        await client.say("DATA")
        said.append(await client.say(SEND))
        server.faults.mail = "550 5.7.1 no more"
        said.append(await client.say("MAIL FROM:<c@x>"))
    codes = [
        "451 4.7.1 later",
        "250",
        "550 5.1.1 gone",
        "552 5.2.2 full",
        "250",
        "250 fine",
        "550 5.7.1 no more",
    ]
    assert all(reply.startswith(code) for reply, code in zip(said, codes, strict=True))
    assert server.mails[0].recipients == ("ok@x",)


async def test_no_valid_recipients():
    async with SmtpServer(Faults(rcpt="550 5.1.1 no")) as server, client_of(server) as client:
        assert (await client.begin("a@x.test", "b@x.test")).startswith("554 5.5.1")
        server.faults.data_without_recipients = True
        assert (await client.say("DATA")).startswith("354")
        assert (await client.say(b".\r\n")).startswith("554 5.5.1")
    assert server.mails == []


async def test_421_in_mid_pipeline_ends_the_connection():
    async with (
        SmtpServer(Faults(rcpt=[None, "421 4.3.2 going down"])) as server,
        client_of(server) as client,
    ):
        await client.greet()
        client.write(b"MAIL FROM:<a@x>\r\n" + b"RCPT TO:<b@x>\r\n" * 3)
        assert await client.codes(4) == ["250", "250", "421", ""]


async def test_limits_mails_per_connection_and_connections():
    limits = Faults(mails_per_connection=1, concurrent_connections=1)
    async with SmtpServer(limits) as server, client_of(server) as client:
        await client.begin("a@x.test", "b@x.test")
        await client.say(SEND)
        async with client_of(server) as second:
            assert await second.codes(2) == ["421", ""]
        assert (await client.say("MAIL FROM:<a@x>")).startswith("421")
        assert await client.reply() == ""


async def test_a_refusing_banner_waits_for_quit():
    async with SmtpServer(Faults(connect="554 no service")) as server, client_of(server) as client:
        assert await client.codes(1) == ["554"]
        assert [await client.say("EHLO c"), await client.say("QUIT")] == [
            "503 5.5.1 no service here",
            "221 2.0.0 bye",
        ]


async def test_delays_a_reply():
    async with SmtpServer(Faults(delay={"mail": 0.05})) as server, client_of(server) as client:
        await client.greet()
        clock = asyncio.get_running_loop().time
        begin = clock()
        await client.say("MAIL FROM:<a@x>")
        assert clock() - begin >= 0.045  # loop clocks round


# violations


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"a\nb\r\n", "bare LF in data"),
        (b"a\rb\r\n", "bare CR in data"),
        (b"x" * 999 + b"\r\n", "a line in data is longer than 998 bytes"),
        (b".a\r\n", "a line begins with a dot that was not doubled"),
        (b"S: a\r\n\r\n\xe9\r\n", "8-bit data without BODY=8BITMIME"),
    ],
)
async def test_notes_violations_in_data(body, problem):
    async with SmtpServer() as server, client_of(server) as client:
        await client.begin("a@x.test", "b@x.test")
        assert (await client.say(body + b".\r\n")).startswith("250")
    assert server.violations == [f"connection 1: {problem}"]


async def test_longest_lawful_lines_are_no_violation():
    async with SmtpServer() as server, client_of(server) as client:
        await client.begin("a@x.test", "b@x.test")
        await client.say(b"x" * 998 + b"\r\n.." + b"x" * 997 + b"\r\n.\r\n")
    assert server.violations == []


@pytest.mark.parametrize(
    ("offers", "said", "problem"),
    [
        (Extensions(), "MAIL FROM:<é@x>", "non-ASCII address without SMTPUTF8"),
        (
            Extensions(smtputf8=False),
            "MAIL FROM:<é@x> SMTPUTF8",
            "MAIL parameter SMTPUTF8 was not offered",
        ),
        (Extensions(), "MAIL FROM: <a@x>", "a space after the colon of MAIL or RCPT"),
        (Extensions(), "MAIL FROM:a@x", "cannot parse the argument of MAIL or RCPT"),
        (Extensions(), "STARTTLS", "STARTTLS was not offered"),
        (Extensions(), b"NOOP\n", "bare LF ends a command"),
        (Extensions(), "HELLO", "unknown command 'HELLO'"),
        (Extensions(), "NOOP " + "x" * 13_000, "a command line is too long"),
        (
            Extensions(pipelining=False),
            b"RSET\r\nRSET\r\n",
            "pipelined after rset though PIPELINING was not offered",
        ),
        (Extensions(), b"NOOP\r\nRSET\r\n", "sent more after NOOP before its reply"),
        (Extensions(), b"EHLO c\r\nRSET\r\n", "sent more after EHLO before its reply"),
    ],
)
async def test_notes_violations_in_commands(offers, said, problem):
    async with SmtpServer(extensions=offers) as server, client_of(server) as client:
        await client.greet()
        await client.say(said)
    assert server.violations == [f"connection 1: {problem}"]


async def test_notes_content_sent_before_the_354_and_words_before_the_greeting():
    async with SmtpServer(Faults(delay={"connect": 0.05})) as server, client_of(server) as client:
        assert (await client.say("EHLO c")).startswith("220")
        await client.reply()
        client.write(ENVELOPE + SEND)
        assert await client.codes(4) == ["250", "250", "354", "250"]
    assert server.violations == [
        "connection 1: spoke before the greeting",
        "connection 1: sent more after DATA before its reply",
    ]
