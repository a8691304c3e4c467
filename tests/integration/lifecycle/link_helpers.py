"""An installation with accounts, its server, and people who open links."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

from pillarbox.app import App
from pillarbox.lifecycle import signing
from pillarbox.lifecycle.signing import SignedPath
from pillarbox.store.database import Database
from tests.harness import opened
from tests.integration.api.api_helpers import serving
from tests.integration.lifecycle.lifecycle_helpers import KEY, install, new_account

OLD_KEY = "cafebabe" * 8
PATHS = ("/activate", "/recover", "/verify-email", "/invite")


class Answer(NamedTuple):
    status: int
    headers: Any
    text: str
    json: Any

    @property
    def reason(self) -> str:
        """Why a link does not count, as programs are told."""
        assert self.status == 422, self.text
        assert self.json["type"] == "/problems/link"
        assert self.headers["content-type"] == "application/problem+json"
        return str(self.json["reason"])


class Link(NamedTuple):
    """A link as it stands in a mail, and what the mail says beside it."""

    path: str
    token: str
    expires: str
    code: str
    account: int
    id: int

    @property
    def address(self) -> str:
        return f"{self.path}?token={self.token}&expires={self.expires}"

    def fields(self, **more: str) -> dict[str, str]:
        return {"token": self.token, "expires": self.expires} | more


class Town:
    """A served installation, and the application that changes its tables."""

    def __init__(self, app: App, url: str, session: aiohttp.ClientSession, schema: str) -> None:
        self.app = app
        self.url = url
        self.schema = schema
        self._session = session

    @property
    def database(self) -> Database:
        return self.app.database

    async def account(self, login: str = "ada", **columns: Any) -> int:
        """A new account."""
        given = {"email": f"{login[:20].encode().hex()}@mail.example", "login": login} | columns
        return await new_account(self.database, self.schema, **given)

    async def link(
        self, account: int, action: str = "activation", *, key: str = KEY, issue: bool = True
    ) -> Link:
        """The link of a new token; of an activation, of the one that came with the account."""
        if issue and action != "activation":
            await self.database.execute(
                f"SELECT {self.schema}.issue_token($1, $2)", account, action
            )
        query = (
            f"SELECT t.*, c.path, c.with_code FROM {self.schema}.tokens t"
            f" JOIN {self.schema}.actions c ON c.name = t.action::text"
            " WHERE account = $1 AND action::text = $2 ORDER BY id DESC LIMIT 1"
        )
        row = await self.database.fetchrow(query, account, action)
        assert row is not None
        signer = bytes.fromhex(key)
        token = signing.sign(
            SignedPath(row["path"], row["with_code"]), row["secret"], row["code"], signer
        )
        expires = signing.sign_expiry(token, row["expires_at"], signer)
        return Link(row["path"], token, expires, row["code"], account, row["id"])

    async def ask(self, method: str, path: str, **more: Any) -> Answer:
        async with self._session.request(method, f"{self.url}{path}", **more) as answer:
            is_json = "json" in answer.headers.get("content-type", "")
            shown = await answer.json(content_type=None) if is_json else None
            return Answer(answer.status, answer.headers, await answer.text(), shown)

    async def open(self, link: Link | str, **headers: str) -> Answer:
        """Open a link as a browser does."""
        accepted = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"} | headers
        return await self.ask(
            "GET", link if isinstance(link, str) else link.address, headers=accepted
        )

    async def submit(
        self, link: Link, *, path: str | None = None, code: str | None = None, **headers: str
    ) -> Answer:
        """Press the button of the page as a browser does."""
        fields = link.fields() | ({} if code is None else {"code": code})
        sent = {
            "Accept": "text/html,*/*",
            "Origin": "null",
            "Sec-Fetch-Site": "same-origin",
        } | headers
        return await self.ask("POST", path or link.path, data=fields, headers=sent)

    async def use(self, link: Link, *, path: str | None = None, **fields: Any) -> Answer:
        """Use a link as a program does."""
        given = {
            name: value for name, value in (link.fields() | fields).items() if value is not None
        }
        return await self.ask("POST", path or link.path, json=given)

    async def status(self, account: int) -> str:
        return str(
            await self.database.fetchval(
                f"SELECT status::text FROM {self.schema}.accounts WHERE id = $1", account
            )
        )

    async def consumed(self, link: Link) -> bool:
        query = f"SELECT consumed_at IS NOT NULL FROM {self.schema}.tokens WHERE id = $1"
        return bool(await self.database.fetchval(query, link.id))

    async def expire(self, link: Link) -> None:
        """Let the token have run out in the database, which is behind the link's own expiry."""
        await self.database.execute(
            f"UPDATE {self.schema}.tokens SET expires_at = 1 WHERE id = $1", link.id
        )

    async def snapshot(self) -> list[Any]:
        """Everything that using a link could change."""
        return [
            await self.database.fetch(f"SELECT * FROM {self.schema}.{table} ORDER BY 1")
            for table in ("accounts", "tokens", "collected", "waiting")
        ]


@asynccontextmanager
async def town_of(
    database_url: str, *, installed: bool = True, **settings: Any
) -> AsyncIterator[Town]:
    """A served installation with a lifecycle schema."""
    chosen = {"http": "127.0.0.1:0", "lifecycle_keys": KEY} | settings
    given = {name: value for name, value in chosen.items() if value is not None}
    schema = given.get("lifecycle_schema", "lifecycle")
    async with (
        opened(database_url, **given) as app,
        serving(app) as url,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        if installed:
            await install(app.database, schema)
        yield Town(app, url, session, schema)


async def recovering(town: Town, login: str = "ada") -> Link:
    return await town.link(await town.account(login, status="active"), "password_recovery")
