"""A real server for the API's tests, and whoever asks it: tenants with keys, administrators, strangers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

from pillarbox.api.server import serve_http
from pillarbox.app import App
from pillarbox.model.access import Scope
from pillarbox.store import access, tenants
from pillarbox.store.database import Database
from tests import PATIENCE
from tests.harness import opened

MAIL = {
    "from": "Shop <hello@shop.example>",
    "to": ["ada@mail.example"],
    "subject": "Hello",
    "text": "Hi!",
}
SECRET_KEY = "11" * 32
EVERY = (Scope.SEND, Scope.READ, Scope.MANAGE)


class Answer(NamedTuple):
    status: int
    headers: Any
    content: bytes
    json: Any


class Client:
    """Asks the API with one key, or with none."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str | None = None) -> None:
        self.session = session
        self.url = url
        self.key = key

    def using(self, key: str | None) -> Client:
        return Client(self.session, self.url, key)

    async def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        headers = dict(more.pop("headers", {}))
        if self.key is not None:
            headers.setdefault("Authorization", f"Bearer {self.key}")
        if body is not None:  # not as `json`: aiohttp warns of large ones
            headers.setdefault("Content-Type", "application/json")
            more["data"] = io.BytesIO(json.dumps(body).encode())
        url = f"{self.url}{path}" if path.startswith("/api") else f"{self.url}/api/v1{path}"
        async with self.session.request(method, url, headers=headers, **more) as answer:
            content = await answer.read()
            is_json = "json" in answer.headers.get("content-type", "")
            return Answer(
                answer.status,
                answer.headers,
                content,
                await answer.json(content_type=None) if is_json else None,
            )

    async def get(self, path: str, **more: Any) -> Answer:
        return await self("GET", path, **more)

    async def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return await self("POST", path, body, **more)

    async def send(self, **fields: Any) -> Answer:
        headers = fields.pop("headers_", {})
        return await self("POST", "/messages", MAIL | fields, headers=headers)

    async def sent_id(self, **fields: Any) -> str:
        answer = await self.send(**fields)
        assert answer.status == 202, answer.content
        return str(answer.json["id"])


class Api(NamedTuple):
    """A served installation with two tenants: `shop` and `other`."""

    app: App
    nobody: Client
    shop: Client
    other: Client
    admin: Client

    @property
    def database(self) -> Database:
        return self.app.database

    async def key(self, tenant: str | None, *scopes: Scope, **more: Any) -> Client:
        """A client with a new key."""
        return self.nobody.using(await new_key(self.database, tenant, *scopes, **more))


async def new_key(database: Database, tenant: str | None, *scopes: Scope, **more: Any) -> str:
    name = f"key{await database.fetchval('SELECT count(*) FROM pillarbox.api_keys')}"
    _, secret = await access.add_key(database, tenant, name, scopes, **more)
    return secret.reveal()


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[str]:
    """The address of a server that answers for this app."""
    stop = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_http(app, stop, url.set_result))
    done, _ = await asyncio.wait({task, url}, return_when=asyncio.FIRST_COMPLETED)
    if task in done:
        task.result()
    try:
        yield url.result().rstrip("/")
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE)


@asynccontextmanager
async def api_of(database_url: str, **settings: Any) -> AsyncIterator[Api]:
    """An installation with its server, tenants and keys; a setting that is None is not given."""
    chosen = {"http": "127.0.0.1:0", "secret_keys": SECRET_KEY} | settings
    async with (
        opened(
            database_url, **{name: value for name, value in chosen.items() if value is not None}
        ) as app,
        serving(app) as url,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        for name in ("shop", "other"):
            await tenants.add_tenant(app.database, name)
        nobody = Client(session, url)
        keys = [await new_key(app.database, name, *EVERY) for name in ("shop", "other")]
        keys.append(await new_key(app.database, None, Scope.ADMIN))
        yield Api(app, nobody, *map(nobody.using, keys))
