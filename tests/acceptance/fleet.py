"""An installation that sends through twins of all providers and a relay, and hears what becomes of its mails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import aiohttp
from tests import PATIENCE
from tests.harness import add_smtp, attempts, deliveries, eventually, working
from tests.integration.api.api_helpers import Client, new_key, serving

from pillarbox.app import App, serve_smtp
from pillarbox.model.access import Scope
from pillarbox.model.secret import Secret
from pillarbox.store import providers
from pillarbox.store.database import Database
from pillarbox.store.vault import EncryptionKeyRing, generate_key
from pillarbox.testing import SmtpServer
from pillarbox.testing.twins import MailgunTwin, SendGridTwin, SesTwin, Twin

SEALING = generate_key()
SETTINGS: dict[str, Any] = {
    "secret_keys": SEALING,
    "http": "127.0.0.1:0",
    "smtp": "127.0.0.1:0",
    "development": "on",
    "worker_poll_interval": "100ms",
    "webhook_allow_private": "true",
}
# In any order but the default one: it must not be the order of adding that decides.
TWINS: dict[str, type[Twin]] = {"mailgun": MailgunTwin, "ses": SesTwin, "sendgrid": SendGridTwin}


@dataclass
class Fleet:
    """What runs. `ids` are the providers', by kind; providers are named by their kinds."""

    database: Database
    relay: SmtpServer
    twins: dict[str, Twin] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    app: App = field(init=False)
    api: Client = field(init=False)  # with a key of the tenant `default`

    def __getitem__(self, kind: str) -> Twin:
        return self.twins[kind]

    async def ended(self, message_id: UUID, *wanted: str, made: int | None = None) -> list[Any]:
        """The deliveries, once they are in these states, after so many attempts."""

        async def there() -> list[Any] | None:
            rows = await deliveries(self.database, message_id)
            if made is not None and any(row["attempts"] != made for row in rows):
                return None
            return rows if [row["state"] for row in rows] == list(wanted) else None

        return list(await eventually(there))

    async def due(self) -> None:
        """Let the waits pass."""
        await self.database.execute(
            "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state IN ('queued', 'pending')"
        )

    async def through(self, message_id: UUID) -> list[tuple[str | None, str, str | None]]:
        """Provider, verdict and reason of every attempt, oldest first."""
        names = {number: kind for kind, number in self.ids.items()}
        rows = sorted(
            await attempts(self.database, message_id), key=lambda row: (row["claim"], row["n"])
        )
        return [(names.get(row["provider_id"]), row["verdict"], row["reason"]) for row in rows]

    async def failed_over(self, message_id: UUID, *wanted: tuple[str, str, str]) -> None:
        """Wait until it is told who failed over to whom, and why: that is written after the outcome."""

        async def told() -> bool:
            rows = await self.database.fetch(
                "SELECT data->>'from', data->>'to', data->>'reason' FROM pillarbox.events"
                " WHERE message_id = $1 AND kind = 'failed_over' ORDER BY id",
                message_id,
            )
            return [tuple(row) for row in rows] == list(wanted)

        await eventually(told)

    async def dead_letters(self) -> list[tuple[str, list[str]]]:
        """The tenant's dead letters as the API tells them: message, and the reasons of its deliveries."""
        listed = (await self.api.get("/dlq")).json["messages"]
        return [
            (one["id"], [delivery["reason"] for delivery in one["deliveries"]]) for one in listed
        ]


async def add_twin(database: Database, twin: Twin, **settings: Any) -> int:
    """A provider for a twin, named by its kind."""
    secrets = [Secret(one) if one else None for one in (twin.secret, twin.webhook_secret)]
    keys = EncryptionKeyRing([Secret(SEALING)])
    return await providers.add_provider(
        database,
        lambda: keys,
        twin.kind,
        twin.kind,
        twin.provider_settings() | settings,
        secrets[0],
        None,
        secrets[1],
    )


@asynccontextmanager
async def fleet(
    database: Database, database_url: str, *kinds: str, **settings: Any
) -> AsyncIterator[Fleet]:
    """A worker, the HTTP door, and providers of these kinds."""
    async with AsyncExitStack() as stack:
        one = Fleet(database, await stack.enter_async_context(SmtpServer()))
        if "smtp" in kinds:
            one.ids["smtp"] = await add_smtp(database, one.relay, "smtp")
        for kind in (kind for kind in TWINS if kind in kinds):
            one.twins[kind] = await stack.enter_async_context(TWINS[kind]())
            one.ids[kind] = await add_twin(database, one.twins[kind])
        one.app = await stack.enter_async_context(working(database_url, **SETTINGS | settings))
        url = await stack.enter_async_context(serving(one.app))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        )
        one.api = Client(
            session, url, await new_key(database, "default", Scope.SEND, Scope.READ, Scope.MANAGE)
        )
        for kind, twin in one.twins.items():
            twin.webhook_url = f"{url}/webhooks/{kind}/{one.ids[kind]}"
        yield one


@asynccontextmanager
async def smtp_door(app: App) -> AsyncIterator[int]:
    """The port where the app takes mail by SMTP."""
    stop = asyncio.Event()
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve_smtp(
            app, stop, lambda places: ready.set_result(int(places["smtp"].rpartition(":")[2]))
        )
    )
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield ready.result()
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE)
