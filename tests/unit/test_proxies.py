"""Trusted proxies: which forwarded address is believed."""

from __future__ import annotations

import pytest

from pillarbox.errors import SettingsError
from pillarbox.model.proxies import TrustedProxies, parse_network
from pillarbox.settings import load

PROXIES = TrustedProxies(tuple(map(parse_network, ("10.0.0.0/8", "2001:db8::/32", "127.0.0.1"))))


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("2001:db8::1%eth0", True), ("11.0.0.1", False), ("", False),
     ("unknown", False), ("127.0.0.2", False)],
)  # fmt: skip
def test_who_is_trusted(peer: str, trusted: bool) -> None:
    assert PROXIES.trusts(peer) is trusted


@pytest.mark.parametrize(
    ("x_forwarded_for", "forwarded", "client"),
    [
        ([], [], "10.0.0.1"),  # it names nobody
        (["192.0.2.1"], [], "192.0.2.1"),
        (["192.0.2.1:4711"], [], "192.0.2.1"),
        (["198.51.100.9, 192.0.2.1"], [], "192.0.2.1"),  # the first was written by the client
        (
            ["198.51.100.9", "192.0.2.1, 10.2.2.2"],
            [],
            "192.0.2.1",
        ),  # two lines, and a second proxy of ours
        (["10.3.3.3, 10.2.2.2"], [], "10.3.3.3"),  # a client in a trusted network
        (["unknown"], [], "10.0.0.1"),
        (["192.0.2.1, unknown"], [], "10.0.0.1"),
        (["192.0.2.1, , 10.2.2.2"], [], "10.2.2.2"),
        (["2001:db9::1"], [], "2001:db9::1"),
        ([], ["for=192.0.2.1"], "192.0.2.1"),
        ([], ['for="[2001:db9::1]:4711";proto=https'], "2001:db9::1"),
        ([], ["for=198.51.100.9, For=192.0.2.1;by=10.0.0.1, for=10.2.2.2"], "192.0.2.1"),
        ([], ["for=_hidden"], "10.0.0.1"),
        ([], ["proto=https"], "10.0.0.1"),
        (["192.0.2.1"], ["for=192.0.2.1"], "192.0.2.1"),
        (["192.0.2.1"], ["for=198.51.100.9"], "10.0.0.1"),  # one of them was written by the client
    ],
)
def test_which_client_is_believed(
    x_forwarded_for: list[str], forwarded: list[str], client: str
) -> None:
    assert PROXIES.client("10.0.0.1", x_forwarded_for, forwarded) == client
    assert PROXIES.client("192.0.2.77", x_forwarded_for, forwarded) == "192.0.2.77"


def test_the_setting() -> None:
    settings = load({"PILLARBOX_TRUSTED_PROXIES": "10.0.0.0/8, 192.0.2.1,::1"})
    shown = {row.name: row.value for row in settings.describe()}
    assert shown["trusted_proxies"] == "10.0.0.0/8, 192.0.2.1, ::1"
    with pytest.raises(SettingsError, match="TRUSTED_PROXIES"):
        load({"PILLARBOX_TRUSTED_PROXIES": "proxy.example"})
