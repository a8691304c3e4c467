"""Calls to customers leave for the public internet only, however an address is spelled, wrapped or resolved."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests import PATIENCE

from pillarbox.errors import RefusedAddress
from pillarbox.track.address_guard import (
    GuardedResolver,
    ThreadedResolver,
    check_url,
    guarded_connector,
    is_public,
    parse_address,
)

ON_BOTH_LOOPS = True
PUBLIC = [
    "8.8.8.8", "93.184.216.34", "1.1.1.1", "172.15.255.255", "172.32.0.1", "192.167.255.255", "100.63.255.255",
    "100.128.0.1", "223.255.255.254", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "64:ff9b::8.8.8.8",
]  # fmt: skip
PRIVATE = [
    # this host, loopback, private, shared, link-local (the clouds' metadata), documentation,
    # multicast, reserved
    "0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.254", "10.0.0.1", "10.255.255.255", "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1", "100.64.0.1", "100.127.255.255", "169.254.169.254", "169.254.0.1", "192.0.0.1", "192.0.0.8",
    "192.0.0.192",
    "192.0.2.1", "198.51.100.7", "203.0.113.9", "198.18.0.1", "198.19.255.255", "224.0.0.1", "239.255.255.255",
    "233.252.0.1", "240.0.0.1", "255.255.255.255", "192.88.99.1", "168.63.129.16.1",
    # the same of IPv6
    "::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "fdff::1", "ff02::1", "ff0e::1",
    "100::1",
    "2001:db8::1", "3fff::1", "5f00::1", "4000::1", "8000::1",
    # what wraps an IPv4 address: mapped, compatible, 6to4, Teredo, NAT64, ISATAP
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:7f00:1", "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "::127.0.0.1", "::10.0.0.1", "2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:0:7f00:1::", "2001::1", "2001:10::1", "2001:20::1", "64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::8.8.8.8", "64:ff9b:1::7f00:1", "2a00:1450::5efe:10.0.0.1", "2a00:1450::200:5efe:127.0.0.1",
]  # fmt: skip
ODD = [
    # numbers that C reads as addresses: decimal, octal, hexadecimal, short
    "2130706433", "0x7f000001", "0x7F000001", "017700000001", "0177.0.0.1", "0x7f.0.0.1", "0x7f.1", "127.1",
    "127.0.1", "0",
    "10.1", "192.168.257", "3232235777", "0xa9fea9fe", "0251.0376.0251.0376", "127.0.0.1.", "127.0.0.01",
    "127.000.000.001",
    "0300.0250.0.1", "256.256.256.256", "1.2.3.4.5", "4294967296", "0x", "1.0x",
    "８.８.８.８", "①②⑦.⓪.⓪.①", "127。0。0。1",
    # names that lead home
    "localhost", "LOCALHOST", "localhost.", "app.localhost", "printer.local", "db.internal",
    "metadata.google.internal",
    "intranet", "postgres", "kubernetes", "router.lan", "box.home.arpa", "a.localdomain",
    # names that are none
    "a..example", ".example", "-a.example", "a-.example", "a b.example", "a%2eexample", "exa\tmple.com",
    "exa\nmple.com",
    "a" * 64 + ".example", "*", "*.example.com", "a,b.example", "example.com%00", "[::1", "::1]", "[v1.fe]", "[]", "",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))
    host = f"[{address}]" if ":" in address else address
    assert check_url(f"https://{host}/hook", allow_private=False)


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public(address: str) -> None:
    parsed = parse_address(address)
    assert parsed is None or not is_public(parsed)
    host = f"[{address}]" if ":" in address else address
    for url in (f"https://{host}/hook", f"https://{host}:8443/hook", f"HTTPS://{host.upper()}/"):
        with pytest.raises(RefusedAddress):
            check_url(url, allow_private=False)


@pytest.mark.parametrize("host", ODD)
def test_odd_spellings(host: str) -> None:
    for url in (f"https://{host}/hook", f"https://{host}:443/"):
        with pytest.raises(RefusedAddress):
            check_url(url, allow_private=False)


@pytest.mark.parametrize(
    "url",
    [
        "", "hook", "//example.com/hook", "http://example.com/", "ftp://example.com/", "file:///etc/passwd",
        "gopher://example.com/",
        "https:/example.com", "https:example.com", "https://", "https:///hook", "https://user@example.com/",
        "https://user:word@example.com/", "https://example.com@127.0.0.1/", "https://@example.com/",
        "https://example.com:/",
        "https://example.com#@127.0.0.1/", "https://example.com/#part", "https://127.0.0.1\\@example.com/",
        "https://example.com\\.internal/", "https://example.com /", " https://example.com/",
        "https://example.com/\r\nX: y",
        "https://example.com:0/", "https://example.com:22/", "https://example.com:25/", "https://example.com:80/",
        "https://example.com:445/", "https://example.com:99999/", "https://example.com:x/", "https://example.com:-1/",
        "javascript:alert(1)", "https://ex\u0430mple.com/", "https://example.com/" + "x" * 2048,
        "https://example.com/\x00", "unix:///run/x.sock",
    ],
)  # fmt: skip
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(RefusedAddress):
        check_url(url, allow_private=False)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com", "https://example.com/", "https://example.com/a?b=c&d=%20", "https://EXAMPLE.com:443/x",
        "https://hooks.shop.example:8443/a", "https://xn--bcher-kva.example/", "https://example.com./hook",
        "https://a_b.example/x",
    ],
)  # fmt: skip
def test_urls_that_are_fine(url: str) -> None:
    assert check_url(url, allow_private=False) == url


def test_in_development_it_can_be_switched_off() -> None:
    for url in (
        "http://127.0.0.1:8000/hook",
        "http://localhost/",
        "https://10.0.0.1:25/",
        "http://[::1]:1/",
    ):
        assert check_url(url, allow_private=True) == url
    for url in ("ftp://localhost/", "http://user:word@localhost/", "http:///x"):
        with pytest.raises(RefusedAddress):
            check_url(url, allow_private=True)


class Rebinding:
    """A name server that says something else each time, as one who wants to rebind a name would."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int, family: Any) -> list[tuple[Any, ...]]:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return [_found(one, port) for one in answer]


