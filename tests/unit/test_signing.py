"""Signed links: the original collector's vectors, and everything that must not count."""

from __future__ import annotations

import string
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from pillarbox.errors import ExpiredToken, ForgedToken, NotFound, SecretError
from pillarbox.lifecycle.signing import (
    PATHS,
    SignedPath,
    SigningKeyRing,
    check_expiry,
    link,
    sign,
    sign_expiry,
    verify,
)
from pillarbox.lifecycle.signing_keys import has_keys, key_ring
from pillarbox.settings import Settings, load

KEY = bytes.fromhex("deadbeef" * 8)
OTHER = bytes.fromhex("cafebabe" * 8)
SECRET = bytes(range(32))
RECOVERY_SECRET = bytes([*range(31), 32])
ACTIVATION = (
    "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh_6nSHtQPxHcOGxB4n-lTJ33ia2qnzaGyWZbJr5ajT1Lw"
)
RECOVERY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHiBMGNDRPmFBDs3BV0xOyXRWEYpEcQ2cXltILUdkxpYQXg"
ALPHABET = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"


def test_the_originals_vectors() -> None:
    assert sign("activation", SECRET, None, KEY) == ACTIVATION
    assert sign("password_recovery", RECOVERY_SECRET, "00042", KEY) == RECOVERY
    assert verify(ACTIVATION, "activation", None, [KEY]) == SECRET
    assert verify(RECOVERY, "password_recovery", "00042", [KEY]) == RECOVERY_SECRET


def test_a_code_counts_only_where_it_is_part_of_what_is_signed() -> None:
    assert sign("activation", SECRET, "78092", KEY) == ACTIVATION
    assert verify(ACTIVATION, "activation", "78092", [KEY]) == SECRET


@pytest.mark.parametrize("action", PATHS)
def test_every_action_is_signed_apart(action: str) -> None:
    token = sign(action, SECRET, "00042", KEY)
    assert verify(token, action, "00042", [KEY]) == SECRET
    for other in set(PATHS) - {action}:
        with pytest.raises(ForgedToken, match="another action"):
            verify(token, other, "00042", [KEY])


def test_an_action_of_ones_own() -> None:
    mine = SignedPath("/close-account", with_code=True)
    token = sign(mine, SECRET, "12345", KEY)
    assert verify(token, mine, "12345", [KEY]) == SECRET
    with pytest.raises(ForgedToken):
        verify(token, SignedPath("/close-account"), "12345", [KEY])
    with pytest.raises(NotFound, match="welcome"):
        sign("welcome", SECRET, None, KEY)


@pytest.mark.parametrize("code", [None, "", "0004", "000420", "00043", "0004\n", "०००४२"])
def test_another_code_is_forged(code: str | None) -> None:
    with pytest.raises(ForgedToken, match="code"):
        verify(RECOVERY, "password_recovery", code, [KEY])


@pytest.mark.parametrize("place", range(0, 86, 5))
def test_one_changed_character_is_forged(place: int) -> None:
    other = "A" if ACTIVATION[place] != "A" else "B"
    with pytest.raises(ForgedToken):
        verify(ACTIVATION[:place] + other + ACTIVATION[place + 1 :], "activation", None, [KEY])


@pytest.mark.parametrize("length", range(86))
def test_a_truncated_token_says_so(length: int) -> None:
    with pytest.raises(ForgedToken, match="cut off"):
        verify(ACTIVATION[:length], "activation", None, [KEY])


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (ACTIVATION + "==", "too long"),
        (ACTIVATION + "A", "too long"),
        (ACTIVATION[:-1] + "=", "base64url"),
        (ACTIVATION.replace("_", "/"), "base64url"),
        (ACTIVATION[:-1] + " ", "base64url"),
        (ACTIVATION[:-1] + "\n", "base64url"),
        (ACTIVATION[:-1] + "é", "base64url"),
    ],
)
def test_what_is_not_our_base64url_is_forged(token: str, why: str) -> None:
    with pytest.raises(ForgedToken, match=why):
        verify(token, "activation", None, [KEY])


