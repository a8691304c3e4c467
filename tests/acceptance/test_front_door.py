"""What was answered with 250 exists whole and once, though the front door is killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from tests import PATIENCE
from tests.conftest import server_binaries
from tests.places import short_directory

from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.migrations import migrate

CLIENTS, KILLS = 20, 6
BODY = b"x" * 70 + b"\r\n"


@pytest.fixture
async def database_url_with_fsync() -> AsyncIterator[str]:
    """A server of its own that waits for the disk, as in production."""
    directory = short_directory()
    server = EmbeddedPostgres(directory / "data", server_binaries(), {"max_connections": "50"})
    try:
        await asyncio.to_thread(server.start)
        connection = await asyncpg.connect(server.url())
        await migrate(connection)
        await connection.close()
        yield server.url()
    finally:
        await asyncio.to_thread(server.stop, "immediate")
        shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def front_door(url: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """`pillarbox up` without its worker, SMTP on any port; killed with -9 at the end."""
    environment = os.environ | {
        "PILLARBOX_DATABASE_URL": url,
        "PILLARBOX_DEVELOPMENT": "on",
        "PILLARBOX_LOG_LEVEL": "warning",
        "PILLARBOX_WORKER_ENABLED": "false",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pillarbox", "up", "--http", "127.0.0.1:0", "--smtp", "127.0.0.1:0",
        env=environment, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process, await _port(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stdout
    while line := await asyncio.wait_for(process.stdout.readline(), PATIENCE):
        if found := re.search(rb"smtp +127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise AssertionError("it never listened")


class Client:
    """Sends numbered mails over one connection for as long as it lasts."""

    def __init__(self, number: int, dice: random.Random) -> None:
        self.number = number
        self.dice = dice
        self.begun: dict[
            str, int
        ] = {}  # mails whose last octet was sent, with their number of recipients
        self.answered: dict[str, str] = {}  # those with a 250, and their id

    async def send_all(self, port: int) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await reader.readuntil(b"\r\n")
                writer.write(b"EHLO client.example\r\n")
                await reader.readuntil(b"250 ENHANCEDSTATUSCODES\r\n")
                while True:
                    await self._send(reader, writer)
            finally:
                writer.transport.abort()

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = f"{self.number}-{len(self.begun)}"
        recipients = self.dice.randint(1, 3)
        writer.write(f"MAIL FROM:<{name}@x.example>\r\n".encode())
        writer.write(
            b"".join(b"RCPT TO:<r%d@y.example>\r\n" % n for n in range(recipients)) + b"DATA\r\n"
        )
        await reader.readuntil(b"\r\n354 ")
        await reader.readuntil(b"\r\n")
        lines = self.dice.choice((1, 40, 40, 40, 2000))
        self.begun[name] = recipients
        writer.write(f"Subject: {name}\r\n\r\n".encode() + BODY * lines + b"the end\r\n.\r\n")
        reply = (await reader.readuntil(b"\r\n")).decode()
        assert reply.startswith("250 2.0.0 accepted as "), reply
        self.answered[name] = reply.split()[-1]


@pytest.mark.req("REQ-QUEUE-U004")
async def test_a_killed_front_door_loses_nothing_and_halves_nothing(
    database_url_with_fsync: str,
) -> None:
    dice = random.Random(3)
    clients = [Client(number, random.Random(number)) for number in range(CLIENTS)]
    for _ in range(KILLS):
        async with front_door(database_url_with_fsync) as (process, port):
            sending = [asyncio.create_task(client.send_all(port)) for client in clients]
            before = sum(len(client.answered) for client in clients)
            async with asyncio.timeout(PATIENCE):
                while sum(len(client.answered) for client in clients) < before + 200:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(dice.uniform(0, 0.05))  # any moment will do
            process.kill()
            await asyncio.gather(*sending)
    begun = {name: count for client in clients for name, count in client.begun.items()}
    answered = {name: number for client in clients for name, number in client.answered.items()}
    assert len(answered) >= KILLS * 200
    assert len(begun) > len(answered), "no kill hit a mail on its way"
    await check(database_url_with_fsync, begun, answered)


async def check(url: str, begun: dict[str, int], answered: dict[str, str]) -> None:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(
        """SELECT m.id::text, m.subject, m.sender, c.raw, m."to",
             (SELECT count(*) FROM pillarbox.deliveries d WHERE d.message_id = m.id) AS deliveries
           FROM pillarbox.messages m LEFT JOIN pillarbox.contents c ON c.message_id = m.id"""
    )
    strays = await connection.fetchval(
        """SELECT (SELECT count(*) FROM pillarbox.contents WHERE message_id NOT IN (SELECT id FROM pillarbox.messages))
                + (SELECT count(*) FROM pillarbox.deliveries
                   WHERE message_id NOT IN (SELECT id FROM pillarbox.messages))"""
    )
    await connection.close()
    stored = {row["subject"]: row["id"] for row in rows}
    assert strays == 0
    assert len(stored) == len(rows), "a mail was stored twice"
    assert stored.items() >= answered.items(), "a mail that was answered with 250 is lost"
    assert stored.keys() <= begun.keys()
    for row in rows:
        assert row["raw"].endswith(b"the end\r\n"), "half a mail was stored"
        assert row["deliveries"] == len(row["to"]) == begun[row["subject"]]
        assert row["sender"] == f"{row['subject']}@x.example"
