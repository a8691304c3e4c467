"""Return paths name their message, survive what servers do to them, and cannot be made by others."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.model.return_path import derive_key, make, read

KEY = derive_key(b"installation")
MESSAGE = UUID("0198c5a2-7d7e-7b0c-9e55-0c2f0c3d7a11")


@given(st.uuids())
def test_a_return_path_names_its_message(message_id: UUID) -> None:
    address = make(message_id, "bounces.example.com", KEY)
    local, _, domain = address.partition("@")
    assert domain == "bounces.example.com"
    assert len(local) == 45
    assert local == local.lower()
    assert read(address, KEY) == message_id


@pytest.mark.parametrize(
    "change", [str.upper, str.title, lambda one: f"<{one}>", lambda one: f" {one} "]
)
def test_what_servers_do_to_an_address_does_no_harm(change: object) -> None:
    assert read(change(make(MESSAGE, "bounces.example.com", KEY)), KEY) == MESSAGE  # type: ignore[operator]


def test_the_domain_is_not_part_of_it() -> None:
    assert read(make(MESSAGE, "a.example", KEY).replace("a.example", "b.example"), KEY) == MESSAGE


def test_another_key_makes_other_addresses() -> None:
    assert read(make(MESSAGE, "a.example", derive_key(b"another")), KEY) is None
    assert derive_key(b"installation") == KEY != b"installation"


@given(st.integers(0, 44), st.sampled_from("abcdefghijklmnopqrstuvwxyz234567."))
def test_a_changed_address_is_nobodys(place: int, letter: str) -> None:
    address = make(MESSAGE, "a.example", KEY)
    changed = address[:place] + letter + address[place + 1 :]
    assert read(changed, KEY) == (MESSAGE if changed == address else None)


@given(st.text(max_size=80))
def test_any_other_address_is_nobodys(address: str) -> None:
    assert read(address, KEY) is None


def test_an_address_for_another_message_cannot_be_put_together() -> None:
    one, other = (make(message, "a.example", KEY) for message in (MESSAGE, uuid4()))
    assert (
        read(other.split(".")[0] + "." + other.split(".")[1] + "." + one.split(".", 2)[2], KEY)
        is None
    )
