"""Behind PgBouncer in transaction mode: no prepared statements, no LISTEN, and everything works."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from tests.harness import add_smtp, enqueue, eventually, settled, working

PGBOUNCER = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
CONFIG = """\
[databases]
* = host={host}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
logfile = {directory}/log
ignore_startup_parameters = extra_float_digits
"""


@pytest.fixture
async def bouncer_url(database_url: str, free_port: int, tmp_path: Path) -> AsyncIterator[str]:
    """The test's database through a pooler with three server connections."""
    if not PGBOUNCER:
        pytest.skip("PgBouncer is not installed (Debian package pgbouncer)")
    parts = urlsplit(database_url)
    [host], [password_file] = (parse_qs(parts.query)[name] for name in ("host", "passfile"))
    password = Path(password_file).read_text("utf-8").strip().rpartition(":")[2]
    config = tmp_path / "pgbouncer.ini"
    place = f"{host} user=postgres password={password}"
    config.write_text(CONFIG.format(host=place, port=free_port, directory=tmp_path))
    uid = None
    if os.geteuid() == 0:  # it refuses to run as root, like PostgreSQL, whose socket is for its own uid
        uid = Path(host).stat().st_uid
        for path in (tmp_path, config):
            os.chown(path, uid, uid)
        for parent in tmp_path.parents:
            if not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o001)
    process = await asyncio.create_subprocess_exec(PGBOUNCER, "-q", str(config), user=uid, group=uid)
    try:
        await eventually(lambda: _answers(free_port))
        yield f"postgresql://postgres@127.0.0.1:{free_port}{parts.path}"
    finally:
        process.terminate()
        await process.wait()


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_mails_flow_through_a_transaction_pooler(database: Database, bouncer_url: str) -> None:
    pooled = await Database.connect(bouncer_url, statement_cache=False)
    async with SmtpServer() as server:
        await add_smtp(database, server)
        settings = {"statement_cache": False, "notify": False, "worker_poll_interval": "200ms"}
        async with working(bouncer_url, **settings):
            ids = [await enqueue(pooled, f"r{k}@x.example") for k in range(20)]
            for message_id in ids:
                await settled(database, message_id, "sent")
    await pooled.close()
    assert len(server.mails) == 20