def test_only_one_spelling_of_a_token_counts() -> None:
    """The last of 86 characters has four bits that stand for nothing: fifteen more strings decode to the same."""
    last = ALPHABET.index(ACTIVATION[-1])
    same = {ALPHABET[last // 16 * 16 + bits] for bits in range(16)}
    assert len(same) == 16
    for one in same - {ACTIVATION[-1]}:
        with pytest.raises(ForgedToken, match="last character"):
            verify(ACTIVATION[:-1] + one, "activation", None, [KEY])


def test_no_error_tells_the_secret() -> None:
    with pytest.raises(ForgedToken) as caught:
        verify(ACTIVATION, "invite", None, [KEY])
    assert ACTIVATION[:43] not in str(caught.value)
    assert SECRET.hex() not in str(caught.value)


def test_a_rotated_key_verifies_until_it_retires() -> None:
    now = [1000.0]
    ring = SigningKeyRing([OTHER, (KEY, 2000.0)], clock=lambda: now[0])
    assert (
        sign("activation", SECRET, None, ring)
        == sign("activation", SECRET, None, OTHER)
        != ACTIVATION
    )
    assert verify(ACTIVATION, "activation", None, ring) == SECRET
    expiry = sign_expiry(ACTIVATION, 5000, KEY)
    assert check_expiry(expiry, ACTIVATION, ring, 1000) == 5000
    now[0] = 2000.0
    with pytest.raises(ForgedToken):
        verify(ACTIVATION, "activation", None, ring)
    with pytest.raises(ForgedToken):
        check_expiry(expiry, ACTIVATION, ring, 1000)


def test_a_key_that_retired_signs_no_more() -> None:
    now = [1000.0]
    ring = SigningKeyRing([(KEY, 1500.0), OTHER], clock=lambda: now[0])
    assert sign("activation", SECRET, None, ring) == ACTIVATION
    now[0] = 1500.0
    assert verify(sign("activation", SECRET, None, ring), "activation", None, [OTHER]) == SECRET
    with pytest.raises(SecretError, match="have expired"):
        SigningKeyRing([(KEY, 1.0)]).newest()


def test_a_ring_hides_its_keys() -> None:
    assert KEY.hex() not in repr(SigningKeyRing([KEY]))
    assert repr(KEY) not in repr(SigningKeyRing([KEY]))


@pytest.mark.parametrize("key", [b"", KEY[:31], KEY + b"x", KEY.hex()])
def test_a_key_has_32_bytes(key: bytes) -> None:
    with pytest.raises(SecretError, match="32 bytes"):
        sign("activation", SECRET, None, key)
    with pytest.raises(SecretError, match="32 bytes"):
        verify(ACTIVATION, "activation", None, [key])


def test_a_secret_has_32_bytes_and_recovery_a_code() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        sign("activation", SECRET[:31], None, KEY)
    with pytest.raises(ValueError, match="code"):
        sign("password_recovery", SECRET, None, KEY)


def test_without_a_key_nothing_counts() -> None:
    with pytest.raises(ForgedToken):
        verify(ACTIVATION, "activation", None, [])
    with pytest.raises(SecretError):
        SigningKeyRing([])


def test_an_expired_link_is_told_from_a_forged_one() -> None:
    field = sign_expiry(ACTIVATION, 1_700_000_000, KEY)
    assert len(field) == 32
    assert check_expiry(field, ACTIVATION, [OTHER, KEY], 1_699_999_999) == 1_700_000_000
    with pytest.raises(ExpiredToken):
        check_expiry(field, ACTIVATION, [KEY], 1_700_000_000)
    later = sign_expiry(ACTIVATION, 1_900_000_000, OTHER)
    for forged, token in (
        (later, ACTIVATION),
        (field, RECOVERY),
        (field[:-1], ACTIVATION),
        (field + "A", ACTIVATION),
    ):
        with pytest.raises(ForgedToken):
            check_expiry(forged, token, [KEY], 1_700_000_001)


def test_an_expiry_cannot_be_moved() -> None:
    field = sign_expiry(ACTIVATION, 1_700_000_000, KEY)
    for place in range(11):  # the characters that hold the time
        for other in "AQgw_":
            if other != field[place]:
                with pytest.raises(ForgedToken):
                    check_expiry(field[:place] + other + field[place + 1 :], ACTIVATION, [KEY], 0)


def test_a_link() -> None:
    assert link("https://hub.example/mail/", "/activate", "abc", "def") == (
        "https://hub.example/mail/activate?token=abc&expires=def"
    )


def test_the_ring_of_the_settings(tmp_path: Path) -> None:
    both = load(
        {
            "PILLARBOX_LIFECYCLE_KEYS": f"{OTHER.hex()},{KEY.hex()}@2000-01-01",
            "PILLARBOX_DATABASE_URL": "postgresql://x",
        }
    )
    assert key_ring(both).current() == [OTHER]
    coming = datetime.now(UTC).date().year + 1
    both = load({"PILLARBOX_LIFECYCLE_KEYS": f"{OTHER.hex()},{KEY.hex()}@{date(coming, 1, 1)}"})
    assert key_ring(both).current() == [OTHER, KEY]
    original = load({"MAILROOM_SECRET_KEY": KEY.hex()})
    assert sign("activation", SECRET, None, key_ring(original)) == ACTIVATION


def test_development_makes_a_key_and_production_does_not(tmp_path: Path) -> None:
    development = Settings(data_dir=tmp_path)
    assert has_keys(development)
    assert key_ring(development).newest() == key_ring(development).newest()
    production = Settings(database_url="postgresql://mail@db/mail", data_dir=tmp_path)
    assert not has_keys(production)
    with pytest.raises(SecretError, match="PILLARBOX_LIFECYCLE_KEYS"):
        key_ring(production)
