"""Trusted proxies: when the client address that a proxy forwards is used. Pure.

Any client can write `X-Forwarded-For`. Only the header of a proxy in `trusted_proxies` is used, and
of its list only the part that trusted proxies have written: from the right, up to the first address
that is not a trusted proxy.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# `for=192.0.2.1`, `for="[2001:db8::1]:4711"` in a Forwarded header (RFC 7239 4); values are tokens
# or quoted strings.
_FOR = re.compile(r"(?i)(?:^|;)\s*for\s*=\s*(\"[^\"]*\"|[^;\s]*)\s*(?=;|$)")
_WITH_PORT = re.compile(r"\[([^\]]*)\](?::\d+)?|([^:\[\]]+):\d+").fullmatch


def parse_network(text: str) -> Network:
    """`10.0.0.7`, `10.0.0.0/8` or `2001:db8::/32`; ValueError otherwise, or with host bits set."""
    return ipaddress.ip_network(text)


def parse_address(text: str) -> Address | None:
    """An IP address without its zone, an IPv4-mapped one as IPv4; None if it is not an address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(maxsize=1024)  # few peers connect often, and parsing an address is slow
def _is_within(peer: str, networks: tuple[Network, ...]) -> bool:
    address = parse_address(peer)
    return address is not None and any(address in network for network in networks)


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The networks in which every address is a proxy of this installation."""

    networks: tuple[Network, ...] = ()

    def trusts(self, peer: str) -> bool:
        """Whether the address belongs to a trusted proxy."""
        return bool(self.networks) and _is_within(peer, self.networks)

    def client(self, peer: str, x_forwarded_for: Sequence[str], forwarded: Sequence[str]) -> str:
        """The address of the client behind `peer`; `peer` itself if it is not a trusted proxy.

        A proxy sets one of the two headers and may pass on the other as the client wrote it. If
        both are present and name different clients, neither is used.
        """
        if not self.trusts(peer):
            return peer
        nodes = [_forwarded_for(element) for element in _split(forwarded)]
        lists = [_split(x_forwarded_for), nodes]
        clients = {self._nearest_client(peer, hops) for hops in lists if hops}
        if len(clients) != 1:
            return peer
        return clients.pop()

    def _nearest_client(self, peer: str, hops: Sequence[str]) -> str:
        """The first address from the right that is not a trusted proxy; stops at invalid text."""
        client = peer
        for hop in reversed(hops):
            address = parse_address(_without_port(hop))
            if address is None:
                break
            client = str(address)
            if not self.trusts(client):
                break
        return client


def _split(fields: Sequence[str]) -> list[str]:
    """The members of a header that is a list, over all its lines."""
    return [member.strip() for line in fields for member in line.split(",")]


def _forwarded_for(element: str) -> str:
    """The node of one element of Forwarded; empty without one."""
    found = _FOR.search(element)
    if found is None:
        return ""
    return found[1].strip('"')


def _without_port(node: str) -> str:
    found = _WITH_PORT(node)
    if found is None:
        return node
    return found[1] or found[2] or ""