def _found(address: str, port: int) -> tuple[Any, ...]:
    if ":" in address:
        return socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)


@pytest.mark.parametrize("address", [one for one in PRIVATE if parse_address(one)])
async def test_a_name_that_leads_to_such_an_address_is_refused(address: str) -> None:
    resolver = GuardedResolver(False, Rebinding([address]))
    with pytest.raises(RefusedAddress):
        await resolver.resolve("hooks.example", 443)


async def test_every_address_of_a_name_is_looked_at() -> None:
    for answers in (["8.8.8.8", "127.0.0.1"], ["2606:4700:4700::1111", "8.8.8.8", "::1"]):
        with pytest.raises(RefusedAddress):
            await GuardedResolver(False, Rebinding(answers)).resolve("hooks.example", 443)
    found = await GuardedResolver(False, Rebinding(["8.8.8.8", "2606:4700:4700::1111"])).resolve(
        "hooks.example", 443
    )
    assert [one["host"] for one in found] == ["8.8.8.8", "2606:4700:4700::1111"]


async def test_a_scoped_address_is_refused() -> None:
    async def scoped(host: str, port: int, family: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2606:4700:4700::1111", port, 0, 3))]

    with pytest.raises(RefusedAddress):
        await GuardedResolver(False, scoped).resolve("hooks.example", 443)


class Loopback(GuardedResolver):
    """Lets one loopback address pass, as if it were public, so that a test can answer there."""

    def check(self, where: tuple[Any, ...]) -> None:
        if where[0] != "127.0.0.1":
            super().check(where)


@pytest.fixture
async def inside() -> Any:
    """A server that nobody outside should reach, and how often it was asked."""
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.host)
        return web.Response(text="secret")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1], asked
    await runner.cleanup()


async def test_the_address_that_was_checked_is_the_one_connected_to(inside: Any) -> None:
    """The name server answers differently the second time; nobody asks it a second time."""
    port, asked = inside
    names = Rebinding(["127.0.0.1"], ["127.0.0.2"])
    connector = guarded_connector(Loopback(False, names), 1)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"http://hooks.example:{port}/") as answer,
    ):
        assert answer.status == 200
    assert (names.asked, len(asked)) == (1, 1)


async def test_a_name_that_was_fine_at_first_is_looked_up_again_for_the_next_connection(
    inside: Any,
) -> None:
    port, asked = inside
    names = Rebinding(["127.0.0.1"], ["127.0.0.2"])
    for number in range(2):
        async with aiohttp.ClientSession(
            connector=guarded_connector(Loopback(False, names), 1)
        ) as session:
            if number:
                with pytest.raises(RefusedAddress):
                    await session.get(f"http://hooks.example:{port}/")
            else:
                async with session.get(f"http://hooks.example:{port}/") as answer:
                    assert answer.status == 200
    assert (names.asked, len(asked)) == (2, 1)


HOME = ["127.0.0.1", "[::1]", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost", "0"]


@pytest.mark.parametrize("host", HOME)
async def test_no_socket_is_made_for_a_private_address(inside: Any, host: str) -> None:
    """Even if a URL came past the first look: literal addresses are not resolved, but meet the same rule."""
    port, asked = inside
    names = ThreadedResolver(1)
    async with aiohttp.ClientSession(
        connector=guarded_connector(GuardedResolver(False, names), 1)
    ) as session:
        with pytest.raises((RefusedAddress, aiohttp.ClientError, OSError)):
            async with asyncio.timeout(PATIENCE), session.get(f"http://{host}:{port}/"):
                pass
    names.close()
    assert asked == []
