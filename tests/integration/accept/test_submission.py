"""SMTP submission before the real rooms: what is stored, who may send what, what is relayed."""

from __future__ import annotations

import asyncio
import re
import smtplib
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from pillarbox.errors import SettingsError
from pillarbox.store import access, tenants
from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from pillarbox.testing.certificates import CertificateAuthority, make_ca
from tests.harness import add_smtp, deliveries, eventually, working
from tests.integration.accept.submission_helpers import Client, Installed, connected, installed


@pytest.fixture
def ca(tmp_path: Path) -> CertificateAuthority:
    return make_ca(tmp_path)


@asynccontextmanager
async def production(
    database_url: str, ca: CertificateAuthority, **settings: Any
) -> AsyncIterator[Installed]:
    """Listeners as in production, and none without a login."""
    issued = ca.issue()
    given = {
        "development": "off",
        "smtp": "off",
        "smtp_submission": "127.0.0.1:0",
        "smtp_tls": "127.0.0.1:0",
        "smtp_certificate": issued.certificate,
        "smtp_private_key": issued.key,
    }
    async with installed(database_url, **given | settings) as one:
        yield one


@asynccontextmanager
async def logged_in(
    one: Installed, ca: CertificateAuthority, username: str, password: str
) -> AsyncIterator[Client]:
    async with connected(one.ports["smtp_tls"], tls=ca.client_context()) as client:
        plain = b64encode(f"\0{username}\0{password}".encode())
        assert (await client.say(b"AUTH PLAIN " + plain + b"\r\n")).startswith("235")
        yield client


async def login(database: Database, tenant: str = "default", **limits: Any) -> tuple[str, str]:
    facts, password = await access.add_login(database, tenant, "printer", **limits)
    return facts.username, password.reveal()


def id_in(reply: str) -> str:
    found = re.fullmatch(r"250 2\.0\.0 accepted as ([0-9a-f-]{36})\r\n", reply)
    assert found, reply
    return found[1]


async def count(database: Database, table: str = "messages") -> int:
    return int(await database.fetchval(f"SELECT count(*) FROM pillarbox.{table}"))


# --- what is stored


@pytest.mark.req("REQ-QUEUE-U004")
@pytest.mark.req("REQ-QUEUE-E001")
async def test_a_mail_is_stored_as_it_came_before_it_is_answered(
    database_url: str, database: Database
) -> None:
    content = b"Subject: =?utf-8?q?H=C3=A4llo?=\r\n\r\n..dots\r\n\xff8-bit \t\r\n"
    async with installed(database_url) as one, connected(one.ports["smtp"]) as client:
        await client.say(b"MAIL FROM:<a@x.example> BODY=8BITMIME\r\n")
        for name in ("b", "c", "b"):
            await client.say(f"RCPT TO:<{name}@y.example>\r\n".encode())
        await client.say(b"DATA\r\n")
        message_id = id_in(await client.say(content + b".\r\n"))
        row = await database.fetchrow(
            "SELECT m.*, c.raw, m.headers->>'Received' AS received FROM pillarbox.messages m"
            " JOIN pillarbox.contents c ON c.message_id = m.id WHERE m.id = $1", message_id,
        )  # fmt: skip
        assert row
        assert row["raw"] == content.replace(b"..", b".")
        assert (row["sender"], row["subject"], row["class"]) == (
            "a@x.example",
            "Hällo",
            "transactional",
        )
        assert row["received"].startswith("from client.example ([127.0.0.1]) by ")
        assert " with ESMTP; " in row["received"]
        rows = await deliveries(database, message_id)
        assert [(row["recipient"], row["state"]) for row in rows] == [
            ("b@y.example", "queued"),
            ("c@y.example", "queued"),
        ]
        assert (
            one.app.metrics.registry.get_sample_value(
                "pillarbox_accepted_total", {"source": "smtp"}
            )
            == 1
        )


