"""Clients that people use, against `pillarbox up` as a process: swaks, curl, nodemailer, smtplib."""

from __future__ import annotations

import json
import re
import shutil
import smtplib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path

import pytest

from pillarbox.testing.certificates import CertificateAuthority, make_ca
from tests import PATIENCE
from tests.integration.cli.cli_helpers import Cli, process

NODE = Path(__file__).parents[3] / ".cache" / "node" / "node_modules"


@dataclass
class Door:
    """A running front door, and a login to it."""

    cli: Cli
    ca: CertificateAuthority
    ports: dict[str, int]
    username: str
    password: str

    def stored(self) -> list[tuple[str, str, list[str]]]:
        return self.cli.sql(
            'SELECT m.sender, m.subject, m."to" FROM pillarbox.messages m'
            " JOIN pillarbox.contents c ON c.message_id = m.id ORDER BY m.id"
        )


@pytest.fixture
def door(database_url: str, tmp_path: Path) -> Iterator[Door]:
    ca, cli = make_ca(tmp_path), Cli(database_url)
    issued = ca.issue()
    made = cli.json("smtp-login", "add", "--tenant", "default", "--name", "printer")
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
        ports = {name: int(port) for name, port in re.findall(r"(smtp\w*) +127\.0\.0\.1:(\d+)", printed)}
        yield Door(cli, ca, ports, made["username"], made["password"])
        serving.signal()
        assert serving.end() == 0
        assert "Traceback" not in serving.output
        assert made["password"] not in serving.output


def run(*command: str, stdin: str | None = None) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False)
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
    login = ("--auth-user", door.username, "--auth-password", door.password, "--tls-ca-path", str(door.ca.path))
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
    run(*common, *login, "--login-options", "AUTH=LOGIN", f"smtps://127.0.0.1:{door.ports['smtp_tls']}")
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
        {**local, "port": door.ports["smtp_submission"], "requireTLS": True, "auth": auth, "tls": tls},
        {**local, "port": door.ports["smtp_tls"], "secure": True, "auth": auth, "tls": tls},
    ]
    run("node", "-e", NODEMAILER, str(NODE / "nodemailer"), json.dumps(settings))
    assert door.stored() == [("a@x.example", "Grüße", ["b@y.example", "c@y.example"])] * 9
