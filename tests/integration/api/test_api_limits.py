"""Hostile and unlucky clients: too large, too slow, too many, cut off, and what is not there."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from pillarbox.api.protocol import MAX_HEAD_BYTES
from tests import PATIENCE
from tests.harness import eventually
from tests.integration.api.api_helpers import MAIL, Api, api_of

JSON = {"Content-Type": "application/json"}


class Wire:
    """A connection on which a test says exactly what it wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hear(self, seconds: float = PATIENCE) -> tuple[int, dict[str, str], bytes]:
        """The next answer."""
        async with asyncio.timeout(seconds):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status, *lines = head.split("\r\n")
            headers = {
                name.lower(): value
                for name, _, value in (line.partition(": ") for line in lines if line)
            }
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(status.split()[1]), headers, body

    async def ended(self, seconds: float = PATIENCE) -> bool:
        async with asyncio.timeout(seconds):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def wired(api: Api) -> AsyncIterator[Wire]:
    place = urlsplit(api.nobody.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


def head(api: Api, *more: str, path: str = "/api/v1/messages", method: str = "POST") -> bytes:
    lines = (
        f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {api.shop.key}",
        "Content-Type: application/json", *more, "", "",
    )  # fmt: skip
    return "\r\n".join(lines).encode()


def problem(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    status, headers, body = answer
    assert headers["content-type"] == "application/problem+json"
    return status, json.loads(body)["type"].removeprefix("/problems/")


async def stored(api: Api) -> int:
    return int(await api.database.fetchval("SELECT count(*) FROM pillarbox.messages"))


# --- too large


async def test_a_body_that_says_that_it_is_too_large(database_url: str) -> None:
    async with api_of(database_url, http_max_body="10KiB") as api, wired(api) as wire:
        await wire.say(head(api, "Content-Length: 10241"))  # and not a byte of it
        assert problem(await wire.hear()) == (413, "too-large")


@pytest.mark.parametrize("length", ["99999999999999999999999999", "10241"])
async def test_lengths_that_nobody_can_mean(database_url: str, length: str) -> None:
    async with api_of(database_url, http_max_body="10KiB") as api, wired(api) as wire:
        await wire.say(head(api, f"Content-Length: {length}"))
        assert (await wire.hear())[0] in (400, 413)


async def test_a_body_in_chunks_is_counted_while_it_is_read(database_url: str) -> None:
    async with api_of(database_url, http_max_body="10KiB") as api, wired(api) as wire:
        await wire.say(head(api, "Transfer-Encoding: chunked"))
        for _ in range(11):
            await wire.say(b"400\r\n" + b" " * 1024 + b"\r\n")
        assert problem(await wire.hear()) == (413, "too-large")
        assert await stored(api) == 0


async def test_who_goes_on_sending_still_gets_the_answer(database_url: str) -> None:
    """The rest of a refused body is read for a moment and thrown away, so that the answer is not lost to a reset."""
    async with api_of(database_url, http_max_body="10KiB") as api:
        answer = await api.shop(
            "POST", "/messages", data=io.BytesIO(b" " * (8 * 2**20)), headers=JSON
        )
        assert answer.status == 413


async def test_the_largest_mail_fits(database_url: str) -> None:
    async with api_of(database_url) as api:
        file = base64.b64encode(b"x" * (18 * 2**20)).decode()
        answer = await api.shop.send(attachments=[{"filename": "x", "content": file}])
        assert answer.status == 202
        more = await api.shop.send(attachments=[{"filename": "x", "content": file * 2}])
        assert (more.status, await stored(api)) == (413, 1)


async def test_small_bodies_have_a_small_limit(database_url: str) -> None:
    async with api_of(database_url) as api:
        answer = await api.shop.post("/keys", {"name": "x" * 100_000, "scopes": ["read"]})
        assert (answer.status, answer.json["type"]) == (413, "/problems/too-large")


async def test_all_bodies_together_have_a_limit(database_url: str) -> None:
    async with api_of(database_url, http_max_body="1MiB", http_bytes_in_flight="1MiB") as api:
        async with wired(api) as first:
            await first.say(head(api, "Content-Length: 700000") + b" " * 600_000)

            async def held() -> bool:
                return (
                    await api.shop("POST", "/messages", data=b" " * 600_000, headers=JSON)
                ).status == 503

            await eventually(held)
        await eventually(lambda: is_accepted(api))  # who has gone gives back what it held


async def is_accepted(api: Api) -> bool:
    return (await api.shop.send(text="x" * 600_000)).status == 202


async def test_an_endless_head(database_url: str) -> None:
    async with api_of(database_url) as api:
        for start in (
            b"GET /" + b"a" * MAX_HEAD_BYTES,
            head(api)[:-2] + b"X: " + b"a" * MAX_HEAD_BYTES,
        ):
            async with wired(api) as wire:
                await wire.say(start + b"a")
                assert problem(await wire.hear()) == (431, "head-too-large")
                assert await wire.ended()


# --- too slow, too many, cut off


async def test_a_request_that_never_ends_to_arrive(database_url: str) -> None:
    async with api_of(database_url, http_request_timeout="2s") as api:
        for start in (
            b"GET / HT",
            head(api, "Content-Length: 100") + b"{",
            head(api, "Transfer-Encoding: chunked"),
        ):
            async with wired(api) as wire:
                await wire.say(start)
                assert problem(await wire.hear()) == (408, "request-timeout")
                assert await wire.ended()
        async with wired(api) as silent:
            assert await silent.ended()
        assert (await api.shop.send()).status == 202


async def test_dribbled_bytes_do_not_help(database_url: str) -> None:
    async with api_of(database_url, http_request_timeout="2s") as api, wired(api) as wire:
        await wire.say(head(api, "Content-Length: 1000"))
        dribble = asyncio.create_task(dribbled(wire))
        assert problem(await wire.hear()) == (408, "request-timeout")
        assert not dribble.done()
        dribble.cancel()


async def dribbled(wire: Wire) -> None:
    for _ in range(1000):
        await wire.say(b" ")
        await asyncio.sleep(0.05)  # the pace is what is tested


async def test_idle_connections_are_closed(database_url: str) -> None:
    async with api_of(database_url, http_keep_alive="2s") as api, wired(api) as wire:
        await wire.say(head(api, method="GET"))
        assert (await wire.hear())[0] == 200
        assert await wire.ended()


async def test_requests_at_once_have_a_limit(database_url: str) -> None:
    async with api_of(database_url, http_concurrency=1) as api, wired(api) as slow:
        await slow.say(head(api, "Content-Length: 100"))

        async def busy() -> bool:
            answer = await api.shop.get("/messages")
            return answer.status == 503 and answer.headers["retry-after"] == "1"

        await eventually(busy)
        await slow.say(b" " * 100)
        assert problem(await slow.hear()) == (400, "malformed")
        assert (await api.shop.get("/messages")).status == 200


async def test_who_hangs_up_in_the_middle_leaves_nothing(database_url: str) -> None:
    async with api_of(database_url) as api:
        body = json.dumps(MAIL).encode()
        for cut in (0, len(body) // 2, len(body) - 1):
            async with wired(api) as wire:
                await wire.say(head(api, f"Content-Length: {len(body)}") + body[:cut])
                sock = wire.writer.get_extra_info("socket")
                sock.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )  # RST, not FIN
        assert (await api.shop.send()).status == 202
        assert await stored(api) == 1


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_an_early_answer_is_not_lost_with_the_rest_of_the_body(
    database_url: str, connection: str
) -> None:
    """As a proxy asks that reads until the end: a reset would take the answer from it."""
    size = 4 * 1024 * 1024
    async with api_of(database_url) as api, wired(api) as wire:
        await wire.say(
            head(api, f"Content-Length: {size}", f"Connection: {connection}", path="/nonesuch")
        )
        sending = asyncio.create_task(wire.say(b" " * size))
        assert problem(await wire.hear()) == (404, "not-found")
        await sending
        if connection == "close":
            assert await wire.reader.read() == b""
        assert (await api.shop.get("/messages")).status == 200


async def test_a_head_that_is_too_large_is_answered_without_a_reset(database_url: str) -> None:
    async with api_of(database_url) as api, wired(api) as wire:
        sending = asyncio.create_task(
            wire.say(b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 4 * 1024 * 1024)
        )
        assert problem(await wire.hear()) == (431, "head-too-large")
        await sending
        assert await wire.reader.read() == b""


async def test_several_requests_in_one_packet(database_url: str) -> None:
    async with api_of(database_url) as api, wired(api) as wire:
        body = json.dumps(MAIL).encode()
        await wire.say((head(api, f"Content-Length: {len(body)}") + body) * 3)
        assert [(await wire.hear())[0] for _ in range(3)] == [202] * 3


@pytest.mark.parametrize(
    "said",
    [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
     b"POST /api/v1/messages HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
     b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"],
)  # fmt: skip
async def test_what_is_not_http(database_url: str, said: bytes) -> None:
    async with api_of(database_url) as api, wired(api) as wire:
        await wire.say(said)
        assert (await wire.hear())[0] in (400, 404, 405)
        assert (await api.shop.get("/messages")).status == 200


# --- what does not exist, and what breaks


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/nonesuch", 404, "not-found"), ("GET", "/messages/", 404, "not-found"),
        ("PUT", "/messages", 405, "method-not-allowed"),
        ("DELETE", "/messages/x", 405, "method-not-allowed"), ("GET", "/../../etc/passwd", 404, "not-found"),
        ("GET", "/messages/%2e%2e/raw", 404, "not-found"), ("HEAD", "/nonesuch", 404, None),
        ("OPTIONS", "/nonesuch", 404, "not-found"),
    ],
)  # fmt: skip
async def test_paths_and_methods_that_are_not(
    database_url: str, method: str, path: str, status: int, kind: str | None
) -> None:
    async with api_of(database_url) as api, wired(api) as wire:
        await wire.say(head(api, "Content-Length: 0", path=f"/api/v1{path}", method=method))
        if kind is None:
            assert (await wire.reader.readuntil(b"\r\n")).split()[1] == b"404"
        else:
            assert problem(await wire.hear()) == (status, kind)


async def test_a_fault_of_ours_is_a_problem_that_tells_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("secret words of ada@mail.example")

    monkeypatch.setattr("pillarbox.api.listing.page", broken)
    async with api_of(database_url) as api:
        answer = await api.shop.get("/messages")
        assert (answer.status, answer.json["type"]) == (500, "/problems/internal")
        assert b"secret words" not in answer.content
    logged = capsys.readouterr().err
    assert "a request failed" in logged
    assert "ada@mail.example" not in logged


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/api/v1/messages", "GET, OPTIONS, POST"),
        ("/api/v1/messages/batch", "OPTIONS, POST"),
        ("/api/v1/messages/0198c5a2-7d7e-7000-8000-000000000000", "GET, OPTIONS"),
        ("/api/v1/admin/tenants/shop", "GET, OPTIONS, PATCH"),
        ("/healthz", "GET, HEAD"),
    ],
)
async def test_the_methods_of_a_path(database_url: str, path: str, methods: str) -> None:
    """All of them, though several routes have the path."""
    async with api_of(database_url) as api:
        for method, status in (("OPTIONS", 204), ("PUT", 405)):
            async with api.nobody.session.request(method, api.nobody.url + path) as answer:
                allowed = ", ".join(sorted(answer.headers["Allow"].split(", ")))
                assert (answer.status, allowed) == (status, methods), method
