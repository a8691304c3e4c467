"""Clients that people use, against `pillarbox up` as a process: swaks, curl, nodemailer, smtplib, Django."""

from __future__ import annotations

import json
import re
import shutil
import smtplib
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path

import pytest

from pillarbox.testing.certificates import CertificateAuthority, make_ca
from tests import PATIENCE
from tests.integration.cli.cli_helpers import Cli, Process, process

NODE = Path(__file__).parents[3] / ".cache" / "node" / "node_modules"


@dataclass
class Door:
    """A running front door, and a login to it."""

    cli: Cli
    ca: CertificateAuthority
    ports: dict[str, int]
    username: str
    password: str
    process: Process

    def stored(self) -> list[tuple[str, str, list[str]]]:
        return self.cli.sql(
            'SELECT m.sender, m.subject, m."to" FROM pillarbox.messages m'
            " JOIN pillarbox.contents c ON c.message_id = m.id ORDER BY m.id"
        )


@pytest.fixture
def door(database_url: str, tmp_path: Path) -> Iterator[Door]:
    ca, cli = make_ca(tmp_path), Cli(database_url)
    issued = ca.issue()
    cli("tenant", "add", "shop")
    made = cli.json("smtp-login", "add", "--tenant", "shop", "--name", "printer")
    listeners = [f"--{name}=127.0.0.1:0" for name in ("smtp", "smtp-submission", "smtp-tls")]
    env = {
        "PILLARBOX_DATABASE_URL": database_url,
        "PILLARBOX_DEVELOPMENT": "on",
        "PILLARBOX_SMTP_CERTIFICATE": str(issued.certificate),
        "PILLARBOX_SMTP_PRIVATE_KEY": str(issued.key),
        "PILLARBOX_WORKER_ENABLED": "false",
    }
    with process("up", "--http", "127.0.0.1:0", *listeners, env=env) as serving:
        printed = serving.wait_for("Ctrl-C")
        ports = {
            name: int(port) for name, port in re.findall(r"(smtp\w*) +127\.0\.0\.1:(\d+)", printed)
        }
        yield Door(cli, ca, ports, made["username"], made["password"], serving)
        serving.signal()
        assert serving.end() == 0
        assert "Traceback" not in serving.output
        assert made["password"] not in serving.output


def run(*command: str, stdin: str | None = None) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_smtplib(door: Door) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@x.example", "b@y.example", "Grüße"
    message.set_content("hello")
    with smtplib.SMTP("127.0.0.1", door.ports["smtp"]) as plain:
        plain.send_message(message)
        plain.send_message(message)
    context = door.ca.client_context()
    with smtplib.SMTP("127.0.0.1", door.ports["smtp_submission"]) as starttls:
        starttls.starttls(context=context)
        starttls.login(door.username, door.password)  # AUTH PLAIN
        starttls.send_message(message)
    with smtplib.SMTP_SSL("127.0.0.1", door.ports["smtp_tls"], context=context) as implicit:
        implicit.ehlo()
        implicit.user, implicit.password = door.username, door.password
        implicit.auth("LOGIN", implicit.auth_login)
        implicit.send_message(message)
    assert door.stored() == [("a@x.example", "Grüße", ["b@y.example"])] * 4


def test_swaks(door: Door) -> None:
    common = (
        "swaks", "--from", "a@x.example", "--to", "b@y.example,c@y.example", "--h-Subject", "swaks",
        "--server", "127.0.0.1", "--port",
    )  # fmt: skip
    assert "250 2.0.0 accepted as " in run(*common, str(door.ports["smtp"]), "--pipeline")
    login = (
        "--auth-user",
        door.username,
        "--auth-password",
        door.password,
        "--tls-ca-path",
        str(door.ca.path),
    )
    for mechanism in ("PLAIN", "LOGIN"):
        how = ("--tls-verify", "--auth", mechanism, *login)
        run(*common, str(door.ports["smtp_submission"]), "--tls", *how)
        run(*common, str(door.ports["smtp_tls"]), "--tlsc", *how)
    assert door.stored() == [("a@x.example", "swaks", ["b@y.example", "c@y.example"])] * 5


