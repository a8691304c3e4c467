"""Seed 003's demonstration, with a real process and a real clock: limit 3, timeout 5 s, five accounts."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime

import psycopg
import pytest
from tests.integration.lifecycle.collector_helpers import running, until
from tests.integration.lifecycle.lifecycle_helpers import install

from pillarbox.store.database import Database

LIMITS = {"MAILROOM_BATCH_LIMIT": "3", "MAILROOM_BATCH_TIMEOUT": "5000"}
INSERT = """INSERT INTO lifecycle.accounts (email, login)
  VALUES ('user' || md5(random()::text) || '@fake.mail', 'user' || substr(md5(random()::text), 1, 20))"""


def insert_five(url: str) -> None:
    """Each in a transaction of its own, as psql does."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(5):
            connection.execute(INSERT)


def batches(said: str) -> list[tuple[int, str, datetime]]:
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    found = [one for one in lines if one["event"] == "processing rows"]
    return [(one["rows"], one["why"], datetime.fromisoformat(one["ts"])) for one in found]


@pytest.mark.parametrize("arguments", [(), ("--stdout",)], ids=["mails", "stdout"])
async def test_three_at_once_and_two_after_five_seconds(
    database: Database, database_url: str, arguments: tuple[str, ...]
) -> None:
    await install(database)
    async with running(database_url, *arguments, **LIMITS) as one:
        await one.says("collecting tokens")
        await asyncio.to_thread(insert_five, database_url)
        await until(database, **{"written" if arguments else "mailed": 5})
        one.signal()
        assert await one.end() == 0
        said = one.said
    (three, full, first), (two, late, second) = batches(said)
    assert (three, full) == (3, "max reached")
    assert (two, late) == (2, "timeout")
    assert (second - first).total_seconds() >= 4.9