async def test_what_is_relayed(database_url: str, database: Database) -> None:
    """The bytes as they came, but for a Received line and without Bcc."""
    content = (
        b"From: A <a@x.example>\r\nTo: b@y.example\r\nBcc: hidden@z.example,\r\n other@z.example\r\n"
        b"Date: Mon, 16 Nov 2026 05:05:31 +0000\r\nMessage-ID: <1@x.example>\r\nSubject:  odd   blanks \r\n"
        b"\r\n.dot\r\ntrailing \t\r\n" + b"z" * 2000 + b"\r\n"
    )
    async with (
        SmtpServer() as relay,
        installed(database_url) as one,
        connected(one.ports["smtp"]) as client,
    ):
        await add_smtp(database, relay)
        id_in(await client.mail(content.replace(b"\r\n.dot", b"\r\n..dot")))
        async with working(database_url):
            await eventually(lambda: _arrived(relay))
    [mail] = relay.mails
    trace, _, rest = mail.content.partition(b"\r\nFrom:")
    assert trace.startswith(b"Received: from client.example ([127.0.0.1]) by ")
    assert all(len(line) <= 78 for line in trace.split(b"\r\n"))
    assert b"From:" + rest == re.sub(rb"Bcc:.*?(?=Date)", b"", content, flags=re.DOTALL)
    assert (mail.sender, mail.recipients) == ("a@x.example", ("b@y.example",))


async def _arrived(relay: SmtpServer) -> bool:
    return len(relay.mails) == 1


async def test_international_addresses(database_url: str, database: Database) -> None:
    async with installed(database_url) as one, connected(one.ports["smtp"]) as client:
        await client.say("MAIL FROM:<jörg@bücher.example> SMTPUTF8\r\n".encode())
        await client.say("RCPT TO:<用户@例子.example>\r\n".encode())
        await client.say(b"DATA\r\n")
        message_id = id_in(await client.say("Subject: ü\r\n\r\nü\r\n.\r\n".encode()))
    assert [row["recipient"] for row in await deliveries(database, message_id)] == [
        "用户@例子.example"
    ]
    assert "UTF8SMTP" in await database.fetchval(
        "SELECT headers->>'Received' FROM pillarbox.messages"
    )


async def test_bad_addresses(database_url: str, database: Database) -> None:
    async with installed(database_url) as one, connected(one.ports["smtp"]) as client:
        for sender in (
            b"a",
            b"a@",
            b"@x",
            b"a@-x.example",
            b"a" * 65 + b"@x.example",
            b"a@x..example",
        ):
            assert (await client.say(b"MAIL FROM:<" + sender + b">\r\n"))[:9] == "553 5.1.7"
        assert (await client.say(b"MAIL FROM:<>\r\n"))[:9] == "550 5.7.1"
        await client.say(b"MAIL FROM:<a@x.example>\r\n")
        for recipient in (b"postmaster", b"b@", b"", b"b@[1.2.3]"):
            assert (await client.say(b"RCPT TO:<" + recipient + b">\r\n"))[:9] == "553 5.1.3"


# --- who may send what


def through(
    ca: CertificateAuthority, one: Installed, username: str, password: str, listener: str
) -> Callable[[EmailMessage], Any]:
    def send(message: EmailMessage) -> Any:
        context = ca.client_context()
        client = (
            smtplib.SMTP_SSL("localhost", one.ports[listener], context=context)
            if listener == "smtp_tls"
            else smtplib.SMTP("localhost", one.ports[listener])
        )
        with client:
            if listener == "smtp_submission":
                client.starttls(context=context)
            client.login(username, password)
            return client.send_message(message)

    return send


def message(**headers: str) -> EmailMessage:
    one = EmailMessage()
    for name, value in (
        {"From": "a@x.example", "To": "b@y.example", "Subject": "hi"} | headers
    ).items():
        one[name.replace("_", "-")] = value
    one.set_content("hello")
    return one


