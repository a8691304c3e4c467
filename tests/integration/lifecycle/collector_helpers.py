"""Accounts whose tokens are collected: in this process, or by processes of their own."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pillarbox.app import App, build_collector, collect, serve
from pillarbox.lifecycle.collector import Collector
from pillarbox.store.database import Database
from tests import PATIENCE
from tests.harness import eventually, opened
from tests.integration.cli.cli_helpers import Process, process
from tests.integration.lifecycle.lifecycle_helpers import KEY

SENDER = "Hub <no-reply@hub.example>"
SETTINGS = {
    "lifecycle_keys": KEY,
    "secret_keys": KEY,
    "lifecycle_sender": SENDER,
    "lifecycle_url": "https://hub.example",
}


async def accounts(database: Database, count: int, prefix: str = "u", **columns: Any) -> list[int]:
    """New accounts in one transaction, with one more value for some columns; returns their ids."""
    names = "".join(f", {name}" for name in columns)
    values = "".join(f", ${place}" for place in range(3, len(columns) + 3))
    rows = await database.fetch(
        f"INSERT INTO lifecycle.accounts (email, login{names})"
        f" SELECT $2 || n || '@mail.example', $2 || n{values} FROM generate_series(1, $1::int) n RETURNING id",
        count,
        prefix,
        *columns.values(),
    )
    return [row["id"] for row in rows]


async def issue(database: Database, account: int, action: str, data: str | None = None) -> int:
    return int(
        await database.fetchval(
            "SELECT lifecycle.issue_token($1, $2, $3::jsonb)", account, action, data
        )
    )


async def activate(database: Database, account: int) -> None:
    """Let an account be active, with nothing left to be collected."""
    await database.execute("UPDATE lifecycle.accounts SET status = 'active' WHERE id = $1", account)
    await database.execute("DELETE FROM lifecycle.tokens WHERE account = $1", account)


async def outcomes(database: Database) -> dict[str, int]:
    """How many tokens came to what; those that wait count, too."""
    rows = await database.fetch("SELECT outcome, count(*) FROM lifecycle.token_log GROUP BY 1")
    return {row["outcome"]: row["count"] for row in rows}


async def mailed(database: Database) -> Counter[str]:
    """How many mails each address was written."""
    rows = await database.fetch("SELECT recipient, count(*) FROM pillarbox.deliveries GROUP BY 1")
    return Counter({row["recipient"]: row["count"] for row in rows})


async def until(database: Database, seconds: float = PATIENCE, **wanted: int) -> None:
    """Wait until so many tokens came to these outcomes, and no token to any other."""

    async def there() -> bool:
        return await outcomes(database) == wanted

    try:
        await eventually(there, seconds)
    except AssertionError:
        raise AssertionError(f"wanted {wanted}, got {await outcomes(database)}") from None


@asynccontextmanager
async def collector(database_url: str, **settings: Any) -> AsyncIterator[tuple[App, Collector]]:
    """One that does only what it is told."""
    async with opened(database_url, **SETTINGS | settings) as app:
        yield app, await build_collector(app)


@asynccontextmanager
async def collecting(database_url: str, **settings: Any) -> AsyncIterator[App]:
    """One that runs in this process, stopped and drained at the end."""
    async with opened(database_url, **SETTINGS | settings) as app:
        stop = asyncio.Event()
        task = asyncio.create_task(serve(app, stop, collect))
        try:
            yield app
        finally:
            stop.set()
            await asyncio.wait_for(task, PATIENCE)


class Running:
    """A collector process, for tests that do something else meanwhile."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def said(self) -> str:
        return self._process.output

    @property
    def has_ended(self) -> bool:
        return self._process.popen.poll() is not None

    async def says(self, text: str, times: int = 1, seconds: float = PATIENCE) -> None:
        """Wait until it has said this so many times."""
        await asyncio.to_thread(self._process.wait_for, text, seconds, times)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self._process.signal(number)

    async def end(self, seconds: float = PATIENCE) -> int:
        return await asyncio.to_thread(self._process.end, seconds)


@asynccontextmanager
async def running(
    database_url: str, *arguments: str, stdout: int | None = None, **environment: str
) -> AsyncIterator[Running]:
    """`pillarbox collect` as a process of its own, killed at the end if it still runs."""
    usual = {
        "MAILROOM_DATABASE_URL": database_url,
        "MAILROOM_SECRET_KEY": KEY,
        "PILLARBOX_SECRET_KEYS": KEY,
        "PILLARBOX_LIFECYCLE_SENDER": SENDER,
        "PILLARBOX_LIFECYCLE_URL": "https://hub.example",
        "PILLARBOX_LOG_FORMAT": "json",
    }
    with process("collect", *arguments, env=usual | environment, stdout=stdout) as one:
        try:
            yield Running(one)
        finally:
            print(one.output[-4000:])  # shown when the test fails
