"""The vault: what is sealed opens only with its key, in its place, unchanged."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.errors import SecretError
from pillarbox.model.secret import Secret
from pillarbox.store.vault import EncryptionKeyRing, generate_key, load_or_create_key_file

OLD, NEW = Secret("11" * 32), Secret("22" * 32)
ring = EncryptionKeyRing([NEW, OLD])


@given(st.text(), st.text())
def test_what_is_sealed_opens(plaintext: str, context: str) -> None:
    sealed = ring.seal(plaintext, context)
    assert ring.open(sealed, context).reveal() == plaintext
    assert ring.is_current(sealed)


def test_a_sealed_secret_shows_nothing_and_never_repeats() -> None:
    one, two = ring.seal("hunter2", "provider:7"), ring.seal("hunter2", "provider:7")
    assert one != two
    assert b"hunter2" not in one


def test_half_a_character_cannot_be_sealed() -> None:
    with pytest.raises(SecretError, match="provider:7 is not text"):
        ring.seal("hunter2\ud800", "provider:7")


def test_another_place_cannot_open_it() -> None:
    with pytest.raises(SecretError, match="provider:8 was tampered with or belongs elsewhere"):
        ring.open(ring.seal("hunter2", "provider:7"), "provider:8")


@given(st.data())
def test_any_changed_bit_is_noticed(data: st.DataObject) -> None:
    sealed = bytearray(ring.seal("hunter2", "provider:7"))
    position = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[position // 8] ^= 1 << position % 8
    with pytest.raises(SecretError):
        ring.open(bytes(sealed), "provider:7")


@given(st.binary(max_size=80))
def test_foreign_bytes_are_refused(sealed: bytes) -> None:
    with pytest.raises(SecretError):
        ring.open(sealed, "provider:7")


def test_rotation_opens_the_old_and_seals_with_the_new() -> None:
    sealed = EncryptionKeyRing([OLD]).seal("hunter2", "provider:7")
    assert ring.open(sealed, "provider:7") == Secret("hunter2")
    assert not ring.is_current(sealed)
    assert ring.is_current(ring.seal("hunter2", "provider:7"))


def test_a_missing_key_is_named_by_its_id() -> None:
    sealed = EncryptionKeyRing([OLD]).seal("hunter2", "provider:7")
    alone = EncryptionKeyRing([NEW])
    with pytest.raises(SecretError) as caught:
        alone.open(sealed, "provider:7")
    assert f"provider:7 was sealed with key {ring.key_ids[1]}; available: {ring.key_ids[0]}" in str(
        caught.value
    )


def test_a_ring_needs_good_keys_and_hides_them() -> None:
    with pytest.raises(SecretError, match="PILLARBOX_SECRET_KEYS"):
        EncryptionKeyRing([])
    with pytest.raises(SecretError, match="32 bytes") as caught:
        EncryptionKeyRing([Secret("hunter2")])
    assert "hunter2" not in str(caught.value)
    assert "2222" not in repr(ring)


def test_a_key_given_twice_is_one_key() -> None:
    assert len(EncryptionKeyRing([NEW, NEW]).key_ids) == 1


def test_generated_keys_work_and_differ() -> None:
    keys = {generate_key() for _ in range(50)}
    assert len(keys) == 50
    EncryptionKeyRing([Secret(key) for key in keys])


def test_the_key_file_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "data" / "secret.key"
    key = load_or_create_key_file(path)
    assert load_or_create_key_file(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["secret.key"]
    assert EncryptionKeyRing([key]).open(EncryptionKeyRing([key]).seal("x", "y"), "y") == Secret(
        "x"
    )


def test_processes_that_race_agree_on_one_key(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: load_or_create_key_file(path), range(32)))
    assert len(keys) == 1


def test_a_key_file_open_to_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    load_or_create_key_file(path)
    path.chmod(0o644)
    with pytest.raises(SecretError, match="chmod 600"):
        load_or_create_key_file(path)


@pytest.mark.parametrize("content", [b"", b"hunter2", b"\xff\xfe"])
def test_a_damaged_key_file_is_an_error_and_is_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SecretError, match=r"secret\.key") as caught:
        load_or_create_key_file(path)
    assert "hunter2" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_directory_in_its_place_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="cannot be used as a key file: Is a directory"):
        load_or_create_key_file(tmp_path)


def test_the_umask_does_not_matter(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        load_or_create_key_file(tmp_path / "secret.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "secret.key").stat().st_mode) == 0o600
