"""Restricts webhook calls to the public internet, against server-side request forgery.

A customer chooses the URL, and what its name resolves to. So the URL is checked when it is given
and again at each call. Names are resolved here, every address is checked, and the connection goes
to exactly these addresses: a second look-up could answer differently. A socket is created only for
an address that passes, so literal addresses meet the same rule.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from pillarbox.errors import RefusedAddress

MAX_URL = 2048
# Lower ports belong to mail, shells and files, whose servers could be confused by HTTP.
FIRST_FREE_PORT = 1024
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str, int, socket.AddressFamily], Awaitable[list[tuple[Any, ...]]]]

# Networks that `is_global` does not exclude in every version of Python.
_NEVER = [
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "192.0.0.0/24", "192.0.2.0/24",
        "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
        "5f00::/16", "64:ff9b:1::/48",
    )
]  # fmt: skip
# The range of IPv6 that contains all public hosts.
_UNICAST = ipaddress.ip_network("2000::/3")
# IPv4 hosts as seen from an IPv6-only network (RFC 6052).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Forms that C libraries read as an address: 127.1, 0x7f000001, 2130706433, 0177.0.0.1.
_numeric = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)", re.IGNORECASE).fullmatch
_label = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE).fullmatch
_LOCAL = ("localhost", "local", "internal", "intranet", "lan", "home.arpa", "localdomain")


def is_public(address: Address) -> bool:
    """Whether an address is public; for an address that wraps another, whether that one is."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        # Mapped, compatible, 6to4, Teredo and similar addresses are outside 2000::/3 or in _NEVER.
        if address.scope_id or address not in _UNICAST or _wraps_private(address):
            return False
    in_any = any(address in network for network in _NEVER if network.version == address.version)
    return address.is_global and not address.is_multicast and not address.is_reserved and not in_any


def _wraps_private(address: ipaddress.IPv6Address) -> bool:
    """Whether it is an ISATAP address (RFC 5214) whose last 32 bits are a private IPv4 address."""
    number = int(address)
    return (number >> 32) & 0xFDFFFFFF == 0x00005EFE and not is_public(
        ipaddress.IPv4Address(number & 0xFFFFFFFF)
    )


def check_url(url: str, *, allow_private: bool) -> str:
    """The URL, if calls may go there as far as its text tells; RefusedAddress says why not."""
    if len(url) > MAX_URL:
        raise RefusedAddress(f"the URL is longer than {MAX_URL} characters")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise RefusedAddress(
            "the URL has characters that must be escaped (names of other scripts: as xn--…)"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise RefusedAddress("that is not a URL") from None
    if parts.scheme != "https" and not (allow_private and parts.scheme == "http"):
        raise RefusedAddress("the URL must begin with https://")
    if "@" in parts.netloc:
        raise RefusedAddress(
            "the URL may not have a user name or password: calls are signed instead"
        )
    if "#" in url or not host or parts.netloc.endswith(":") or port == 0:
        raise RefusedAddress("that is not a URL to call: write https://example.com/hooks")
    if "[" in parts.netloc and ":" not in host:  # what future versions of IP would look like
        raise RefusedAddress("that is not an address")
    if not allow_private:
        _check_host(host.lower().removesuffix("."), port)
    return url


def _check_host(host: str, port: int | None) -> None:
    if port is not None and port != 443 and port < FIRST_FREE_PORT:
        raise RefusedAddress(f"the port must be 443, or {FIRST_FREE_PORT} or higher")
    address = parse_address(host)
    if address is not None:
        if not is_public(address):
            raise RefusedAddress("the address is not one of the public internet")
        return
    labels = host.split(".")
    if "%" in host or ":" in host or not all(map(_label, labels)):
        raise RefusedAddress("that is not a host name")
    if _numeric(labels[-1]):  # no top-level domain is one
        raise RefusedAddress("write the address as four numbers from 0 to 255, or a name")
    is_local = any(host == name or host.endswith("." + name) for name in _LOCAL)
    if is_local or len(labels) == 1:
        raise RefusedAddress("the name is not one of the public internet")


def parse_address(host: str) -> Address | None:
    """A literal address in its standard spelling; None for everything else."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class ThreadedResolver:
    """The system's resolver in separate threads: a hanging name server delays nothing else."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "webhook-names")

    async def __call__(
        self, host: str, port: int, family: socket.AddressFamily
    ) -> list[tuple[Any, ...]]:
        ask = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class GuardedResolver(AbstractResolver):
    """Resolves names; refuses a name if any of its addresses is not public."""

    def __init__(self, allow_private: bool, look_up: Lookup) -> None:
        self._allow_private = allow_private
        self._look_up = look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._look_up(host, port, family)
        results = []
        for family_found, _, proto, _, where in found:
            self.check(where)
            results.append(
                ResolveResult(
                    hostname=host,
                    host=where[0],
                    port=where[1],
                    family=family_found,
                    proto=proto,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
            )
        if not results:
            raise OSError("the name has no address")
        return results

    def check(self, where: tuple[Any, ...]) -> None:
        """Raise RefusedAddress for a socket address that calls may not go to."""
        if self._allow_private:
            return
        address = parse_address(str(where[0]))
        scope = where[3] if len(where) > 3 else 0
        if address is None or scope or not is_public(address):
            raise RefusedAddress("the name leads to an address that is not of the public internet")

    async def close(self) -> None:
        pass


def guarded_connector(
    resolver: GuardedResolver, connections: int, tls: ssl.SSLContext | bool = True
) -> aiohttp.TCPConnector:
    """A connector to addresses that the resolver allows, without a cache of names.

    `tls` verifies certificates; True: by the system's authorities.
    """

    def make_socket(found: tuple[Any, ...]) -> socket.socket:
        family, kind, proto, _, where = found
        resolver.check(where)
        return socket.socket(family, kind, proto)

    return aiohttp.TCPConnector(
        resolver=resolver,
        use_dns_cache=False,
        limit=connections,
        socket_factory=make_socket,
        keepalive_timeout=5,
        ssl=tls,
    )