@pytest.mark.parametrize("listener", ["smtp_submission", "smtp_tls"])
async def test_a_login_sends_for_its_tenant(
    database_url: str, database: Database, ca: CertificateAuthority, listener: str
) -> None:
    await tenants.add_tenant(database, "shop")
    username, password = await login(database, "shop")
    async with production(database_url, ca) as one:
        send = through(ca, one, username, password, listener)
        assert await asyncio.to_thread(send, message(Cc="c@y.example")) == {}
        with pytest.raises(smtplib.SMTPAuthenticationError) as refused:
            await asyncio.to_thread(through(ca, one, username, "wrong", listener), message())
        assert refused.value.smtp_code == 535
    found = await database.fetch(
        "SELECT t.name, m.headers->>'Received' AS received FROM pillarbox.messages m"
        " JOIN pillarbox.tenants t ON t.id = m.tenant_id"
    )
    assert [row["name"] for row in found] == ["shop"]
    assert " with ESMTPSA; " in found[0]["received"]
    assert await count(database, "deliveries") == 2


async def test_never_an_open_relay(
    database_url: str, database: Database, ca: CertificateAuthority
) -> None:
    """Nobody without a login gets a mail in, whatever they say; and no setting opens it to others by accident."""
    async with production(database_url, ca) as one:
        async with connected(one.ports["smtp_submission"]) as client:
            assert (await client.mail())[:9] == "530 5.7.0"
            assert (await client.say(b"RCPT TO:<b@y.example>\r\n"))[:3] == "503"
            assert (await client.say(b"DATA\r\n"))[:3] == "503"
            await client.begin_tls(ca.client_context())
            await client.say(b"EHLO x\r\n")
            assert (await client.mail())[:9] == "530 5.7.0"
            for guess in (
                b"\0\0",
                b"\0a@b\0",
                b"\0development\0development",
                b"\0default\0default",
            ):
                assert (await client.say(b"AUTH PLAIN " + b64encode(guess) + b"\r\n"))[:3] == "535"
            assert (await client.mail())[:9] == "530 5.7.0"
        async with connected(one.ports["smtp_tls"], tls=ca.client_context()) as client:
            assert (await client.mail())[:9] == "530 5.7.0"
    assert await count(database) == 0
    for name in ("smtp", "smtp_starttls"):
        with pytest.raises(SettingsError, match="without a login"):
            async with installed(database_url, **{name: "0.0.0.0:0"}):
                pass
    with pytest.raises(SettingsError, match="for development"):
        async with installed(database_url, development="off"):
            pass
    with pytest.raises(SettingsError, match=r"smtp_starttls is .* for development"):
        async with installed(database_url, development="off", smtp="off", smtp_starttls="0"):
            pass


async def test_any_login_in_development_but_no_wrong_password(
    database_url: str, database: Database
) -> None:
    facts, password = await access.add_login(database, "default", "printer")
    old, _ = await access.add_login(database, "default", "old")
    await access.revoke_login(database, old.id)
    unknown = (b"app@corp.example", b"x@default", b"", "ünknown\x01".encode(), b"x" * 2000)
    async with installed(database_url, auth_failures_per_minute=2) as one:

        async def log_in(username: bytes, password: bytes) -> str:
            async with connected(one.ports["smtp"]) as client:
                plain = b64encode(b"\0" + username + b"\0" + password)
                return (await client.say(b"AUTH PLAIN " + plain + b"\r\n"))[:9]

        for username in unknown * 5:  # and is never throttled: an application logs in for each mail
            assert await log_in(username, b"secret") == "235 2.7.0"
        known = facts.username.encode()
        assert await log_in(known, password.reveal().encode()) == "235 2.7.0"
        assert await log_in(old.username.encode(), b"wrong") == "535 5.7.8"
        wrong = password.reveal()[::-1].encode()
        assert [await log_in(known, wrong) for _ in range(3)] == [
            "535 5.7.8",
            "535 5.7.8",
            "454 4.7.0",
        ]


