"""Passwords: which may be chosen, and how they are kept and compared."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pillarbox.errors import NotPossible
from pillarbox.lifecycle import passwords
from pillarbox.lifecycle.passwords import (
    COMMON,
    MAX_CONCURRENT,
    MAX_LENGTH,
    MIN_LENGTH,
    PasswordHashing,
    check_password,
)

GOOD = "seven green chairs"


@pytest.mark.parametrize(
    "password", [GOOD, "x7$Kq!m2Wz9p", "пароль для почты", "ein Satz mit Ümläuten", "a1b2c" * 51]
)
def test_good_ones_are_taken(password: str) -> None:
    check_password(password, "ada@example.com", "Ada")


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("", "at least 12 characters"),
        ("x7$Kq!m2Wz9", "at least 12 characters"),
        (
            "e\u0301" * 10 + "ab",
            "too easy to guess",
        ),  # twelve characters, however they are composed
        ("a1b2c3" * 50, "at most 256 characters"),
        ("Password1234", "too easy to guess"),
        ("correct horse battery staple", "too easy to guess"),
        ("aaaaaaaaaaaaaaaa", "too easy to guess"),
        ("abababababab", "too easy to guess"),
        ("Ada@Example.com", "is the address or the name"),
        ("Ada Lovelace", "is the address or the name"),
        ("seven green\x00chairs", "control characters"),
        ("seven green\udc80chairs", "control characters"),
        ("seven green\nchairs", "control characters"),
    ],
)
def test_bad_ones_are_refused(password: str, why: str) -> None:
    with pytest.raises(NotPossible, match=why):
        check_password(password, "ada@example.com", "ada lovelace")


def test_the_list_holds_only_what_is_long_enough_to_get_that_far() -> None:
    assert all(MIN_LENGTH <= len(one) <= MAX_LENGTH and one == one.lower() for one in COMMON)


async def test_what_is_kept_is_argon2id_with_a_salt() -> None:
    ours = PasswordHashing()
    kept = await ours.hash(GOOD)
    assert kept.reveal().startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert GOOD not in kept.reveal()
    assert "argon2" not in repr(kept)
    assert (await ours.hash(GOOD)) != kept
    assert await ours.verify(kept.reveal(), GOOD)
    assert not await ours.verify(kept.reveal(), GOOD + ".")


async def test_where_nothing_was_kept_nothing_is_right() -> None:
    ours = PasswordHashing()
    assert not await ours.verify(None, GOOD)
    assert ours._dummy_hash is not None
    assert (
        ours._dummy_hash.split("$")[:4] == (await ours.hash(GOOD)).reveal().split("$")[:4]
    )  # takes as long
    assert not await ours.verify("not a hash", GOOD)


async def test_composed_characters_are_the_same() -> None:
    ours = PasswordHashing()
    kept = await ours.hash("caf\u00e9 au lait noir")
    assert await ours.verify(kept.reveal(), "cafe\u0301 au lait noir")


async def test_few_are_compared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = PasswordHashing()
    lock, running, most = threading.Lock(), 0, 0
    real = ours._matches

    def counted(kept: str, password: str) -> bool:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        try:
            return real(kept, password)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(ours, "_matches", counted)
    await asyncio.gather(*(ours.verify(None, GOOD) for _ in range(6)))
    assert 1 <= most <= MAX_CONCURRENT == passwords.MAX_CONCURRENT


async def test_whoever_waits_too_long_is_not_compared() -> None:
    ours = PasswordHashing()

    def no() -> None:
        raise NotPossible("too late")

    with pytest.raises(NotPossible, match="too late"):
        await ours.verify(None, GOOD, no)
    assert ours._dummy_hash is None
