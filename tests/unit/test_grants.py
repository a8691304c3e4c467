"""What a key hands on never exceeds what it has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.model.access import Scope, matches
from pillarbox.model.grants import NO_DOMAIN, Grant, common_domains, excess, narrowed

NOW = datetime(2026, 11, 16, tzinfo=UTC)
DOMAINS = ("a.example", "*.a.example", "x.a.example", "*.x.a.example", "b.example")
domains = st.lists(st.sampled_from(DOMAINS), unique=True, max_size=4).map(tuple)
grants = st.builds(
    Grant,
    st.frozensets(st.sampled_from(Scope), min_size=1),
    domains,
    domains,
    st.none() | st.integers(0, 5).map(lambda days: NOW + timedelta(days=days)),
)


@given(grants, grants)
def test_narrowed_exceeds_neither(own: Grant, parent: Grant) -> None:
    left = narrowed(own, parent)
    fields = set(excess(left, parent)) | set(excess(left, own))
    # Where two restrictions have nothing in common, what is left is a domain that no address has.
    if NO_DOMAIN in left.sender_domains:
        fields.discard("sender_domains")
    if NO_DOMAIN in left.recipient_domains:
        fields.discard("recipient_domains")
    assert not fields
    if not excess(own, parent):
        assert left == own


@given(
    domains,
    domains,
    st.sampled_from(["a.example", "x.a.example", "y.x.a.example", "b.example", "c.example"]),
)
def test_common_domains(own: tuple[str, ...], parent: tuple[str, ...], domain: str) -> None:
    left = common_domains(own, parent)
    by_both = (not own or matches(domain, own)) and (not parent or matches(domain, parent))
    assert (not left or matches(domain, left)) == by_both


@pytest.mark.parametrize(
    ("own", "parent", "fields"),
    [
        (Grant(frozenset({Scope.SEND})), Grant(frozenset({Scope.ADMIN})), []),
        (Grant(frozenset({Scope.SEND})), Grant(frozenset({Scope.READ})), ["scopes"]),
        (Grant(frozenset(), ()), Grant(frozenset(), ("a.example",)), ["sender_domains"]),
        (
            Grant(frozenset(), (), ("b.example",)),
            Grant(frozenset(), (), ("a.example",)),
            ["recipient_domains"],
        ),
        (Grant(frozenset()), Grant(frozenset(), expires_at=NOW), ["expires_at"]),
        (
            Grant(frozenset(), expires_at=NOW + timedelta(1)),
            Grant(frozenset(), expires_at=NOW),
            ["expires_at"],
        ),
        (Grant(frozenset(), expires_at=NOW), Grant(frozenset(), expires_at=NOW), []),
        (Grant(frozenset(), expires_at=NOW), Grant(frozenset()), []),
    ],
)
def test_excess(own: Grant, parent: Grant, fields: list[str]) -> None:
    assert excess(own, parent) == fields
