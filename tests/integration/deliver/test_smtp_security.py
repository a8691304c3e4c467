"""The SMTP transport's TLS and logins: what is required is enforced, and credentials go nowhere else."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pillarbox.deliver.transports.smtp import SmtpTransport
from pillarbox.errors import NotPossible
from pillarbox.model.outcome import Outcome, Reason, Verdict
from pillarbox.model.provider_kinds.smtp import Tls
from pillarbox.model.secret import Secret
from pillarbox.testing.certificates import CertificateAuthority, make_ca
from pillarbox.testing.smtp import (
    STARTTLS_INJECTION,
    BrokenTls,
    Drop,
    Extensions,
    Faults,
    Hang,
    SmtpServer,
)
from tests import PATIENCE
from tests.integration.deliver.smtp_helpers import (
    MAIL,
    outgoing,
    send,
    send_one,
    settings_for,
    smtp,
    talking,
    told,
)

ACCEPTED = (Verdict.ACCEPTED, None)
LOGIN = {"username": "user", "password": Secret("hunter2")}
BIG = MAIL + (b"x" * 98 + b"\r\n") * 20_000  # 2 MB: several slices


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return make_ca(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def context(ca: CertificateAuthority) -> ssl.SSLContext:
    return ca.issue().server_context()


def patience_with(fault: Any) -> float:
    """How long a server may take: not long if it never answers, whatever the machine needs if it does."""
    return 2 if isinstance(fault, Hang) else PATIENCE


def is_deferred(outcome: Outcome, reason: Reason) -> bool:
    return (outcome.verdict, outcome.reason) == (Verdict.DEFERRED, reason)


# --- every mode, on both event loops ---


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("tls", list(Tls))
@pytest.mark.parametrize("pipelining", [True, False])
def test_every_mode_on_both_loops(
    tls: Tls, pipelining: bool, loop_factory: Any, ca: CertificateAuthority, context: ssl.SSLContext
) -> None:
    """The connection is taken over from aiosmtplib whatever it runs on; small and big mails go through."""

    async def run() -> None:
        implicit = context if tls is Tls.IMPLICIT else None
        extensions = Extensions(
            pipelining=pipelining,
            size=0,
            starttls=context,
            users={"user": "hunter2"},
            auth_required=True,
        )
        async with SmtpServer(extensions=extensions, implicit_tls=implicit) as server:
            async with smtp(
                server, tls=tls, ca_file=str(ca.path), connections=2, **LOGIN
            ) as transport:
                reports = await send(
                    transport, *(outgoing(content=MAIL * size) for size in (1, 100, 10_000, 1, 1))
                )
                [big] = await send(transport, outgoing(content=BIG))
            assert [told(report) for report in (*reports, big)] == [[ACCEPTED]] * 6
            assert sorted(len(mail.content) for mail in server.mails[:5]) == sorted(
                len(MAIL) * size for size in (1, 100, 10_000, 1, 1)
            )
            assert server.mails[5].content == BIG
            assert {mail.tls for mail in server.mails} == {tls is not Tls.NONE}
            assert {mail.username for mail in server.mails} == {"user"}
            assert server.violations == []

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


# --- required means required ---


async def test_starttls_protects_everything_but_the_greeting(
    ca: CertificateAuthority, context: ssl.SSLContext
) -> None:
    extensions = Extensions(starttls=context, any_login=True)
    async with talking(extensions=extensions, tls=Tls.STARTTLS, ca_file=str(ca.path), **LOGIN) as (
        server,
        transport,
    ):
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert [line.split()[0] for line in server.commands_in_clear] == ["EHLO", "STARTTLS"]


async def test_starttls_that_is_not_offered_fails_closed() -> None:
    async with talking(extensions=Extensions(any_login=True), tls=Tls.STARTTLS, **LOGIN) as (
        server,
        transport,
    ):
        outcome = await send_one(transport)
    assert is_deferred(outcome, Reason.TLS)
    assert [line.split()[0] for line in server.commands] == ["EHLO"]


@pytest.mark.parametrize("tls", [Tls.STARTTLS, Tls.IMPLICIT])
@pytest.mark.parametrize("flaw", ["untrusted", "expired", "wrong name"])
async def test_certificates_are_verified(
    flaw: str, tls: Tls, ca: CertificateAuthority, context: ssl.SSLContext
) -> None:
    bad = {
        "untrusted": lambda: context,
        "expired": lambda: ca.expired().server_context(),
        "wrong name": lambda: ca.wrong_name().server_context(),
    }[flaw]()
    ca_file = None if flaw == "untrusted" else str(ca.path)
    extensions = Extensions(starttls=bad, any_login=True)
    async with SmtpServer(
        extensions=extensions, implicit_tls=bad if tls is Tls.IMPLICIT else None
    ) as server:
        transport = SmtpTransport(settings_for(server, tls=tls, ca_file=ca_file, **LOGIN))
        outcome = await send_one(transport)
        await transport.close()
    assert is_deferred(outcome, Reason.TLS)
    assert "certificate" in (outcome.text or "")
    assert server.mails == []
    assert not any(line.upper().startswith(("AUTH", "MAIL")) for line in server.commands)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (BrokenTls(), Reason.TLS),
        (Drop(), Reason.TLS),
        ("454 4.7.0 TLS not available", Reason.TLS),
        (Hang(), Reason.TIMEOUT),
    ],
)
async def test_a_failed_upgrade_fails_closed(
    fault: Any, reason: Reason, ca: CertificateAuthority, context: ssl.SSLContext
) -> None:
    changes = {
        "tls": Tls.STARTTLS,
        "ca_file": str(ca.path),
        "connect_timeout": patience_with(fault),
        **LOGIN,
    }
    extensions = Extensions(starttls=context, any_login=True)
    async with talking(Faults(starttls=fault), extensions, **changes) as (server, transport):
        assert is_deferred(await send_one(transport), reason)
    assert not any(line.upper().startswith(("AUTH", "MAIL")) for line in server.commands)


async def test_words_injected_before_tls_are_forgotten(
    ca: CertificateAuthority, context: ssl.SSLContext
) -> None:
    """What was said in clear must not count afterwards: here, an offer to log in."""
    changes = {"tls": Tls.STARTTLS, "ca_file": str(ca.path), **LOGIN}
    faults = Faults(starttls=STARTTLS_INJECTION)
    async with talking(faults, Extensions(starttls=context), **changes) as (server, transport):
        outcome = await send_one(transport)
    assert outcome.verdict is Verdict.DEFERRED
    assert not any(line.upper().startswith("AUTH") for line in server.commands)


async def test_implicit_tls_towards_a_server_in_clear() -> None:
    async with talking(tls=Tls.IMPLICIT, connect_timeout=2) as (server, transport):
        outcome = await send_one(transport)
    assert outcome.verdict is Verdict.DEFERRED
    assert outcome.reason in (Reason.TLS, Reason.TIMEOUT)
    assert server.mails == []


async def test_a_missing_ca_file_says_so(tmp_path: Path) -> None:
    async with talking(tls=Tls.STARTTLS, ca_file=str(tmp_path / "missing.pem")) as (_, transport):
        outcome = await send_one(transport)
    assert outcome.verdict is Verdict.DEFERRED
    assert "No such file" in (outcome.text or "")


# --- opportunistic ---


async def test_opportunistic_takes_any_certificate(context: ssl.SSLContext) -> None:
    extensions = Extensions(starttls=context, any_login=True)
    async with talking(extensions=extensions, tls=Tls.OPPORTUNISTIC, **LOGIN) as (
        server,
        transport,
    ):
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert [mail.tls for mail in server.mails] == [True]


async def test_opportunistic_sends_mail_but_never_credentials_in_clear() -> None:
    async with talking(extensions=Extensions(any_login=True), tls=Tls.OPPORTUNISTIC) as (
        server,
        transport,
    ):
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    async with talking(extensions=Extensions(any_login=True), tls=Tls.OPPORTUNISTIC, **LOGIN) as (
        server,
        transport,
    ):
        outcome = await send_one(transport)
    assert is_deferred(outcome, Reason.TLS)
    assert [line.split()[0] for line in server.commands] == ["EHLO"]


# --- logins ---


@pytest.mark.req("REQ-QUEUE-N002")
@pytest.mark.req("REQ-QUEUE-N003")
@pytest.mark.parametrize(
    ("faults", "extensions", "reason", "code"),
    [
        (Faults(), Extensions(users={"user": "other"}), Reason.CREDENTIAL, 535),
        (Faults(), Extensions(), Reason.CREDENTIAL, None),
        (Faults(), Extensions(any_login=True, mechanisms=["GSSAPI"]), Reason.CREDENTIAL, None),
        (Faults(auth="454 4.7.0 later"), Extensions(any_login=True), Reason.UNAVAILABLE, 454),
        (Faults(auth="535 5.7.8 no"), Extensions(any_login=True), Reason.CREDENTIAL, 535),
        (Faults(auth=Drop()), Extensions(any_login=True), Reason.UNAVAILABLE, None),
        (Faults(auth=Hang()), Extensions(any_login=True), Reason.TIMEOUT, None),
    ],
)
async def test_logins_that_fail_are_the_providers_trouble(
    faults: Faults, extensions: Extensions, reason: Reason, code: int | None
) -> None:
    async with talking(faults, extensions, connect_timeout=patience_with(faults.auth), **LOGIN) as (
        server,
        transport,
    ):
        [report] = await send(transport, outgoing())
    [outcome] = report.outcomes
    assert is_deferred(outcome, reason)
    assert outcome.code == code
    assert server.mails == []
    assert "hunter2" not in f"{report!r} {report.transcript}"


async def test_a_missing_login_is_no_fault_of_the_mail() -> None:
    extensions = Extensions(any_login=True, auth_required=True)
    async with talking(extensions=extensions) as (_, transport):
        outcome = await send_one(transport)
    assert is_deferred(outcome, Reason.CREDENTIAL)
    assert outcome.code == 530


@pytest.mark.req("REQ-QUEUE-N003")
async def test_conversations_keep_no_credentials() -> None:
    faults = Faults(body="554 5.0.0 no")
    async with talking(faults, Extensions(any_login=True), **LOGIN) as (server, transport):
        [report] = await send(transport, outgoing())
    auth = next(line.split()[-1] for line in server.commands if line.upper().startswith("AUTH"))
    assert "(logged in)" in (report.transcript or "")
    for secret in ("hunter2", auth):
        assert secret not in (report.transcript or "")


@pytest.mark.req("REQ-QUEUE-N003")
@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN"])
async def test_a_server_that_repeats_the_password_is_not_quoted(mechanism: str) -> None:
    """Some quote the line they did not understand."""
    async with talking(extensions=Extensions(any_login=True, mechanisms=[mechanism]), **LOGIN) as (
        server,
        transport,
    ):
        server.faults = Faults(
            auth=lambda session, name: f"500 5.5.2 hunter2? unknown: {server.commands[-1]} :hunter2"
        )
        [report] = await send(transport, outgoing())
        with pytest.raises(NotPossible) as caught:
            await transport.check()
    said = server.commands[-1].split()[-1]
    for shown in (f"{report!r} {report.transcript}", str(caught.value)):
        assert "unknown: " in shown
        assert "hunter2" not in shown
        assert said not in shown


# --- check ---


async def test_check_describes_the_server(
    ca: CertificateAuthority, context: ssl.SSLContext
) -> None:
    changes = {"tls": Tls.STARTTLS, "ca_file": str(ca.path), **LOGIN}
    extensions = Extensions(starttls=context, any_login=True, size=10_485_760)
    async with talking(extensions=extensions, **changes) as (server, transport):
        line = await transport.check()
        await server.wait_for(lambda: server.open_connections == 0)
    assert line == (
        f"127.0.0.1:{server.port}, TLS 1.3, PIPELINING, SIZE 10485760, 8BITMIME, SMTPUTF8, logged in as user"
    )
    assert [line.split()[0].upper() for line in server.commands[-2:]] == ["NOOP", "QUIT"]


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (Faults(connect="421 4.3.2 not now"), "unavailable.*not now"),
        (Faults(auth="535 5.7.8 wrong"), "credential.*wrong"),
        (Faults(noop=Drop()), "but then"),
        (Faults(noop="451 4.3.0 hm"), "but then"),
    ],
)
async def test_check_says_what_is_wrong(faults: Faults, words: str) -> None:
    async with talking(faults, Extensions(any_login=True), **LOGIN) as (server, transport):
        with pytest.raises(NotPossible, match=words) as caught:
            await transport.check()
        await server.wait_for(lambda: server.open_connections == 0)
    assert "hunter2" not in str(caught.value)


async def test_a_hanging_tls_server_does_not_outlive_closing(
    ca: CertificateAuthority, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.deliver.transports.smtp_connection.QUIT_TIMEOUT", 0.1)
    async with SmtpServer(Faults(quit=Hang()), Extensions(starttls=context)) as server:
        transport = SmtpTransport(settings_for(server, tls=Tls.STARTTLS, ca_file=str(ca.path)))
        await send_one(transport)
        await asyncio.wait_for(transport.close(), PATIENCE)
        assert transport.connections_open == 0
