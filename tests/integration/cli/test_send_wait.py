"""`pillarbox send --wait`: says what happens while a mail waits, and ends clearly."""

from __future__ import annotations

import asyncio
import json

import pytest

from pillarbox.cli import send_wait
from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Faults
from tests.harness import add_smtp, eventually, working
from tests.integration.cli.cli_helpers import Answer, Cli

SEND = ("send", "--from", "a@shop.example", "--to", "busy@mail.example", "--wait")


async def run(database_url: str, *arguments: str, code: int) -> Answer:
    return await asyncio.to_thread(Cli(database_url), *SEND, *arguments, code=code)


async def test_a_deferral_is_told_and_the_end_says_what_goes_on(
    database: Database, database_url: str
) -> None:
    async with SmtpServer(
        Faults(recipients={"busy@mail.example": "451 4.7.1 greylisted"})
    ) as server:
        await add_smtp(database, server)
        async with working(database_url):
            answer = await run(database_url, "--timeout", "10s", code=1)
    assert "busy@mail.example: deferred after 1 attempt (greylisted), next try in " in answer.out
    assert answer.out.count("deferred after") == 1
    assert "1 delivery not settled after 10 s; nothing is lost" in answer.err
    assert "pillarbox queue show" in answer.err


async def test_with_json_the_lines_go_to_stderr(database: Database, database_url: str) -> None:
    async with SmtpServer(
        Faults(recipients={"busy@mail.example": "451 4.7.1 greylisted"})
    ) as server:
        await add_smtp(database, server)
        async with working(database_url):
            answer = await run(database_url, "--timeout", "10s", "--json", code=1)
    assert json.loads(answer.out)["states"] == {"queued": 1}
    assert "deferred after 1 attempt (greylisted)" in answer.err


async def test_waiting_for_a_worker_or_a_provider_is_told(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_wait, "QUIET", 0.1)
    answer = await run(database_url, "--timeout", "2s", code=1)
    assert "still waiting" in answer.out
    assert "no worker is running" in answer.out
    async with working(database_url) as app:
        await eventually(lambda: app.database.fetchval("SELECT count(*) FROM pillarbox.workers"))
        answer = await run(database_url, "--timeout", "2s", code=1)
    assert "no provider is enabled" in answer.out
