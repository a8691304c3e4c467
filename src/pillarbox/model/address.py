"""Parsing of mailboxes: `Doe, John <j@x.example>` is a display name and an address."""

from __future__ import annotations

import re

import idna

# RFC 5321 4.5.3.1: 64 bytes of local part, "@", 255 of domain. Nothing longer can be delivered.
MAX_ADDRESS_BYTES = 320

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ADDRESS = re.compile(
    r"""(?:[^\s<>()\[\]\\,;:"@]+|"(?:[^"\\]|\\.)*")   # dot-atom or quoted local part
        @(?:[^\s<>()\[\]\\,;:"@]+|\[[^\s\[\]\\]+\])   # domain or address literal""",
    re.VERBOSE,
)


def split_mailbox(mailbox: str) -> tuple[str | None, str]:
    """Split `Name <a@b>`, `"Name" <a@b>`, `<a@b>` or `a@b` into name and address, or ValueError."""
    if _CONTROL.search(mailbox):
        raise ValueError("a mailbox holds no control characters")
    mailbox = mailbox.strip()
    if not mailbox.endswith(">"):
        return None, _checked(mailbox)
    name, bracket, address = mailbox[:-1].rpartition("<")
    if not bracket:
        raise ValueError(f"not a mailbox: {mailbox!r}")
    return _unquoted(name.strip()) or None, _checked(address)


def address_of(mailbox: str) -> str:
    """The bare address of a mailbox."""
    return split_mailbox(mailbox)[1]


def ascii_domain(domain: str) -> str:
    """The domain in A-labels (`xn--…`), or unchanged if it has no such form."""
    if domain.isascii():
        return domain
    try:
        # Not the standard library's codec, which is IDNA 2003: it turns faß.de into fass.de, a
        # different domain.
        return idna.encode(domain, uts46=True).decode("ascii")
    except idna.IDNAError:
        return domain


def ascii_address(address: str) -> str:
    """The address with its domain in A-labels: ASCII unless its local part is not."""
    local, _, domain = address.rpartition("@")
    return f"{local}@{ascii_domain(domain)}"


def _checked(address: str) -> str:
    if not _ADDRESS.fullmatch(address) or len(address.encode()) > MAX_ADDRESS_BYTES:
        raise ValueError(f"not an address: {address!r}")
    return address


def _unquoted(name: str) -> str:
    quoted = _QUOTED.fullmatch(name)
    if quoted is None:
        return name
    return _ESCAPE.sub(r"\1", quoted[1])
