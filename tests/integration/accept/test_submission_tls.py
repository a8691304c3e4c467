"""SMTP submission over TLS: STARTTLS, implicit TLS, logging in, renewed certificates, and who tries to cheat."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pillarbox.accept.smtp.listeners import Listener
from pillarbox.accept.smtp.rules import SessionLimits
from pillarbox.accept.smtp.server import Server, SmtpConnectionLimits, Timeouts
from pillarbox.accept.smtp.tls import Certificate
from pillarbox.errors import SettingsError
from pillarbox.telemetry.metrics import Metrics
from pillarbox.testing.certificates import CertificateAuthority, make_ca
from tests import PATIENCE
from tests.harness import eventually
from tests.integration.accept.submission_helpers import (
    ENVELOPE,
    MAIL,
    Client,
    Running,
    Shelf,
    connected,
    running,
)
from tests.unit.smtp_sessions import Open

ON_BOTH_LOOPS = True
LOGIN = b"AUTH PLAIN " + b64encode(b"\0me\0secret") + b"\r\n"


@pytest.fixture
def ca(tmp_path: Path) -> CertificateAuthority:
    return make_ca(tmp_path)


@pytest.fixture
def certificate(ca: CertificateAuthority) -> Certificate:
    issued = ca.issue()
    return Certificate(issued.certificate, issued.key)


@pytest.fixture
async def server(certificate: Certificate) -> AsyncIterator[Running]:
    async with running(certificate=certificate) as one:
        yield one


async def test_starttls_and_login(server: Running, ca: CertificateAuthority) -> None:
    async with connected(server.ports["smtp_submission"]) as client:
        assert (await client.mail())[:9] == "530 5.7.0"
        assert (await client.say(LOGIN))[:10] == "538 5.7.11"
        await client.begin_tls(ca.client_context())
        assert (await client.mail())[:9] == "503 5.5.1", "the greeting before TLS is forgotten"
        offers = await client.say(b"EHLO client.example\r\n")
        assert "AUTH PLAIN LOGIN" in offers
        assert "STARTTLS" not in offers
        assert (await client.mail())[:9] == "530 5.7.0"
        assert (await client.say(LOGIN))[:9] == "235 2.7.0"
        assert (await client.mail())[:9] == "250 2.0.0"
    assert server.shelf.mails[0].protocol == "ESMTPSA"


async def test_implicit_tls_and_login(server: Running, ca: CertificateAuthority) -> None:
    async with connected(server.ports["smtp_tls"], tls=ca.client_context()) as client:
        assert (await client.say(b"STARTTLS\r\n"))[:9] == "502 5.5.1"
        assert (await client.mail())[:9] == "530 5.7.0"
        assert (await client.say(b"AUTH LOGIN\r\n")) == "334 VXNlcm5hbWU6\r\n"
        assert (await client.say(b64encode(b"me") + b"\r\n")) == "334 UGFzc3dvcmQ6\r\n"
        assert (await client.say(b64encode(b"wrong") + b"\r\n"))[:9] == "535 5.7.8"
        assert (
            await client.say(b"AUTH LOGIN " + b64encode(b"me") + b"\r\n")
        ) == "334 UGFzc3dvcmQ6\r\n"
        assert (await client.say(b64encode(b"secret") + b"\r\n"))[:9] == "235 2.7.0"
        assert (await client.mail())[:9] == "250 2.0.0"
    assert server.count("smtp_login_failures_total", listener="smtp_tls") == 1


async def test_a_large_mail_over_tls(server: Running, ca: CertificateAuthority) -> None:
    content = MAIL + (b"y" * 900 + b"\r\n") * 5000
    async with connected(server.ports["smtp_tls"], tls=ca.client_context()) as client:
        await client.say(LOGIN)
        assert (await client.mail(content))[:9] == "250 2.0.0"
    assert server.shelf.mails[0].content == content


async def test_commands_after_starttls_in_clear_are_not_carried_out(server: Running) -> None:
    async with connected(server.ports["smtp_submission"]) as client:
        assert (await client.say(b"STARTTLS\r\nEHLO evil\r\n" + LOGIN))[:3] == "220"
        assert await client.gone()
    async with connected(server.ports["smtp_submission"]) as client:
        assert (await client.say(b"STARTTLS\r\n"))[:3] == "220"
        client.writer.write(b"EHLO evil\r\n" + LOGIN)
        assert await client.gone()
    assert server.shelf.asked == 0


async def test_an_eager_client(server: Running, ca: CertificateAuthority) -> None:
    """It speaks in the same breath in which the handshake ends, before the server knows that it has."""
    for _ in range(5):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        talk = ca.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        async with connected(server.ports["smtp_submission"]) as client:
            await client.say(b"STARTTLS\r\n")
            while True:
                try:
                    talk.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    client.writer.write(outgoing.read())
                    incoming.write(await client.reader.read(65536))
            talk.write(b"EHLO eager\r\n" + LOGIN + ENVELOPE)
            client.writer.write(outgoing.read())
            said = b""
            while b"354" not in said:
                incoming.write(await asyncio.wait_for(client.reader.read(65536), PATIENCE))
                said += _readable(talk)
            assert b"235 2.7.0" in said


def _readable(talk: ssl.SSLObject) -> bytes:
    data = b""
    while True:
        try:
            data += talk.read(65536)
        except ssl.SSLWantReadError:
            return data


@pytest.mark.parametrize("listener", ["smtp_submission", "smtp_tls"])
async def test_broken_handshakes(server: Running, listener: str, ca: CertificateAuthority) -> None:
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports[listener])
        client = Client(reader, writer)
        if listener == "smtp_submission":
            await client.reply()
            await client.say(b"STARTTLS\r\n")
        writer.write(b"\x16\x03\x01" + b"garbage" * 100)
        assert await client.gone()
        writer.close()
    await eventually(lambda: _none_left(server, listener))
    async with connected(server.ports["smtp_tls"], tls=ca.client_context()) as client:
        assert (await client.say(LOGIN))[:3] == "235"


async def _none_left(server: Running, listener: str) -> bool:
    return server.count("smtp_connections", listener=listener) == 0


async def test_who_begins_no_handshake_holds_no_place(certificate: Certificate) -> None:
    timeouts = Timeouts(handshake=0.5)
    async with running(
        timeouts=timeouts,
        connection_limits=SmtpConnectionLimits(per_peer=3),
        certificate=certificate,
    ) as server:
        silent = [
            await asyncio.open_connection("127.0.0.1", server.ports["smtp_tls"]) for _ in range(3)
        ]
        await eventually(lambda: _come(server, 3))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports["smtp_tls"])
        assert await Client(reader, writer).gone()  # a place is taken from the first octet on
        await eventually(lambda: _none_left(server, "smtp_tls"))
        for _, one in [*silent, (reader, writer)]:
            one.close()


async def _come(server: Running, sessions: int) -> bool:
    return server.count("smtp_sessions_total", listener="smtp_tls") == sessions


async def test_who_does_not_log_in_holds_no_place(
    certificate: Certificate, ca: CertificateAuthority
) -> None:
    """However busy: commands prolong nothing."""
    async with running(timeouts=Timeouts(login=1.0), certificate=certificate) as server:
        async with connected(server.ports["smtp_tls"], tls=ca.client_context()) as client:
            talking = asyncio.create_task(chatter(client))
            while (reply := await client.reply()).startswith("250"):
                pass
            assert reply[:9] == "421 4.4.2"
            talking.cancel()
        async with connected(server.ports["smtp_tls"], tls=ca.client_context()) as client:
            await client.say(LOGIN)
            await asyncio.sleep(2.5)  # longer than one may take to log in
            assert (await client.mail())[:3] == "250"


async def chatter(client: Client) -> None:
    while True:
        client.writer.write(b"NOOP\r\n")
        await asyncio.sleep(0.01)  # so many commands as a session may give


async def test_shutting_down_does_not_wait_for_handshakes(certificate: Certificate) -> None:
    async with asyncio.timeout(PATIENCE), running(certificate=certificate) as server:
        implicit = await asyncio.open_connection("127.0.0.1", server.ports["smtp_tls"])
        await eventually(lambda: _come(server, 1))
        async with connected(server.ports["smtp_submission"]) as asked:
            await asked.say(b"STARTTLS\r\n")
            server.stop.set()
            assert await asked.gone()
        assert await Client(*implicit).gone()
        implicit[1].close()


async def test_a_mail_in_clear_before_starttls(certificate: Certificate) -> None:
    """As on a server that receives from strangers: what is pipelined behind STARTTLS never counts as secure."""
    shelf, metrics = Shelf(), Metrics()
    listener = Listener("smtp", ("127.0.0.1", 0), metrics, Open, starttls=True)
    listener.open()
    server, stop = (
        Server(
            "mail.example", shelf, SessionLimits(), Timeouts(), SmtpConnectionLimits(), certificate
        ),
        asyncio.Event(),
    )
    task = asyncio.create_task(server.run([listener], stop))
    shelf.gate.clear()
    async with connected(int(listener.where.rpartition(":")[2])) as client:
        client.writer.write(ENVELOPE + MAIL + b".\r\nSTARTTLS\r\n")
        await eventually(lambda: _asked(shelf))
        client.writer.write(b"EHLO evil\r\n" + ENVELOPE + MAIL + b".\r\n")
        shelf.gate.set()
        assert await client.gone()
    stop.set()
    await asyncio.wait_for(task, PATIENCE)
    assert len(shelf.mails) == 1


async def _asked(shelf: Shelf) -> bool:
    return shelf.asked == 1


async def test_old_tls_is_refused(server: Running, ca: CertificateAuthority) -> None:
    context = ca.client_context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection(
            "127.0.0.1", server.ports["smtp_tls"], ssl=context, server_hostname="localhost"
        )


# --- certificates that change


async def serial(server: Running, ca: CertificateAuthority) -> str:
    async with connected(server.ports["smtp_tls"], tls=ca.client_context()) as client:
        shown = client.writer.get_extra_info("peercert")
        return str(shown["serialNumber"])


async def test_a_renewed_certificate_is_used(ca: CertificateAuthority, tmp_path: Path) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    first, second, third = ca.issue(), ca.issue(), ca.issue()
    shutil.copy(first.certificate, chain)
    shutil.copy(first.key, key)
    async with running(certificate=Certificate(chain, key)) as server:
        before = await serial(server, ca)
        os.replace(
            second.certificate, chain
        )  # for a moment the two do not fit: the old pair stays in use
        assert await serial(server, ca) == before
        os.replace(second.key, key)
        after = await eventually(lambda: _another_serial(server, ca, before))
        os.replace(third.certificate, chain)
        os.replace(third.key, key)
        os.kill(os.getpid(), signal.SIGHUP)
        assert await eventually(lambda: _another_serial(server, ca, str(after))) != before


async def _another_serial(server: Running, ca: CertificateAuthority, known: str) -> str | None:
    found = await serial(server, ca)
    return None if found == known else found


def test_a_certificate_that_cannot_be_used_is_told(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    one, other = ca.issue(), ca.issue()
    with pytest.raises(SettingsError, match=r"absent.pem cannot be used for TLS: No such file"):
        Certificate(tmp_path / "absent.pem")
    with pytest.raises(SettingsError, match="KEY_VALUES_MISMATCH"):
        Certificate(one.certificate, other.key)
    with pytest.raises(SettingsError, match="cannot be used"):
        Certificate(one.certificate)  # there is no key in it
    both = tmp_path / "both.pem"
    both.write_bytes(one.certificate.read_bytes() + one.key.read_bytes())
    Certificate(both)
