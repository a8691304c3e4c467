"""SASL exchanges of AUTH (RFC 4954): PLAIN (RFC 4616), and LOGIN, a common non-standard one."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Protocol

from pillarbox.accept.smtp.actions import Authenticate
from pillarbox.model.secret import Secret

_USERNAME = b"334 VXNlcm5hbWU6\r\n"  # Username:
_PASSWORD = b"334 UGFzc3dvcmQ6\r\n"  # Password:
_GO_ON = b"334 \r\n"


class SaslExchange(Protocol):
    """One login under way."""

    prompt: bytes  # asks for the first answer

    def answer(self, line: bytes) -> bytes | Authenticate:
        """Read a line of the client; returns the next prompt or the login; ValueError."""
        ...


class PlainExchange:
    """All in one line: authorization identity, username and password, with NULs between them."""

    prompt = _GO_ON

    def answer(self, line: bytes) -> Authenticate:
        on_behalf_of, username, password = _decode(line).split("\0")
        if on_behalf_of not in ("", username):
            raise ValueError("an authorization identity is not supported")
        return Authenticate(username, Secret(password))


class LoginExchange:
    """Two questions."""

    prompt = _USERNAME

    def __init__(self) -> None:
        self._username: str | None = None

    def answer(self, line: bytes) -> bytes | Authenticate:
        if self._username is None:
            self._username = _decode(line)
            return _PASSWORD
        return Authenticate(self._username, Secret(_decode(line)))


MECHANISMS: dict[bytes, type[PlainExchange] | type[LoginExchange]] = {
    b"PLAIN": PlainExchange,
    b"LOGIN": LoginExchange,
}


def _decode(line: bytes) -> str:
    """Base64 of UTF-8; `=` alone is an empty answer."""
    try:
        return b64decode(b"" if line == b"=" else line, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("not base64 of UTF-8") from None
