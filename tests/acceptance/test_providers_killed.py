"""Workers are killed while they send through a provider's twin: nothing is lost, and doubles are recorded unknowns."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests import PATIENCE
from tests.acceptance.crew import Crew, drained
from tests.acceptance.fleet import SEALING
from tests.harness import eventually

from pillarbox.model.secret import Secret
from pillarbox.store import providers
from pillarbox.store.database import Database
from pillarbox.store.vault import EncryptionKeyRing
from pillarbox.testing.twins.mail import read_records

MAILS = 240
# The twin thinks so long about each mail that a kill always meets some on their way.
LATENCY = "0.05"
WORKER = {"SECRET_KEYS": SEALING, "WORKER_CONCURRENCY": "8", "WORKER_PIPELINE": "2"}


async def add_mails(database: Database) -> None:
    await database.execute(
        """SELECT pillarbox.enqueue(sender => 'app@shop.example', "to" => ARRAY['r' || k || '@mail.example'],
                                    subject => 'Hello', text => 'x') FROM generate_series(1, $1) k""",
        MAILS,
    )


async def add_provider(database: Database, told: dict[str, Any]) -> None:
    keys = EncryptionKeyRing([Secret(SEALING)])
    hook = Secret(told["webhook_secret"]) if told["webhook_secret"] else None
    await providers.add_provider(
        database,
        lambda: keys,
        told["kind"],
        told["kind"],
        told["settings"],
        Secret(told["secret"]),
        None,
        hook,
    )


@pytest.mark.req("REQ-QUEUE-N001")
@pytest.mark.req("REQ-QUEUE-N005")
@pytest.mark.parametrize(
    "kind", ["ses"]
)  # one is enough: all HTTP providers share what a kill meets
async def test_killed_workers_lose_nothing(
    database: Database, database_url: str, tmp_path: Path, kind: str
) -> None:
    received = tmp_path / "received"
    twin = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pillarbox.testing.twins", kind, "--latency", LATENCY, "--out", str(received),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    crew = Crew(database_url, tmp_path / "workers.log")
    try:
        assert twin.stdout
        await add_provider(database, json.loads(await twin.stdout.readline()))
        await add_mails(database)
        worker = await crew.start(**WORKER)
        for share in (0.2, 0.5):
            await eventually(lambda share=share: _arrived(received, int(share * MAILS)), PATIENCE)
            await crew.kill(worker)
            worker = await crew.start(**WORKER)
        await drained(database)
        sent = Counter(record.message_uuid for record in read_records(received))
        ids = {str(row["id"]) for row in await database.fetch("SELECT id FROM pillarbox.messages")}
        lost = "SELECT DISTINCT message_id FROM pillarbox.attempts WHERE verdict = 'unknown'"
        unknown = {str(row["message_id"]) for row in await database.fetch(lost)}
        states = await database.fetch("SELECT DISTINCT state::text FROM pillarbox.deliveries")
    finally:
        twin.kill()
        await twin.communicate()
        await crew.end()
    assert set(sent) == ids, "lost"
    assert [row["state"] for row in states] == ["sent"]
    assert unknown, "no kill met a mail on its way"
    assert {one for one, count in sent.items() if count > 1} <= unknown
    assert all(count <= 3 for count in sent.values())
    assert len(unknown) <= 2 * 8 * 2, "more than two windows"


async def _arrived(received: Path, count: int) -> bool:
    return received.exists() and len(read_records(received)) >= count
