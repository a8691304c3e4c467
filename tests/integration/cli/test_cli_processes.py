"""`pillarbox up` and `pillarbox worker` as real processes: starting, signals, draining, starting again."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import smtplib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillarbox.store import providers
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.testing import SmtpServer
from pillarbox.testing.certificates import make_ca
from pillarbox.testing.smtp import Faults, Hang
from tests import PATIENCE
from tests.harness import add_smtp, enqueue, no_keys, settled, states
from tests.integration.cli.cli_helpers import Process, process
from tests.places import data_directory

ANY_PORTS = ("--http", "127.0.0.1:0", "--smtp", "127.0.0.1:0")


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory with a short path; its database does not outlive the test."""
    with data_directory() as data:
        yield data


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pillarbox", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def url_of(up: Process) -> str:
    printed = up.wait_for("Ctrl-C")
    return next(word for word in printed.split() if word.startswith("http://"))


def port_of(running: Process, listener: str) -> int:
    found = re.search(
        rf"^ *{listener} +127\.0\.0\.1:(\d+)", running.wait_for("Ctrl-C"), re.MULTILINE
    )
    assert found, running.output
    return int(found[1])


def test_up_serves_delivers_drains_and_continues(data: Path) -> None:
    options = ("--data", str(data), *ANY_PORTS)
    with process("up", *options) as up:
        url = url_of(up)
        assert "captures mails" in up.output
        assert f"--data {data}" in up.output
        with urllib.request.urlopen(url + "readyz", timeout=PATIENCE) as answer:
            assert answer.status == 200
        sent = run(
            "send", "--data", str(data), "--from", "a@b.example", "--to", "c@d.example", "--wait"
        )
        assert "sent via capture" in sent
        with smtplib.SMTP("127.0.0.1", port_of(up, "smtp")) as client:
            client.sendmail("e@f.example", "g@h.example", "Subject: by SMTP\r\n\r\nhello\r\n")
        up.wait_for('"event":"mails"')
        up.signal(signal.SIGINT)
        assert up.end() == 0
        assert "stopped" in up.output
        assert "attempt settled" not in up.output
        summaries = [
            json.loads(line) for line in up.output.splitlines() if '"event":"mails"' in line
        ]
        assert sum(line.get("sent", 0) for line in summaries) == 2
        assert (
            sum(line.get("accepted", 0) for line in summaries) == 1
        )  # by SMTP; the other came by SQL
    assert not EmbeddedPostgres(data / "postgres").running()
    with process("up", *options, "--verbose") as up:
        url_of(up)
        run("send", "--data", str(data), "--from", "a@b.example", "--to", "i@j.example", "--wait")
        up.wait_for("attempt settled")
        mails = json.loads(run("captured", "list", "--data", str(data), "--json"))
        assert [mail["recipients"] for mail in mails] == [
            ["i@j.example"],
            ["g@h.example"],
            ["c@d.example"],
        ]
        up.signal(signal.SIGTERM)
        assert up.end() == 0


def test_one_data_directory_has_one_up(data: Path) -> None:
    with process("up", "--data", str(data), *ANY_PORTS) as first:
        url = url_of(first)
        with process("up", "--data", str(data), *ANY_PORTS) as second:
            assert second.end() == 1
            assert "another `pillarbox up` uses" in second.output
        with urllib.request.urlopen(url + "readyz", timeout=PATIENCE) as answer:
            assert answer.status == 200
        first.signal()
        assert first.end() == 0


def test_a_killed_up_leaves_nothing_that_the_next_cannot_take_over(data: Path) -> None:
    options = ("--data", str(data), *ANY_PORTS)
    with process("up", *options) as up:
        url_of(up)
        up.signal(signal.SIGKILL)
        up.end()
    with process("up", *options) as up:
        url_of(up)
        up.signal()
        assert up.end() == 0
    assert not EmbeddedPostgres(data / "postgres").running()


