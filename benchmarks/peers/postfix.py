"""Postfix as a relay, and as a queue alone: a private one with its own configuration, queue and
port.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import installation
from benchmarks.harness import Bench, Sample, Skipped, sink, tree_cpu

PROGRAM, DEFAULTS = "/usr/sbin/postfix", Path("/etc/postfix")
SESSIONS = 20  # of smtp-source
NOWHERE = 9  # the port of a relay that is never asked
HOLD = "smtpd_client_restrictions = check_client_access static:HOLD\n"
MAIN = """compatibility_level = 3.6
queue_directory = {home}/queue
data_directory = {home}/data
maillog_file = {home}/log
maillog_file_prefixes = {home}
myhostname = relay.example
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
mydestination =
alias_maps =
relayhost = [127.0.0.1]:{out}
smtpd_relay_restrictions = permit_mynetworks, reject
smtpd_client_connection_count_limit = 0
smtpd_tls_security_level = none
smtp_tls_security_level = none
smtp_dns_support_level = disabled
# Tuned: let it run as wide as it can, and never slow the sender down.
default_process_limit = 100
smtp_destination_concurrency_limit = 50
initial_destination_concurrency = 50
in_flow_delay = 0
qmgr_message_active_limit = 100000
"""
MASTER = """127.0.0.1:{into} inet n - n - - smtpd
cleanup   unix  n       -       n       -       0       cleanup
qmgr      unix  n       -       n       300     1       qmgr
rewrite   unix  -       -       n       -       -       trivial-rewrite
bounce    unix  -       -       n       -       0       bounce
defer     unix  -       -       n       -       0       bounce
trace     unix  -       -       n       -       0       bounce
proxymap  unix  -       -       n       -       -       proxymap
smtp      unix  -       -       n       -       -       smtp
relay     unix  -       -       n       -       -       smtp
error     unix  -       -       n       -       -       error
retry     unix  -       -       n       -       -       error
anvil     unix  -       -       n       -       1       anvil
scache    unix  -       -       n       -       1       scache
postlog   unix-dgram n  -       n       -       1       postlogd
"""


async def relay(
    bench: Bench,
    count: int,
    sessions: int = SESSIONS,
    keep: bool = False,
) -> Sample:
    """Mails per second from the first SMTP connection in until the last mail is out."""
    record = bench.directory / "postfix-received"
    record.unlink(missing_ok=True)
    async with sink(record) as to, running(bench, to.port) as (master, port):
        await installation.smtp_source(
            port, sessions, sessions=sessions, keep=keep
        )  # its processes started
        await installation.received(record, sessions)
        before = (tree_cpu(master), to.child.cpu)
        begun = time.monotonic()
        source = await installation.smtp_source(port, count, sessions=sessions, keep=keep)
        ended = await installation.received(record, sessions + count)
        cpu = {
            "worker": tree_cpu(master) - before[0],
            "sink": to.child.cpu - before[1],
            "client": source,
        }
    return Sample(count / (ended - begun), count, cpu)


async def hold(bench: Bench, count: int, keep: bool) -> Sample:
    """Mails per second into the hold queue, each synced to disk before it is answered for, and sent
    nowhere.
    """
    async with running(bench, NOWHERE, HOLD) as (master, port):
        await installation.smtp_source(port, installation.SESSIONS, keep=keep)
        before = tree_cpu(master)
        begun = time.monotonic()
        source = await installation.smtp_source(port, count, keep=keep)
        ended = time.monotonic()
        cpu = {"front door": tree_cpu(master) - before, "client": source}
        held = (
            sum(1 for one in (bench.directory / "postfix/queue/hold").rglob("*") if one.is_file())
            - installation.SESSIONS
        )
    if held != count:
        raise Skipped(f"it holds {held} of {count} mails")
    return Sample(count / (ended - begun), count, cpu)


@asynccontextmanager
async def running(bench: Bench, out: int, more: str = "") -> AsyncIterator[tuple[int, int]]:
    """A private Postfix that relays to port `out`; gives its master's process id and the port it
    listens on.
    """
    if not Path(PROGRAM).exists():
        raise Skipped(f"{PROGRAM} is not installed (Debian: apt-get install postfix)")
    if os.geteuid() != 0:
        raise Skipped("Postfix starts only as root")
    home = bench.directory / "postfix"
    into = _free_port()
    _configure(home, into, out, more)
    control = (PROGRAM, "-c", str(home / "etc"))
    try:
        await asyncio.to_thread(_run, *control, "start")
        yield int((home / "queue/pid/master.pid").read_text()), into
    finally:
        subprocess.run([*control, "stop"], capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


def _configure(
    home: Path,
    into: int,
    out: int,
    more: str,
) -> None:
    shutil.rmtree(home, ignore_errors=True)
    for name in ("etc", "queue", "data"):
        (home / name).mkdir(parents=True)
    owner = pwd.getpwnam("postfix")
    os.chown(home / "data", owner.pw_uid, -1)
    for name in ("postfix-files", "postfix-script", "post-install", "dynamicmaps.cf"):
        if (DEFAULTS / name).exists():
            shutil.copy(DEFAULTS / name, home / "etc" / name)
    (home / "etc/main.cf").write_text(MAIN.format(home=home, out=out) + more)
    (home / "etc/master.cf").write_text(MASTER.format(into=into))


def _run(*command: str) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise Skipped(f"it would not start: {(done.stderr or done.stdout).strip()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
