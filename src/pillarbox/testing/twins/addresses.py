"""Addresses as the services look at them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from email.utils import getaddresses, parseaddr

_ADDRESS = re.compile(r"[^@\s<>,;]+@[^@\s<>,;]+")


def is_address(text: object) -> bool:
    return isinstance(text, str) and _ADDRESS.fullmatch(text) is not None


def bare(mailbox: str) -> str:
    """The address of `Name <address>`."""
    if _ADDRESS.fullmatch(mailbox):
        return mailbox
    return parseaddr(mailbox)[1]


def bare_all(mailboxes: Iterable[str]) -> list[str]:
    """The addresses in lists of mailboxes, separated by commas."""
    found: list[str] = []
    for one in mailboxes:
        found += (
            [one] if _ADDRESS.fullmatch(one) else [address for _, address in getaddresses([one])]
        )
    return found


def domain_of(address: str) -> str:
    return address.rpartition("@")[2].lower()


def may_send(address: str, verified: Collection[str] | None) -> bool:
    """Whether an address, or its domain, was verified; without a list, all were."""
    return verified is None or address.lower() in verified or domain_of(address) in verified