def test_a_port_in_use_is_told(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with process("up", "--database-url", database_url, "--http", where) as up:
            assert up.end() == 1
            assert f"error: {where} is in use: choose another with --http" in up.output
            assert "Traceback" not in up.output


def test_ports_in_use_are_told_before_anything_starts(data: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        http, smtp = (f"127.0.0.1:{taken.getsockname()[1]}" for taken in (one, other))
        with process("up", "--data", str(data), "--http", http, "--smtp", smtp) as up:
            assert up.end() == 1
            assert f"{http} is in use: choose another with --http HOST:PORT" in up.output
            assert f"{smtp} is in use: choose another with --smtp HOST:PORT" in up.output
            assert "starting PostgreSQL" not in up.output
    assert not (data / "postgres").exists()


@pytest.mark.parametrize("listener", ["smtp", "smtp-submission"])
def test_an_smtp_port_in_use_is_told(database_url: str, tmp_path: Path, listener: str) -> None:
    issued = make_ca(tmp_path).issue()
    env = {
        "PILLARBOX_DEVELOPMENT": "on",
        "PILLARBOX_SMTP_CERTIFICATE": str(issued.certificate),
        "PILLARBOX_SMTP_PRIVATE_KEY": str(issued.key),
    }
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ("--database-url", database_url, "--http", "127.0.0.1:0", f"--{listener}", where)
        with process("up" if listener == "smtp" else "serve", *options, env=env) as serving:
            assert serving.end() == 1
            assert (
                f"error: {where} is in use: choose another with --{listener} HOST:PORT"
                in serving.output
            )
            assert "Traceback" not in serving.output
            assert "serves" not in serving.output
            assert "is up" not in serving.output


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--roles", "smtp"), "no address to listen on for SMTP"),
        (("--roles", "api,mail"), "give some of api, smtp, worker"),
        (("--smtp", "127.0.0.1:0"), "mail without a login is for development"),
        (("--smtp", "0.0.0.0:0"), "name a loopback address"),
        (("--smtp-submission", "127.0.0.1:0"), "but not smtp_certificate"),
    ],
)
def test_serve_refuses_what_makes_no_sense(
    database_url: str, options: tuple[str, ...], complaint: str
) -> None:
    with process(
        "serve", "--database-url", database_url, "--http", "127.0.0.1:0", *options
    ) as serving:
        assert serving.end() in (1, 2)
        assert complaint in " ".join(serving.output.replace("│", " ").split())
        assert "Traceback" not in serving.output


def test_serve_runs_the_roles_it_is_given(database_url: str, tmp_path: Path) -> None:
    with process("serve", "--database-url", database_url, "--http", "127.0.0.1:0") as serving:
        printed = serving.wait_for("worker registered")
        assert "serves: api, worker" in printed
        with urllib.request.urlopen(url_of(serving) + "readyz", timeout=PATIENCE) as answer:
            assert answer.status == 200
        serving.signal()
        assert serving.end() == 0
    with process("serve", "--database-url", database_url, "--roles", "worker") as serving:
        assert "http" not in serving.wait_for("worker registered").partition("database")[0]
        serving.signal(signal.SIGTERM)
        assert serving.end() == 0
    issued = make_ca(tmp_path).issue()
    env = {
        "PILLARBOX_SMTP_CERTIFICATE": str(issued.certificate),
        "PILLARBOX_SMTP_PRIVATE_KEY": str(issued.key),
        "PILLARBOX_METRICS_ACCESS": "open",
    }
    options = ("--roles", "api,smtp", "--http", "127.0.0.1:0", "--smtp-submission", "127.0.0.1:0")
    with process("serve", "--database-url", database_url, *options, env=env) as serving:
        with smtplib.SMTP("127.0.0.1", port_of(serving, "smtp_submission")) as client:
            client.ehlo()
        metrics = (
            urllib.request.urlopen(url_of(serving) + "metrics", timeout=PATIENCE).read().decode()
        )
        assert 'pillarbox_smtp_sessions_total{listener="smtp_submission"} 1.0' in metrics
        assert "worker registered" not in serving.output
        serving.signal()
        assert serving.end() == 0


def test_up_without_a_worker(database_url: str) -> None:
    with process(
        "up",
        "--database-url",
        database_url,
        "--http",
        "127.0.0.1:0",
        env={"EMAIL_WORKER_ENABLED": "false"},
    ) as up:
        assert "off in this process" in up.wait_for("Ctrl-C")
        up.signal()
        assert up.end() == 0
        assert "worker registered" not in up.output


