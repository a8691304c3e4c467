"""Passwords: checked for strength when they are set, stored as Argon2id hashes."""

from __future__ import annotations

import asyncio
import secrets
import unicodedata
from collections.abc import Callable

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from pillarbox.errors import NotPossible
from pillarbox.model.secret import Secret

# NIST SP 800-63B requires at least eight characters; administrators need more.
MIN_LENGTH = 12
# Longer than the passwords of any password manager; bounds the cost of a hash.
MAX_LENGTH = 256
# Hashes at the same time: each takes 64 MiB and a tenth of a second of all cores, at argon2-cffi's
# defaults (RFC 9106, second recommended option).
MAX_CONCURRENT = 2
# Fewer different characters are a pattern, not a password.
MIN_DISTINCT = 5
# Common passwords of twelve characters and more.
COMMON = frozenset({
    "123456789012", "1234567890123", "12345678901234", "123456789abc", "1q2w3e4r5t6y",
    "qwertyuiop12", "qwertyuiop123", "qwertzuiop12", "qwerty123456", "qwertz123456",
    "asdfghjkl123", "password1234", "password12345", "password123456", "passwordpassword",
    "password!2345", "administrator", "administrator1", "adminadmin12", "adminadminadmin",
    "admin1234567", "changeme1234", "changemechangeme", "letmein12345", "letmeinletmein",
    "welcome12345", "welcomewelcome", "iloveyou1234", "iloveyouiloveyou", "pillarbox1234",
    "pillarboxpillarbox", "correcthorsebatterystaple", "trustno1trustno1", "sunshine1234",
    "football1234", "abcdefghijkl", "abcdefgh1234", "1234abcd1234", "p@ssw0rd1234",
    "p@ssword1234", "passw0rd1234", "correct horse battery staple",
})  # fmt: skip


def check_password(password: str, *personal: str) -> None:
    """Raise NotPossible for a weak password; `personal` values, such as a name, are refused."""
    normalized = _normalize(password)
    lower = normalized.lower()
    if not normalized.isprintable():
        raise NotPossible("a password must be text without control characters")
    if len(normalized) < MIN_LENGTH:
        raise NotPossible(f"a password must have at least {MIN_LENGTH} characters")
    if len(normalized) > MAX_LENGTH:
        raise NotPossible(f"a password must have at most {MAX_LENGTH} characters")
    if lower in COMMON or len(set(normalized)) < MIN_DISTINCT:
        raise NotPossible("this password is too easy to guess: choose another one")
    if lower in {value.lower() for value in personal}:
        raise NotPossible("the password is the address or the name: choose another one")


class PasswordHashing:
    """Hashes and verifies passwords in threads, few at once. One instance per process."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._dummy_hash: str | None = None

    async def hash(self, password: str) -> Secret:
        """The hash to store for a password."""
        async with self._slots:
            password_hash = await asyncio.to_thread(self._hasher.hash, _normalize(password))
        return Secret(password_hash)

    async def verify(
        self,
        stored_hash: str | None,
        password: str,
        before: Callable[[], None] = lambda: None,
    ) -> bool:
        """Whether the password has this hash; takes the same time without a hash.

        `before` is called when a slot is free, and may raise: a throttled client whose requests
        wait here causes no hashing.
        """
        async with self._slots:
            before()
            # Made also when it is not needed: the time of the first call reveals nothing.
            if self._dummy_hash is None:
                random = secrets.token_hex()
                self._dummy_hash = await asyncio.to_thread(self._hasher.hash, random)
            expected = stored_hash or self._dummy_hash
            matches = await asyncio.to_thread(self._matches, expected, _normalize(password))
        return matches and stored_hash is not None

    def _matches(self, expected: str, password: str) -> bool:
        try:
            return self._hasher.verify(expected, password)
        except (VerificationError, InvalidHashError):
            return False


def _normalize(password: str) -> str:
    """NFC: the same characters, independent of how a keyboard composes them."""
    return unicodedata.normalize("NFC", password)