def test_curl(door: Door, tmp_path: Path) -> None:
    mail = tmp_path / "mail.eml"
    mail.write_bytes(b"From: a@x.example\r\nSubject: curl\r\n\r\nhello\r\n.dot\r\n")
    common = ("curl", "--silent", "--show-error", "--mail-from", "a@x.example", "--mail-rcpt", "b@y.example",
              "--upload-file", str(mail), "--cacert", str(door.ca.path))  # fmt: skip
    login = ("--user", f"{door.username}:{door.password}", "--ssl-reqd")
    run(*common, f"smtp://127.0.0.1:{door.ports['smtp']}")
    run(*common, *login, f"smtp://127.0.0.1:{door.ports['smtp_submission']}")
    run(
        *common,
        *login,
        "--login-options",
        "AUTH=LOGIN",
        f"smtps://127.0.0.1:{door.ports['smtp_tls']}",
    )
    assert door.stored() == [("a@x.example", "curl", ["b@y.example"])] * 3
    assert door.cli.sql("SELECT DISTINCT raw FROM pillarbox.contents") == [(mail.read_bytes(),)]


NODEMAILER = """
const nodemailer = require(process.argv[1]);
const settings = JSON.parse(process.argv[2]);
const mail = {from: '"Ä" <a@x.example>', to: 'b@y.example', bcc: 'c@y.example', subject: 'Grüße', text: 'hällo',
              attachments: [{filename: 'ä.txt', content: 'x'.repeat(100000)}]};
(async () => {
  for (const one of settings) {
    const transport = nodemailer.createTransport(one);
    const answers = await Promise.all([1, 2, 3].map(() => transport.sendMail(mail)));
    for (const answer of answers) if (!answer.response.startsWith('250 2.0.0 accepted as ')) throw answer.response;
    transport.close();
  }
})().catch(error => { console.error(error); process.exit(1); });
"""


def test_nodemailer(door: Door) -> None:
    if not (NODE / "nodemailer").exists():
        pytest.skip("nodemailer is not installed: tests/packages does that")
    auth = {"user": door.username, "pass": door.password}
    tls = {"ca": door.ca.path.read_text()}
    local = {"host": "127.0.0.1", "pool": True}
    settings = [
        {**local, "port": door.ports["smtp"]},
        {
            **local,
            "port": door.ports["smtp_submission"],
            "requireTLS": True,
            "auth": auth,
            "tls": tls,
        },
        {**local, "port": door.ports["smtp_tls"], "secure": True, "auth": auth, "tls": tls},
    ]
    run("node", "-e", NODEMAILER, str(NODE / "nodemailer"), json.dumps(settings))
    assert door.stored() == [("a@x.example", "Grüße", ["b@y.example", "c@y.example"])] * 9


# --- applications with credentials, unchanged, in development: without TLS, with a login that nobody made


def tenants_of(cli: Cli) -> list[str]:
    """The tenant of each mail, in order."""
    rows = cli.sql(
        "SELECT t.name FROM pillarbox.messages m JOIN pillarbox.tenants t ON t.id = m.tenant_id ORDER BY m.id"
    )
    return [name for (name,) in rows]


def check_credentials(door: Door, mails: int) -> None:
    """Of as many mails with unknown as with known credentials, and a line in the log about the former."""
    assert tenants_of(door.cli) == ["default"] * mails + ["shop"] * mails
    log = door.process.output
    assert log.count("an unknown login was accepted") == 1
    for secret in ("app@corp.example", "hunter2", door.password):
        assert secret not in log


CREDENTIALS = ("app@corp.example", "hunter2")


def test_smtplib_with_credentials_in_development(door: Door) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@x.example", "b@y.example", "hello"
    for credentials in (CREDENTIALS, (door.username, door.password)):
        for mechanism in ("auth_plain", "auth_login"):
            with smtplib.SMTP("127.0.0.1", door.ports["smtp"]) as client:
                client.ehlo()
                assert client.has_extn("auth")
                assert not client.has_extn("starttls")
                client.user, client.password = credentials
                client.auth(mechanism.removeprefix("auth_").upper(), getattr(client, mechanism))
                client.send_message(message)
    with (
        smtplib.SMTP("127.0.0.1", door.ports["smtp"]) as client,
        pytest.raises(smtplib.SMTPAuthenticationError) as no,
    ):
        client.login(
            door.username, "hunter2"
        )  # a known name: its mail must not go to another tenant
    assert no.value.smtp_code == 535
    check_credentials(door, 2)


