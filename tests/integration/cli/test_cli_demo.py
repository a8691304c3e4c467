"""`pillarbox up --demo` as a process: all three twins are sent through, and their feedback comes home."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from pillarbox.store.embedded import EmbeddedPostgres
from tests import PATIENCE
from tests.harness import eventually
from tests.integration.cli.cli_helpers import process
from tests.places import data_directory

ANY_PORTS = ("--http", "127.0.0.1:0", "--smtp", "127.0.0.1:0")
DELIVERED = """
SELECT DISTINCT p.name FROM pillarbox.deliveries d JOIN pillarbox.providers p ON p.id = d.provider_id
WHERE d.state = 'delivered'
"""
PROVIDERS = "SELECT name FROM pillarbox.providers WHERE removed_at IS NULL ORDER BY name"
DEMO = ["demo-mailgun", "demo-sendgrid", "demo-ses"]


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory with a short path; its database does not outlive the test."""
    with data_directory() as data:
        yield data


async def names(data: Path, query: str) -> list[str]:
    connection = await asyncpg.connect(EmbeddedPostgres(data / "postgres").url())
    try:
        return sorted(row["name"] for row in await connection.fetch(query))
    finally:
        await connection.close()


@pytest.mark.req("REQ-QUEUE-E007")
async def test_the_demo_delivers_through_all_twins_and_leaves_nothing_behind(data: Path) -> None:
    with process("up", "--demo", "--data", str(data), *ANY_PORTS) as up:
        printed = await asyncio.to_thread(up.wait_for, "Ctrl-C")
        assert "simulated servers on this machine" in printed
        assert await names(data, PROVIDERS) == ["capture", *DEMO]

        async def all_delivered() -> bool:
            assert up.popen.poll() is None, up.output
            return await names(data, DELIVERED) == DEMO

        await eventually(all_delivered, PATIENCE)
        up.signal(signal.SIGINT)
        assert await asyncio.to_thread(up.end) == 0
        assert '"level":"error"' not in up.output
    with process("up", "--data", str(data), *ANY_PORTS) as up:
        await asyncio.to_thread(up.wait_for, "Ctrl-C")
        assert "captures mails" in up.output
        assert await names(data, PROVIDERS) == ["capture"]
        up.signal()
        assert await asyncio.to_thread(up.end) == 0


async def test_what_a_killed_demo_left_is_replaced(data: Path) -> None:
    options = ("up", "--demo", "--data", str(data), *ANY_PORTS)
    with process(*options) as up:
        await asyncio.to_thread(up.wait_for, "Ctrl-C")
        up.signal(signal.SIGKILL)
        await asyncio.to_thread(up.end)
    with process(*options) as up:
        await asyncio.to_thread(up.wait_for, "Ctrl-C")
        assert await names(data, PROVIDERS) == ["capture", *DEMO]
        up.signal()
        assert await asyncio.to_thread(up.end) == 0


def test_the_demo_needs_a_database_of_its_own(database_url: str) -> None:
    with process("up", "--demo", "--database-url", database_url) as up:
        assert up.end() == 1
        assert "--demo needs the embedded PostgreSQL" in up.output


async def test_the_demo_does_not_mix_with_providers_that_really_send(data: Path) -> None:
    with process("up", "--data", str(data), *ANY_PORTS) as up:
        await asyncio.to_thread(up.wait_for, "Ctrl-C")
        connection = await asyncpg.connect(EmbeddedPostgres(data / "postgres").url())
        await connection.execute(
            "INSERT INTO pillarbox.providers (name, kind, settings) VALUES ('relay', 'smtp', $1)",
            '{"host": "x.example"}',
        )
        await connection.close()
        up.signal()
        assert await asyncio.to_thread(up.end) == 0
    with process("up", "--demo", "--data", str(data), *ANY_PORTS) as up:
        assert await asyncio.to_thread(up.end) == 1
        assert "really send them (relay)" in up.output
