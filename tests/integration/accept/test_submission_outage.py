"""PostgreSQL goes away while SMTP listens: clients hear 451, nothing is stored, and all is well when it comes back."""

from __future__ import annotations

import asyncio
import shutil
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from pillarbox.store import access
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.migrations import migrate
from pillarbox.testing.certificates import make_ca
from tests.conftest import server_binaries
from tests.harness import eventually
from tests.integration.accept.submission_helpers import connected, installed
from tests.places import short_directory


@pytest.fixture
async def postgres() -> AsyncIterator[EmbeddedPostgres]:
    """A server of the test's own, to be stopped at will."""
    directory = short_directory()
    server = EmbeddedPostgres(directory / "data", server_binaries(), {"fsync": "off"})
    try:
        await asyncio.to_thread(server.start)
        connection = await asyncpg.connect(server.url())
        await migrate(connection)
        await connection.close()
        yield server
    finally:
        await asyncio.to_thread(server.stop, "immediate")
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.req("REQ-QUEUE-U004")
async def test_the_database_goes_away_and_comes_back(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    database = await Database.connect(postgres.url())
    facts, password = await access.add_login(database, "default", "printer")
    await database.close()
    ca = make_ca(tmp_path)
    issued = ca.issue()
    tls = {
        "smtp_tls": "127.0.0.1:0",
        "smtp_certificate": issued.certificate,
        "smtp_private_key": issued.key,
    }
    plain = (
        b"AUTH PLAIN " + b64encode(f"\0{facts.username}\0{password.reveal()}".encode()) + b"\r\n"
    )
    async with installed(postgres.url(), **tls) as one, connected(one.ports["smtp"]) as client:
        assert (await client.mail()).startswith("250")
        await asyncio.to_thread(postgres.stop, "immediate")
        for _ in range(3):
            assert (await client.mail())[:9] == "451 4.3.0"
        async with connected(one.ports["smtp_tls"], tls=ca.client_context()) as stranger:
            assert (await stranger.say(plain))[:9] == "454 4.3.0"
        await asyncio.to_thread(postgres.start)

        async def accepted() -> bool:
            return (await client.mail()).startswith("250")

        await eventually(accepted)
        async with connected(one.ports["smtp_tls"], tls=ca.client_context()) as friend:
            assert (await friend.say(plain))[:9] == "235 2.7.0"
            assert (await friend.mail()).startswith("250")
        assert await one.app.database.fetchval("SELECT count(*) FROM pillarbox.messages") == 3


FAULT = """
CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{sqlstate}'; END $$;
CREATE TRIGGER fault BEFORE INSERT ON pillarbox.messages EXECUTE FUNCTION fault();
"""


@pytest.mark.parametrize(
    "sqlstate",
    ["25006", "28000", "28P01", "42501", "53100", "55P03", "57014", "40001", "XX000", "42703"],
)
async def test_whatever_postgresql_raises_the_mail_is_not_accepted_and_can_be_sent_again(
    database: Database, database_url: str, sqlstate: str
) -> None:
    """Read-only, a password that changed, missing privileges, a full disk, locks, a bug of ours: none is the mail's."""
    async with installed(database_url) as one, connected(one.ports["smtp"]) as client:
        async with database.connection() as connection:
            await connection.execute(FAULT.format(sqlstate=sqlstate))
        for _ in range(2):
            assert (await client.mail())[:9] == "451 4.3.0"
        assert one.app.supervisor.dead() is None
        async with database.connection() as connection:
            await connection.execute("DROP FUNCTION fault CASCADE")
        assert (await client.mail()).startswith("250")
        assert await database.fetchval("SELECT count(*) FROM pillarbox.messages") == 1
