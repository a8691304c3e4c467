"""What was answered 202 exists, whole and once, although the front door is killed and PostgreSQL crashes meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from tests.conftest import server_binaries
from tests.harness import eventually
from tests.integration.api.api_helpers import MAIL, new_key
from tests.places import short_directory

from pillarbox.model.access import Scope
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.migrations import migrate

CLIENTS, MAILS = 20, 30


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedPostgres]:
    """PostgreSQL that waits for its disk, with our schema."""
    directory = short_directory()
    server = EmbeddedPostgres(directory / "data", server_binaries())
    await asyncio.to_thread(server.start)
    try:
        database = await Database.connect(server.url())
        async with database.connection() as connection:
            await migrate(connection)
        await database.close()
        yield server
    finally:
        await asyncio.to_thread(server.stop, "immediate")
        shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def front_door(url: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """`pillarbox serve --roles api`, killed at the end if it still runs."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PILLARBOX_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pillarbox", "serve", "--roles", "api", "--http", f"127.0.0.1:{port}",
        env=clean | {"PILLARBOX_DATABASE_URL": url, "PILLARBOX_LOG_LEVEL": "error"},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Client:
    """Sends numbered mails, each until it is answered 202, with an idempotency key."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.session, self.url = session, f"http://127.0.0.1:{port}/api/v1/messages"
        self.answered: dict[str, str] = {}

    async def send(self, number: str) -> None:
        async def sent() -> bool:
            try:
                headers = {"Idempotency-Key": number}
                async with self.session.post(
                    self.url, json=MAIL | {"subject": number}, headers=headers
                ) as answer:
                    assert answer.status in (202, 503), await answer.text()
                    if answer.status == 202:
                        self.answered[number] = (await answer.json())["id"]
                    return answer.status == 202
            except (
                aiohttp.ClientError,
                TimeoutError,
            ):  # it was killed under the request, or is not up again yet
                return False

        await eventually(sent, 120)

    async def send_all(self, client: int) -> None:
        for n in range(MAILS):
            await self.send(f"{client}-{n}")


@pytest.mark.req("REQ-QUEUE-U004")
@pytest.mark.req("REQ-QUEUE-N001")
async def test_what_was_answered_is_there_through_kills(
    server: EmbeddedPostgres, free_port: int
) -> None:
    database = await Database.connect(server.url())
    key = await new_key(database, "default", Scope.SEND)
    await database.close()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:
        client = Client(session, free_port)
        sending = [asyncio.create_task(client.send_all(n)) for n in range(CLIENTS)]
        for share in (0.1, 0.3, 0.5):
            async with front_door(server.url(), free_port) as process:
                await eventually(lambda share=share: reached(client, share), 120)
                process.kill()
                await process.wait()
        await asyncio.to_thread(server.stop, "immediate")
        await asyncio.to_thread(server.start)
        async with front_door(server.url(), free_port):
            await asyncio.gather(*sending)
    await check(server, client)


async def reached(client: Client, share: float) -> bool:
    return len(client.answered) >= share * CLIENTS * MAILS


async def check(server: EmbeddedPostgres, client: Client) -> None:
    database = await Database.connect(server.url())
    rows = await database.fetch(
        "SELECT id, subject, (SELECT count(*) FROM pillarbox.deliveries WHERE message_id = id) AS deliveries,"
        " EXISTS (SELECT FROM pillarbox.contents WHERE message_id = id) AS whole FROM pillarbox.messages"
    )
    await database.close()
    assert {row["subject"]: str(row["id"]) for row in rows} == client.answered
    assert len(rows) == CLIENTS * MAILS
    assert all(row["deliveries"] == 1 and row["whole"] for row in rows)
