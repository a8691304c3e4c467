"""Passwords of people: judged when they are chosen, kept as Argon2id."""

from __future__ import annotations

import asyncio
import secrets
import unicodedata
from collections.abc import Callable
from functools import partial

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from pillarbox.errors import NotPossible
from pillarbox.model.secret import Secret

# NIST SP 800-63B asks for eight at least; administrators can be asked for more.
SHORTEST = 12
# More than any manager of passwords makes; nobody hashes megabytes here.
LONGEST = 256
# Each takes 64 MiB and a tenth of a second of all cores, at argon2-cffi's defaults (RFC 9106, the
# second choice).
AT_ONCE = 2
# Fewer different characters are a pattern, not a password.
FEWEST_KINDS = 5
# What people choose who are asked for twelve characters.
WORST = frozenset({
    "123456789012", "1234567890123", "12345678901234", "123456789abc", "1q2w3e4r5t6y", "qwertyuiop12",
    "qwertyuiop123", "qwertzuiop12", "qwerty123456", "qwertz123456", "asdfghjkl123", "password1234",
    "password12345", "password123456", "passwordpassword", "password!2345", "administrator", "administrator1",
    "adminadmin12", "adminadminadmin", "admin1234567", "changeme1234", "changemechangeme", "letmein12345",
    "letmeinletmein", "welcome12345", "welcomewelcome", "iloveyou1234", "iloveyouiloveyou", "pillarbox1234",
    "pillarboxpillarbox", "correcthorsebatterystaple", "trustno1trustno1", "sunshine1234", "football1234",
    "abcdefghijkl", "abcdefgh1234", "1234abcd1234", "p@ssw0rd1234", "p@ssword1234", "passw0rd1234",
    "correct horse battery staple",
})  # fmt: skip


def check(password: str, *others: str) -> None:
    """Raise NotPossible unless this may be a password; `others` are what it must not be (an address, a name)."""
    plain = _plain(password)
    if not plain.isprintable():
        raise NotPossible("a password has no control characters, and is text")
    if len(plain) < SHORTEST:
        raise NotPossible(f"a password has {SHORTEST} characters at least")
    if len(plain) > LONGEST:
        raise NotPossible(f"a password has {LONGEST} characters at most")
    if plain.lower() in WORST or len(set(plain)) < FEWEST_KINDS:
        raise NotPossible("this password is among the first that anybody would try: choose another")
    if plain.lower() in {other.lower() for other in others}:
        raise NotPossible("the password is the address or the name: choose another")


class PasswordHashing:
    """Makes and compares hashes in threads, few at once. One for a process."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._nobodys: str | None = None

    async def hash(self, password: str) -> Secret:
        """What is kept of a password."""
        async with self._room:
            return Secret(await asyncio.to_thread(self._hasher.hash, _plain(password)))

    async def is_right(
        self, kept: str | None, password: str, in_turn: Callable[[], None] = lambda: None
    ) -> bool:
        """Whether the password is the one that was kept; takes as long where none was.

        `in_turn` is called when its turn has come, and may raise: so that many that wait are not all compared.
        """
        async with self._room:
            in_turn()
            if (
                self._nobodys is None
            ):  # for everybody alike: who comes first must not be told by it, either
                self._nobodys = await asyncio.to_thread(self._hasher.hash, secrets.token_hex())
            fits = await asyncio.to_thread(
                partial(self._fits, kept or self._nobodys, _plain(password))
            )
        return fits and kept is not None

    def _fits(self, kept: str, password: str) -> bool:
        try:
            return self._hasher.verify(kept, password)
        except (VerificationError, InvalidHashError):
            return False


def _plain(password: str) -> str:
    """The same characters however a keyboard composes them."""
    return unicodedata.normalize("NFC", password)
