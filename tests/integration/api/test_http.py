"""The HTTP door: health, readiness, metrics, the status page, captured mails; and who is let in."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from pillarbox.api.server import HostMiddleware, is_loopback, serve_http
from pillarbox.app import App
from pillarbox.errors import SettingsError
from pillarbox.store import providers
from pillarbox.store.database import Database
from tests import PATIENCE
from tests.harness import enqueue, opened, settled, working

HOSTILE = "<script>alert(1)</script>\"'&"


class Site:
    """A server to ask."""

    def __init__(self, url: str) -> None:
        self.host = urlsplit(url).hostname or ""
        self.port = urlsplit(url).port or 0

    async def get(self, path: str, **headers: str) -> tuple[int, Any, bytes]:
        return await asyncio.to_thread(self._get, path, headers)

    def _get(self, path: str, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[Site]:
    stop = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_http(app, stop, url.set_result))
    done, _ = await asyncio.wait({task, url}, return_when=asyncio.FIRST_COMPLETED)
    if task in done:
        task.result()
    try:
        yield Site(url.result())
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE)


@pytest.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    async with (
        opened(database_url, http="127.0.0.1:0", development="on") as app,
        serving(app) as site,
    ):
        yield site


async def test_health_and_readiness(site: Site) -> None:
    assert (await site.get("/healthz"))[0] == 200
    assert (await site.get("/readyz"))[0] == 200


async def test_not_ready_when_the_schema_does_not_fit(site: Site, database: Database) -> None:
    await database.execute("DELETE FROM pillarbox.migrations WHERE version = 3")
    status, _, body = await site.get("/readyz")
    assert status == 503
    assert b"pillarbox migrate" in body


async def test_not_ready_when_the_database_is_away(database_url: str, database: Database) -> None:
    async with (
        opened(database_url, http="127.0.0.1:0", development="on") as app,
        serving(app) as site,
    ):
        await app.database.close()
        assert (await site.get("/readyz"))[0] == 503
        assert (await site.get("/healthz"))[0] == 200
        status, _, body = await site.get("/")
        assert status == 503
        assert b"database is unavailable" in body


async def test_metrics(site: Site) -> None:
    status, headers, body = await site.get("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    assert b"pillarbox_" in body


async def test_the_status_page_tells_and_escapes(database_url: str, database: Database) -> None:
    await providers.add_provider(
        database, lambda: pytest.fail("no secret"), "capture", "capture", {}
    )
    async with (
        working(database_url, http="127.0.0.1:0", development="on") as app,
        serving(app) as site,
    ):
        message_id = await enqueue(database, subject=HOSTILE)
        await settled(database, message_id, "sent")
        status, headers, body = await site.get("/")
        _, _, listing = await site.get("/captured")
    assert status == 200
    page = body.decode()
    for words in (
        "sent, last hour",
        "capture",
        "&lt;script&gt;",
        'href="/captured/1"',
        "in flight",
    ):
        assert words in page, words
    assert "<script" not in page
    assert b"<script" not in listing
    assert b"&lt;script&gt;" in listing
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http://" not in page
    assert "https://" not in page


async def test_captured_mails_are_plain_text_and_exact(site: Site, database: Database) -> None:
    content = b"Subject: x\r\nContent-Type: text/html\r\n\r\n<script>alert(1)</script>\xff\r\n"
    number = await providers.capture(
        database, 1, await enqueue(database), "a@b.example", ["c@d.example"], content
    )
    status, headers, body = await site.get(f"/captured/{number}")
    assert (status, body) == (200, content)
    assert headers["content-type"].startswith("text/plain")
    assert headers["x-content-type-options"] == "nosniff"
    assert (await site.get("/captured/999999"))[0] == 404
    assert (await site.get(f"/captured/{10**30}"))[0] == 404
    assert (await site.get("/captured?before=junk"))[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LOCALHOST:8025", 200), ("127.0.0.1:1", 200), ("[::1]:8025", 200),
        ("[::1]", 200), ("evil.example", 421), ("evil.example:8025", 421), ("127.0.0.1.evil.example", 421),
        ("10.0.0.1", 421),
        ("localhost@evil.example", 421), ("", 421),
    ],
)  # fmt: skip
async def test_foreign_hosts_are_refused(site: Site, host: str, status: int) -> None:
    assert (await site.get("/healthz", Host=host))[0] == status


@pytest.mark.parametrize(
    ("listening", "host", "known"),
    [
        ("mail.internal", "mail.internal:8025", True), ("mail.internal", "other.internal", False),
        ("0.0.0.0", "10.1.2.3:8025", True), ("0.0.0.0", "evil.example", False),
        ("::", "[fe80::1]:8025", True),
        ("10.1.2.3", "10.1.2.3", True), ("10.1.2.3", "10.1.2.4", False),
    ],
)  # fmt: skip
def test_which_hosts_are_ours(listening: str, host: str, known: bool) -> None:
    assert HostMiddleware(lambda *_: pytest.fail("not called"), listening).knows(host) is known  # type: ignore[arg-type]


async def test_captured_mails_stay_on_this_machine(database_url: str) -> None:
    """Without keys for the API, only a door that nobody else can reach shows mails."""
    async with (
        opened(database_url, http="0.0.0.0:0", development="on") as app,
        serving(app) as site,
    ):
        assert (await site.get("/captured"))[0] == 403
        assert (await site.get("/captured/1"))[0] == 403
        assert (await site.get("/"))[0] == 200


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "mail.example")))


async def test_a_port_in_use_is_an_error_that_helps(database_url: str) -> None:
    async with opened(database_url, http="127.0.0.1:0") as app, serving(app) as site:
        where = f"127.0.0.1:{site.port}"
        async with opened(database_url, http=where) as other:
            with pytest.raises(
                SettingsError, match=f"{where} is in use: choose another with --http"
            ):
                await serve_http(other, asyncio.Event())


async def test_stopping_is_prompt_although_a_client_lingers(database_url: str) -> None:
    async with opened(database_url, http="127.0.0.1:0") as app:
        async with serving(app) as site:
            _, writer = await asyncio.open_connection(site.host, site.port)
        writer.close()