DJANGO = """
import sys
from django.conf import settings
settings.configure(EMAIL_HOST="127.0.0.1", EMAIL_PORT=int(sys.argv[1]), EMAIL_HOST_USER=sys.argv[2],
                   EMAIL_HOST_PASSWORD=sys.argv[3])
from django.core.mail import send_mail
assert send_mail("hello", "text", "a@x.example", ["b@y.example"]) == 1
"""


def test_django_with_credentials_in_development(door: Door) -> None:
    for credentials in (CREDENTIALS, (door.username, door.password)):
        run(sys.executable, "-c", DJANGO, str(door.ports["smtp"]), *credentials)
    check_credentials(door, 1)


def test_swaks_with_credentials_in_development(door: Door) -> None:
    common = ("swaks", "--from", "a@x.example", "--to", "b@y.example", "--server", "127.0.0.1",
              "--port", str(door.ports["smtp"]))  # fmt: skip
    for username, password in (CREDENTIALS, (door.username, door.password)):
        for mechanism in ("PLAIN", "LOGIN"):
            run(*common, "--auth", mechanism, "--auth-user", username, "--auth-password", password)
    check_credentials(door, 2)


def test_nodemailer_with_credentials_in_development(door: Door) -> None:
    if not (NODE / "nodemailer").exists():
        pytest.skip("nodemailer is not installed: tests/packages does that")
    settings = [
        {
            "host": "127.0.0.1",
            "port": door.ports["smtp"],
            "auth": {"user": username, "pass": password},
        }
        for username, password in (CREDENTIALS, (door.username, door.password))
    ]
    run("node", "-e", NODEMAILER, str(NODE / "nodemailer"), json.dumps(settings))
    check_credentials(door, 3)


def test_applications_that_insist_on_starttls_in_development(
    database_url: str, tmp_path: Path
) -> None:
    """The certificate is made once; its CA is what the banner says."""
    env = {
        "PILLARBOX_DATABASE_URL": database_url,
        "PILLARBOX_DEVELOPMENT": "on",
        "PILLARBOX_WORKER_ENABLED": "false",
    }
    options = ("--http", "127.0.0.1:0", "--smtp-starttls", "0", "--data", str(tmp_path / "data"))
    authorities = set()
    for _ in range(2):
        with process("up", *options, env=env) as up:
            printed = up.wait_for("Ctrl-C")
            ca = Path(re.search(r"smtp ca +(\S+)", printed)[1])  # type: ignore[index]
            port = int(re.search(r"smtp_starttls +127\.0\.0\.1:(\d+)", printed)[1])  # type: ignore[index]
            authorities.add(ca.read_text())
            with smtplib.SMTP("127.0.0.1", port) as client:
                client.ehlo("x")
                assert not client.has_extn("auth")  # over TLS only
                client.starttls(context=ssl.create_default_context(cafile=str(ca)))
                client.login(*CREDENTIALS)
                client.sendmail("a@x.example", "b@y.example", "Subject: x\r\n\r\nhello\r\n")
            with (
                smtplib.SMTP("127.0.0.1", port) as client,
                pytest.raises(ssl.SSLCertVerificationError),
            ):
                client.starttls(context=ssl.create_default_context())
            if (NODE / "nodemailer").exists():
                auth = dict(zip(("user", "pass"), CREDENTIALS, strict=True))
                insisting = {"host": "localhost", "port": port, "requireTLS": True, "auth": auth}
                settings = [insisting | {"tls": {"ca": ca.read_text()}}]
                run("node", "-e", NODEMAILER, str(NODE / "nodemailer"), json.dumps(settings))
    assert len(authorities) == 1
    assert set(tenants_of(Cli(database_url))) == {"default"}
    assert (tmp_path / "data" / "smtp-starttls" / "server.pem").stat().st_mode & 0o077 == 0
