"""Behind PgBouncer: in transaction mode without prepared statements and LISTEN, in session mode as without it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from pillarbox.store.database import Database
from pillarbox.store.migrations import check_schema, migrate
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
pool_mode = {mode}
default_pool_size = {size}
logfile = {directory}/log
ignore_startup_parameters = extra_float_digits
"""


# In session mode each client keeps a server connection.
SIZES = {"transaction": 3, "session": 30}


@pytest.fixture
async def bouncer_url(
    request: pytest.FixtureRequest, database_url: str, free_port: int, tmp_path: Path
) -> AsyncIterator[str]:
    """The test's database through a pooler, in transaction mode unless the test says otherwise."""
    if not PGBOUNCER:
        pytest.skip("PgBouncer is not installed (Debian package pgbouncer)")
    parts = urlsplit(database_url)
    [host], [password_file] = (parse_qs(parts.query)[name] for name in ("host", "passfile"))
    password = Path(password_file).read_text("utf-8").strip().rpartition(":")[2]
    config = tmp_path / "pgbouncer.ini"
    place = f"{host} user=postgres password={password}"
    mode = getattr(request, "param", "transaction")
    config.write_text(
        CONFIG.format(host=place, port=free_port, directory=tmp_path, mode=mode, size=SIZES[mode])
    )
    uid = None
    if (
        os.geteuid() == 0
    ):  # it refuses to run as root, like PostgreSQL, whose socket is for its own uid
        uid = Path(host).stat().st_uid
        for path in (tmp_path, config):
            os.chown(path, uid, uid)
        for parent in tmp_path.parents:
            if not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o001)
    process = await asyncio.create_subprocess_exec(
        PGBOUNCER, "-q", str(config), user=uid, group=uid
    )
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


async def test_mails_flow_through_a_transaction_pooler(
    database: Database, bouncer_url: str
) -> None:
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


@pytest.mark.parametrize("bouncer_url", ["session"], indirect=True)
async def test_mails_flow_through_a_session_pooler_with_default_settings(
    database: Database, bouncer_url: str
) -> None:
    pooled = await Database.connect(bouncer_url)
    assert await pooled.fetchval("SHOW jit") == "off"
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(bouncer_url):
            ids = [await enqueue(pooled, f"r{k}@x.example") for k in range(20)]
            for message_id in ids:
                await settled(database, message_id, "sent")
    await pooled.close()
    assert len(server.mails) == 20


async def test_settings_do_not_reach_other_clients_of_a_transaction_pooler(
    bouncer_url: str,
) -> None:
    pooled = await Database.connect(bouncer_url, statement_cache=False, most=1)
    await pooled.fetchval("SELECT 1")
    other = await asyncpg.connect(bouncer_url, statement_cache_size=0)
    assert await other.fetchval("SHOW jit") == "on"
    await other.close()
    await pooled.close()


@pytest.mark.parametrize("bouncer_url", ["session"], indirect=True)
async def test_migrations_through_a_session_pooler(database_url: str, bouncer_url: str) -> None:
    direct = await asyncpg.connect(database_url)
    await direct.execute("DROP SCHEMA pillarbox CASCADE")
    connection = await asyncpg.connect(bouncer_url)
    assert await migrate(connection)
    await check_schema(direct)
    await connection.close()
    await direct.close()
