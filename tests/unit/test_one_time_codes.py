"""One-time codes without a database: what is handed out, what is kept of it, and what leaves when."""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections import Counter
from hashlib import sha256
from uuid import UUID, uuid4

import pytest
from tests import PATIENCE

from pillarbox.errors import ForgedToken
from pillarbox.lifecycle import one_time_codes as module
from pillarbox.lifecycle.constant_time import constant_time, time_left
from pillarbox.lifecycle.one_time_codes import (
    ADMIN,
    DIGITS,
    IssuedCode,
    OneTimeCodes,
    _hash_code,
    normalize_code,
    realm_of,
)

KEY = bytes(range(32))


def codes(key: bytes = KEY) -> OneTimeCodes:
    return OneTimeCodes([key], key, lifetime=600, tries=5, pause=60)


def test_a_challenge_is_read_back() -> None:
    number = uuid4()
    token = codes().token_of(number)
    assert len(token) == 43
    assert codes().read(token) == number


def altered(token: str) -> list[str]:
    raw = base64.urlsafe_b64decode(token + "=")
    flipped = [
        bytes([*raw[:place], raw[place] ^ 1, *raw[place + 1 :]]) for place in range(len(raw))
    ]
    spelt = [base64.urlsafe_b64encode(one).decode().rstrip("=") for one in flipped]
    return [
        *spelt,
        token[:-1],
        token + "A",
        token + "=",
        token[:22],
        "",
        "é" * 43,
        "\udc80",
        " " + token,
        "*" * 43,
    ]


def test_an_altered_challenge_is_none() -> None:
    ours = codes()
    for one in altered(ours.token_of(UUID(int=7))):
        with pytest.raises(ForgedToken):
            ours.read(one)


def test_another_spelling_of_a_challenge_is_none() -> None:
    """43 characters hold 258 bits, and two of them mean nothing: they must be what we wrote."""
    token = codes().token_of(UUID(int=7))
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet.index(token[-1])
    for other in {last ^ 1, last ^ 2, last ^ 3}:
        with pytest.raises(ForgedToken):
            codes().read(token[:-1] + alphabet[other])


def test_a_challenge_of_another_installation_is_none() -> None:
    with pytest.raises(ForgedToken):
        codes(b"another key").read(codes().token_of(uuid4()))


def test_a_challenge_of_an_older_key_of_the_ring_is_read() -> None:
    number = uuid4()
    rotated = OneTimeCodes([b"newer", KEY], KEY, lifetime=600, tries=5, pause=60)
    assert rotated.read(codes().token_of(number)) == number
    assert rotated.token_of(number) == codes(b"newer").token_of(number)


def test_codes_are_six_digits_over_their_whole_range(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Counter(module._new_code() for _ in range(20_000))
    assert all(len(one) == DIGITS and one.isascii() and one.isdigit() for one in made)
    for place in range(
        DIGITS
    ):  # every digit everywhere; chance alone would leave one out once in 10^900
        assert {one[place] for one in made} == set("0123456789")
    firsts = Counter(one[0] for one in made.elements())
    assert all(1700 < count < 2300 for count in firsts.values())  # seven standard deviations
    monkeypatch.setattr(
        module.secrets, "randbelow", lambda most: most - 1 if most == 10**6 else None
    )
    assert module._new_code() == "999999"
    monkeypatch.setattr(module.secrets, "randbelow", lambda most: 42)
    assert module._new_code() == "000042"


def test_what_is_kept_of_a_code_depends_on_its_challenge_and_the_key() -> None:
    one, other = UUID(int=1), UUID(int=2)
    kept = _hash_code(KEY, one, "123456")
    assert kept == hmac.digest(KEY, b"code\0" + one.bytes + b"\x00123456", "sha256")
    assert len({kept, _hash_code(KEY, other, "123456"), _hash_code(b"other", one, "123456")}) == 3
    assert sha256(b"123456").digest() != kept


def test_addresses_are_kept_hashed_and_without_regard_to_case() -> None:
    ours = codes()
    assert ours._hash_address(ADMIN, "Ada@Mail.example") == ours._hash_address(
        ADMIN, "ada@mail.example"
    )
    assert ours._hash_address(ADMIN, "ada@mail.example") != ours._hash_address(
        "accounts:x", "ada@mail.example"
    )


def test_no_schema_is_the_administrators_realm() -> None:
    assert realm_of("admin") != ADMIN


def test_a_code_does_not_show_itself() -> None:
    made = IssuedCode(UUID(int=1), "123456", 600)
    assert "123456" not in repr(made)
    assert "123456" not in str(made)


@pytest.mark.parametrize("typed", ["123456", "123 456", "123-456", "1 2 3 4 5 6"])
def test_codes_are_taken_as_people_type_them(typed: str) -> None:
    assert normalize_code(typed) == "123456"


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [(0.0, 0.0), (0.01, 0.24), (0.24, 0.01), (0.26, 0.24), (0.6, 0.15), (1.0, 0.0)],
)
def test_answers_leave_at_multiples_of_the_time(taken: float, wanted: float) -> None:
    assert time_left(taken, 0.25) == pytest.approx(wanted)
    assert time_left(taken, 0) == 0


@pytest.mark.parametrize("work", [0.0, 0.03, 0.07])
async def test_what_is_done_evenly_ends_at_the_time(work: float) -> None:
    clock = asyncio.get_running_loop().time
    begun = clock()
    async with constant_time(0.1):
        await asyncio.sleep(work)
    assert clock() - begun >= 0.099


async def test_errors_leave_at_the_time_too() -> None:
    clock = asyncio.get_running_loop().time
    begun = clock()
    with pytest.raises(ValueError, match="no"):
        async with constant_time(0.1):
            raise ValueError("no")
    assert clock() - begun >= 0.099


async def test_whoever_is_cancelled_does_not_wait() -> None:
    async def work() -> None:
        async with constant_time(10 * PATIENCE):
            await asyncio.sleep(10 * PATIENCE)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
