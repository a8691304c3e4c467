"""Connections: one client, or many that hold theirs, keep neither others nor probes out. Real sockets."""

from __future__ import annotations

import asyncio
import re
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import pytest

from pillarbox.api.connections import RESERVED
from tests.harness import eventually
from tests.integration.api.api_helpers import api_of
from tests.integration.api.test_api_limits import head, problem, wired
from tests.integration.cli.cli_helpers import Cli, process

PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
# What a client may do with a connection that it only wants to hold.
HOLDING = {"silent": b"", "half a request": PROBE[:-2], "kept alive": PROBE}
OTHER = "127.0.0.2"


@asynccontextmanager
async def held(
    port: int, count: int, says: bytes, *sources: str
) -> AsyncIterator[list[socket.socket]]:
    """Connections from these addresses, one after the other; whoever says a whole request has heard the answer."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(count)]
        for number, one in enumerate(opened):
            one.setblocking(False)
            one.bind((sources[number % len(sources)], 0))
            await loop.sock_connect(one, ("127.0.0.1", port))
            if says:
                await loop.sock_sendall(one, says)
            if says == PROBE:
                assert await is_answered(one)
        yield opened


async def is_answered(one: socket.socket) -> bool:
    """Whether the next bytes are a good answer; false if the connection was closed."""
    async with asyncio.timeout(60):
        return (await asyncio.get_running_loop().sock_recv(one, 1000)).startswith(b"HTTP/1.1 200")


async def ready(port: int, source: str) -> bool:
    """Whether the probe says so, sooner or later: on a busy machine the database may take its time."""
    return bool(await eventually(lambda: _is_ready(port, source), 60))


async def _is_ready(port: int, source: str) -> bool:
    return await ask(port, "/readyz", source) == 200


async def ask(port: int, path: str, source: str, key: str | None = None) -> int:
    connector = aiohttp.TCPConnector(local_addr=(source, 0), force_close=True)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers) as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        await answer.read()
        return answer.status


@asynccontextmanager
async def serving(database_url: str) -> AsyncIterator[tuple[int, str]]:
    """The port of `pillarbox serve` with default settings, and a key."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2000, hard), hard))
    key = await asyncio.to_thread(Cli(database_url), "key", "add", "--name", "k", "--scope", "read")
    options = ("--roles", "api", "--database-url", database_url, "--http", "127.0.0.1:0")
    with process("serve", *options) as running:
        printed = await asyncio.to_thread(running.wait_for, "Ctrl-C")
        found = re.search(r"http://127\.0\.0\.1:(\d+)", printed)
        assert found
        yield int(found[1]), key.out.strip()


@pytest.mark.parametrize("holding", HOLDING)
async def test_one_client_with_900_connections_keeps_nobody_out(
    database_url: str, holding: str
) -> None:
    async with serving(database_url) as (port, key), held(port, 900, HOLDING[holding], "127.0.0.1"):
        for source in (OTHER, "127.0.0.1"):
            assert await ask(port, "/healthz", source) == 200
            assert await ready(port, source)
            assert await ask(port, "/api/v1/messages", source, key) == 200


async def test_many_clients_that_hold_all_connections_keep_nobody_out(database_url: str) -> None:
    """Each below the limit of an address: who has been idle longest makes room."""
    clients = [f"127.0.1.{n}" for n in range(1, 11)]
    async with serving(database_url) as (port, key), held(port, 1000, PROBE, *clients):
        assert await ask(port, "/healthz", OTHER) == 200
        assert await ask(port, "/api/v1/messages", OTHER, key) == 200


async def test_the_longest_idle_is_closed_first(database_url: str) -> None:
    async with (
        api_of(database_url, http_connections=3) as api,
        wired(api) as first,
        wired(api) as second,
        wired(api) as third,
    ):
        for wire in (first, second, third):
            await wire.say(head(api, method="GET"))
            assert (await wire.hear())[0] == 200
        await first.say(head(api, method="GET"))  # which makes the second the longest idle
        assert (await first.hear())[0] == 200
        async with wired(api) as fourth:
            await fourth.say(head(api, method="GET"))
            assert (await fourth.hear())[0] == 200
            assert await second.ended()
            for wire in (first, third):
                await wire.say(head(api, method="GET"))
                assert (await wire.hear())[0] == 200


async def test_requests_under_way_are_never_closed_and_probes_are_answered_beside_them(
    database_url: str,
) -> None:
    async with (
        api_of(database_url, http_connections=2) as api,
        wired(api) as first,
        wired(api) as second,
    ):
        port = urlsplit(api.nobody.url).port
        assert port
        for wire in (first, second):
            await wire.say(head(api, "Content-Length: 2"))

        async def is_full() -> bool:
            async with wired(api) as another:
                await another.say(head(api, method="GET"))
                return (
                    problem(await another.hear()) == (503, "overloaded") and await another.ended()
                )

        await eventually(is_full, 60)
        async with held(port, 3 * RESERVED, b"", "127.0.0.1"):
            assert await ask(port, "/healthz", "127.0.0.1") == 200
            assert await ready(port, "127.0.0.1")
        for wire in (first, second):
            await wire.say(b"{}")
            assert problem(await wire.hear()) == (422, "invalid-mail")
        shed = "pillarbox_http_connections_shed_total"
        assert api.app.metrics.registry.get_sample_value(shed, {"how": "refused"}) >= 3 * RESERVED  # type: ignore[operator]


async def test_a_limit_of_an_address_is_not_for_trusted_proxies(database_url: str) -> None:
    settings = {"http_connections_per_peer": 2, "trusted_proxies": "127.0.0.3"}
    async with api_of(database_url, **settings) as api:
        port = urlsplit(api.nobody.url).port
        assert port
        loop = asyncio.get_running_loop()
        async with (
            held(port, 10, PROBE, "127.0.0.3") as proxy,
            held(port, 10, PROBE, OTHER) as others,
        ):
            for one in (*proxy, *others[8:]):
                await loop.sock_sendall(one, PROBE)
                assert await is_answered(one)
            for one in others[:8]:
                assert not await is_answered(one)  # closed for those that came later
