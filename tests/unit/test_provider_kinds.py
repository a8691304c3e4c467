"""The records of the kinds of providers hold together, and nothing else names a kind."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from tests.contract.transports import ADAPTERS

from pillarbox.deliver.transports.base import OutgoingMail, TransportContext
from pillarbox.deliver.transports.build import build_transport
from pillarbox.deliver.transports.http_client import HttpClient
from pillarbox.errors import NotPossible, SettingsError
from pillarbox.model.provider import Provider
from pillarbox.model.provider_kinds import KINDS, UNKNOWN, kind_of, kinds_that_keep
from pillarbox.model.retry import POLICIES
from pillarbox.model.secret import Secret
from pillarbox.track.feedback.build import build_feedback

SOURCE = Path(__file__).parents[2] / "src/pillarbox"
SETTINGS: dict[str, dict[str, Any]] = {
    "smtp": {"host": "smtp.example.com"},
    "ses": {"region": "eu-west-1", "access_key_id": "AKIAIOSFODNN7EXAMPLE"},
    "mailgun": {"domain": "mg.shop.example"},
}
# A kind's own files; `smtp` and `capture` are words of other rooms, too.
OWN = ("model/provider_kinds", "deliver/transports", "track/feedback", "testing")


def provider(kind: str, **settings: Any) -> Provider:
    secret = Secret("hunter2") if kind_of(kind).secret else None
    return Provider(1, kind, kind, SETTINGS.get(kind, {}) | settings, secret)


async def keep(outgoing: OutgoingMail) -> int:
    return 1


CONTEXT = TransportContext(1, HttpClient, keep)


@pytest.mark.parametrize("name", KINDS)
async def test_a_record_leads_to_its_adapters(name: str) -> None:
    kind = KINDS[name]
    transport = build_transport(provider(name), CONTEXT, 5)
    assert transport.limits == kind.limits
    assert transport.connections == (5 if "connections" in names(kind) else transport.connections)
    if kind.feedback is not None:
        assert isinstance(build_feedback(provider(name), 300), resolve_name(kind.feedback))
    await transport.close()


def names(kind: Any) -> set[str]:
    return {field.name for field in fields(kind.settings)}


@pytest.mark.parametrize("name", KINDS)
def test_a_record_is_consistent(name: str) -> None:
    kind = KINDS[name]
    assert resolve_name(f"pillarbox.model.provider_kinds.{name}:KIND") is kind
    assert kind.retry in POLICIES
    secrets = {kind.secret.field} if kind.secret else set()
    assert names(kind) == {field.name for field, _ in kind.options()} | secrets
    assert kind.webhook_secret is None or kind.feedback
    assert kind.feedback_settings() == [] or kind.feedback


def test_kinds_are_in_the_order_of_the_default_route() -> None:
    ranks = [kind.rank for kind in KINDS.values()]
    assert ranks == sorted(set(ranks))
    assert kinds_that_keep() == [list(KINDS)[-1]]


def test_every_kind_is_in_the_contract_suite() -> None:
    assert set(ADAPTERS) == set(KINDS)


@pytest.mark.parametrize(
    ("kind", "settings", "complaint"),
    [
        ("smtp", {"hots": "x"}, "unknown settings: hots"),
        ("smtp", {"password": "x"}, "unknown settings: password"),
        ("smtp", {"tls": "maybe"}, "tls: 'maybe' must be one of starttls"),
        ("mailgun", {"domain": "?"}, "domain: '\\?' must be a domain"),
        ("capture", {"host": "x"}, "unknown settings: host"),
    ],
)
def test_wrong_settings_name_the_provider(
    kind: str, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SettingsError, match=f"provider '{kind}': {complaint}"):
        build_transport(provider(kind, **settings), CONTEXT, 5)


def test_an_unknown_kind_is_used_last_and_cannot_send() -> None:
    assert kind_of("pigeon") is UNKNOWN
    assert UNKNOWN.sends_out
    assert max(kind.rank for kind in KINDS.values()) < UNKNOWN.rank
    with pytest.raises(NotPossible, match="unknown kind 'pigeon'"):
        build_transport(provider("pigeon"), CONTEXT, 5)


def test_nothing_else_names_a_kind() -> None:
    """Adding a kind touches its own files only."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if not place.startswith(OWN):
            found += [f"{place}:{line}" for line in _naming(ast.parse(path.read_text("utf-8")))]
    assert found == []


def _naming(tree: ast.AST) -> list[int]:
    """The lines that compare a kind with a name, or hold a name that only a kind can have."""
    kinds = set(KINDS)
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and "kind" in ast.unparse(node.left).rpartition(".")[2]:
            words = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
            lines += [node.lineno] if words & kinds else []
        elif isinstance(node, ast.Constant) and node.value in kinds - {"smtp", "capture"}:
            lines.append(node.lineno)
    return lines