async def test_a_worker_delivers_and_drains_on_sigterm(
    database: Database, database_url: str
) -> None:
    """What is in flight when the signal comes is finished; what waits stays queued."""
    async with SmtpServer(Faults(body=Hang())) as server:
        await add_smtp(database, server, connections=1)
        with process("worker", "--database-url", database_url, "--concurrency", "1") as worker:
            await asyncio.to_thread(worker.wait_for, "worker registered")
            message_id = await enqueue(database)
            await settled(database, message_id, "processing")
            worker.signal(signal.SIGTERM)
            await asyncio.to_thread(worker.wait_for, "draining")
            later = await enqueue(database)
            await (
                server.stop()
            )  # the conversation ends: nobody saw how, and the mail is queued again
            assert await asyncio.to_thread(worker.end) == 0
            assert "Traceback" not in worker.output
        assert await states(database, later) == ["queued"]
        assert await states(database, message_id) == ["queued"]


async def test_a_second_signal_aborts_at_once(database: Database, database_url: str) -> None:
    async with SmtpServer(Faults(body=Hang())) as server:
        await add_smtp(database, server)
        with process("worker", "--database-url", database_url) as worker:
            await asyncio.to_thread(worker.wait_for, "worker registered")
            await settled(database, await enqueue(database), "processing")
            worker.signal()
            await asyncio.to_thread(worker.wait_for, "draining")
            worker.signal()
            assert await asyncio.to_thread(worker.end) == 130
            assert "Traceback" not in worker.output


def test_a_worker_waits_for_its_database_and_says_so(free_port: int) -> None:
    with process(
        "worker", "--database-url", f"postgresql://me:hunter2@127.0.0.1:{free_port}/x"
    ) as worker:
        assert f"127.0.0.1:{free_port}/x" in worker.wait_for("waiting for the database")
        worker.popen.terminate()
        assert worker.end() == 0
        assert "hunter2" not in worker.output


def test_a_worker_that_is_not_let_in_says_so(database_url: str) -> None:
    with process("worker", "--database-url", database_url.replace("/test_", "/absent_")) as worker:
        assert worker.end() == 1
        assert "does not exist" in worker.output


@pytest.mark.parametrize("command", [("worker",), ("serve", "--roles", "worker")])
async def test_a_role_that_ends_by_an_error_ends_the_process_with_the_reason(
    database: Database, database_url: str, command: tuple[str, ...]
) -> None:
    await providers.add_provider(database, no_keys, "capture", "capture", {})
    with process(*command, "--database-url", database_url) as one:
        await asyncio.to_thread(one.wait_for, "provider ready")
        await database.execute("ALTER TABLE pillarbox.lanes RENAME TO gone")
        assert await asyncio.to_thread(one.end) == 1
        assert (
            'error: PostgreSQL: UndefinedTableError: relation "pillarbox.lanes" does not exist'
            in one.output
        )
        assert "stopped" not in one.output.splitlines()
        assert "Traceback" not in one.output


def test_stats_watch_is_live_and_ends_with_q(database_url: str) -> None:
    ours, theirs = pty.openpty()
    arguments = ("queue", "stats", "--watch", "--interval", "100ms", "--database-url", database_url)
    watch = subprocess.Popen(
        [sys.executable, "-m", "pillarbox", *arguments], stdin=theirs, stdout=theirs, stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while shown.count(b"deferred") < 3:
            shown += os.read(ours, 4096)
        os.write(ours, b"q")
        assert watch.wait(20) == 0
    finally:
        watch.kill()
        watch.wait()
        os.close(ours)


@pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning"
)  # forking a pytest with threads; it execs
def test_ctrl_c_under_make_exits_with_zero(data: Path) -> None:
    """`make up` in a terminal: Ctrl-C drains, and make is content."""
    root = Path(__file__).parents[3]
    if not (root / ".venv" / "runtime").exists():
        pytest.skip("not run from `make test`: there is no .venv made by `make install`")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(root)
        os.execvp("make", ["make", "up", f"ARGS=--data {data} {' '.join(ANY_PORTS)}"])
    try:
        read_until(terminal, b"Ctrl-C")
        os.write(terminal, b"\x03")
        read_until(terminal, b"stopped")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


def read_until(terminal: int, words: bytes, seconds: float = PATIENCE) -> None:
    shown, deadline = b"", time.monotonic() + seconds
    while words not in shown:
        ready, _, _ = select.select([terminal], [], [], deadline - time.monotonic())
        assert ready, f"never said {words!r}: {shown!r}"
        shown += os.read(terminal, 4096)