async def test_sender_and_recipient_domains(
    database_url: str, database: Database, ca: CertificateAuthority
) -> None:
    await tenants.add_tenant(database, "shop", sender_domains=("shop.example", "*.shop.example"))
    who = await login(database, "shop", recipient_domains=["y.example"])
    async with production(database_url, ca) as one, logged_in(one, ca, *who) as client:
        assert (await client.say(b"MAIL FROM:<a@x.example>\r\n"))[:9] == "550 5.7.1"
        assert (await client.say(b"MAIL FROM:<a@mail.shop.example>\r\n"))[:3] == "250"
        assert (await client.say(b"RCPT TO:<b@z.example>\r\n"))[:9] == "550 5.7.1"
        assert (await client.say(b"RCPT TO:<b@y.example>\r\n"))[:3] == "250"
        await client.say(b"DATA\r\n")
        forged = b'From: "a@shop.example" <ceo@bank.example>\r\nSubject: x\r\n\r\nx\r\n.\r\n'
        assert (await client.say(forged))[:9] == "550 5.7.1"
        await client.say(b"MAIL FROM:<a@shop.example>\r\nRCPT TO:<b@y.example>\r\nDATA\r\n")
        await client.reply()
        await client.reply()
        id_in(await client.say(b"From: A <a@SHOP.example>\r\nSubject: x\r\n\r\nx\r\n.\r\n"))


async def test_limits_of_a_tenant(
    database_url: str, database: Database, ca: CertificateAuthority
) -> None:
    await tenants.add_tenant(database, "small", max_message_bytes=20_000, max_recipients=2)
    who = await login(database, "small")
    async with (
        production(database_url, ca, smtp_max_message="1MB") as one,
        logged_in(one, ca, *who) as client,
    ):
        size = int(re.findall(r"SIZE (\d+)", await client.say(b"EHLO x\r\n"))[0])
        assert size <= 20_000
        assert (await client.say(b"MAIL FROM:<a@x.example> SIZE=%d\r\n" % (size + 1)))[
            :9
        ] == "552 5.3.4"
        await client.say(b"MAIL FROM:<a@x.example> SIZE=%d\r\n" % size)
        replies = [(await client.say(b"RCPT TO:<r%d@y.example>\r\n" % n))[:9] for n in range(3)]
        assert replies == ["250 2.1.5", "250 2.1.5", "452 4.5.3"]
        await client.say(b"DATA\r\n")
        header = b"Subject: " + b"s" * 900 + b"\r\n\r\n"
        largest = header + (b"x" * 98 + b"\r\n") * (size // 100 - 10)
        largest += b"y" * (size - len(largest) - 2) + b"\r\n"
        assert len(largest) == size
        id_in(await client.say(largest + b".\r\n"))
        assert (await client.mail(largest + b"z\r\n"))[:9] == "552 5.3.4"


async def test_failed_logins_are_throttled(
    database_url: str, database: Database, ca: CertificateAuthority
) -> None:
    username, password = await login(database)
    wrong = password[:-1] + ("a" if password[-1] != "a" else "b")
    plain = b64encode(f"\0{username}\0{wrong}".encode())
    async with (
        production(database_url, ca, auth_failures_per_minute=3) as one,
        connected(one.ports["smtp_tls"], tls=ca.client_context()) as client,
    ):
        replies = [(await client.say(b"AUTH PLAIN " + plain + b"\r\n"))[:9] for _ in range(4)]
        assert replies == ["535 5.7.8"] * 3 + ["454 4.7.0"]


async def test_a_revoked_login_ends_in_its_session(
    database_url: str, database: Database, ca: CertificateAuthority
) -> None:
    username, password = await login(database)
    async with (
        production(database_url, ca) as one,
        logged_in(one, ca, username, password) as client,
    ):
        id_in(await client.mail())
        [facts] = await access.list_logins(database, username=username)
        await access.revoke_login(database, facts.id)

        async def ended() -> bool:
            reply = await client.mail()
            assert reply[:3] in ("250", "421"), reply
            return reply.startswith("421")

        await eventually(ended)
        assert await client.gone()


async def test_a_tenants_changes_reach_an_open_session(
    database_url: str, database: Database
) -> None:
    async with installed(database_url) as one, connected(one.ports["smtp"]) as client:
        id_in(await client.mail())
        await tenants.change_tenant(database, "default", sender_domains=("shop.example",))

        async def refused() -> bool:
            return (await client.mail()).startswith("550 5.7.1")

        await eventually(refused)
