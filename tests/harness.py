"""What several tests need: a worker in this process, mails to give it, and waiting for conditions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg

from pillarbox.app import App, open_app, serve, tend, work
from pillarbox.model.secret import Secret
from pillarbox.settings import load
from pillarbox.store import providers
from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from pillarbox.testing.twins import Twin
from tests import PATIENCE

SENDER = "Sender <sender@shop.example>"


async def add_smtp(
    database: Database, server: SmtpServer, name: str = "relay", **settings: Any
) -> int:
    """Add a provider of kind smtp that points at a scripted server."""
    given = {"host": server.host, "port": server.port, "tls": "none"} | settings
    return await providers.add_provider(database, no_keys, name, "smtp", given)


async def add_twin(app: App, twin: Twin, name: str) -> int:
    """Add a provider for a twin."""
    webhook_secret = Secret(twin.webhook_secret) if twin.webhook_secret else None
    return await providers.add_provider(
        app.database,
        app.keys,
        name,
        twin.kind,
        twin.provider_settings(),
        Secret(twin.secret),
        None,
        webhook_secret,
    )


def no_keys() -> Any:
    raise AssertionError("these providers have no secret")


async def enqueue(database: Database | asyncpg.Connection, *to: str, **arguments: Any) -> UUID:
    """Accept one mail by the SQL function."""
    given = {
        "sender": SENDER,
        "to": list(to) or ["reader@mail.example"],
        "subject": "Hello",
        "text": "Hi!",
    } | arguments
    names = ", ".join(f'"{name}" => ${place}' for place, name in enumerate(given, 1))
    return await database.fetchval(f"SELECT pillarbox.enqueue({names})", *given.values())


@asynccontextmanager
async def opened(database_url: str, **settings: Any) -> AsyncIterator[App]:
    """An app on a test's database, impatient by default; in development without keys, as in `up`."""
    given = {"database_url": database_url, "log_level": "error", "log_format": "json"} | settings
    loaded = load({}, overrides={name: str(value) for name, value in given.items()})
    async with open_app(loaded, keyless=loaded.is_development, owns_process=True) as app:
        yield app


@asynccontextmanager
async def working(database_url: str, **settings: Any) -> AsyncIterator[App]:
    """A worker in this process, stopped and drained at the end."""
    async with opened(database_url, **settings) as app:
        stop = asyncio.Event()
        task = asyncio.create_task(serve(app, stop, work, tend))
        try:
            yield app
        finally:
            stop.set()
            await asyncio.wait_for(task, PATIENCE)


async def eventually(condition: Callable[[], Awaitable[Any]], seconds: float = PATIENCE) -> Any:
    """Wait until the condition holds; returns what it returned."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (value := await condition()):
        assert asyncio.get_running_loop().time() < deadline, "the condition never came true"
        await asyncio.sleep(0.02)
    return value


async def deliveries(database: Database, message_id: UUID) -> list[Any]:
    """The deliveries of a message, in the order of their recipients."""
    return await database.fetch(
        "SELECT * FROM pillarbox.deliveries WHERE message_id = $1 ORDER BY n", message_id
    )


async def states(database: Database, message_id: UUID) -> list[str]:
    return [row["state"] for row in await deliveries(database, message_id)]


async def settled(
    database: Database, message_id: UUID, *wanted: str, seconds: float = PATIENCE
) -> list[Any]:
    """Wait until the deliveries have these states; returns them."""

    async def there() -> list[Any] | None:
        rows = await deliveries(database, message_id)
        return rows if [row["state"] for row in rows] == list(wanted) else None

    return await eventually(there, seconds)


async def attempts(database: Database, message_id: UUID) -> list[Any]:
    return await database.fetch(
        "SELECT * FROM pillarbox.attempts WHERE message_id = $1 ORDER BY n, claim, step", message_id
    )
