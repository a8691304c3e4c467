"""`docs/how-to/add-a-transport.md` is true: the files and names that it mentions exist."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from tests.contract import transports

from pillarbox import errors
from pillarbox.deliver.transports import base, http, http_request, http_responses, http_send
from pillarbox.model import outcome, provider, provider_kind, secret
from pillarbox.testing import twins
from pillarbox.track.feedback import base as feedback

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/add-a-transport.md").read_text("utf-8")
PLACES = (ROOT, ROOT / "src/pillarbox", ROOT / "src/pillarbox/deliver/transports")
MODULES = (
    base, http, http_request, http_responses, http_send, outcome, provider, provider_kind, secret,
    errors, feedback, twins, transports, dataclasses,
)  # fmt: skip
RECORDS = (
    provider_kind.ProviderKind,
    provider_kind.SettingOption,
    provider_kind.SecretOption,
    provider_kind.TransportLimits,
    base.OutgoingMail,
    http_send.ProviderApi,
)
# What the reader writes, and words of Python and of the command line.
OWN = {"city", "key", "url", "timeout", "connections", "api", "outgoing", "response", "recipients"}
OWN |= {"self", "str", "int", "float", "context", "settings", "now", "KIND", "TABLE"}
OWN |= {"frozen", "slots", "default", "metadata"}


def known() -> set[str]:
    names = {name for module in MODULES for name in vars(module)}
    for record in RECORDS:
        names |= set(vars(record)) | set(getattr(record, "__dataclass_fields__", ()))
    names |= set(outcome.Reason.__members__)
    return names | set(vars(base.TransportContext)) | {"__post_init__", "build_transport"}


KNOWN = known()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
WORDS = sorted(set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))))
PATHS = [word for word in WORDS if "/" in word or word.endswith(".py")]
NAMES = [
    word for word in WORDS if re.fullmatch(r"[A-Za-z_]+(\.[a-z_]+)?", word) and word not in PATHS
]


@pytest.mark.parametrize("path", PATHS)
def test_a_file_exists(path: str) -> None:
    like = path if path.startswith("tests/") else path.replace("postbote", "mailgun")
    assert any((place / like).exists() for place in PLACES)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_exists(name: str) -> None:
    assert set(name.split(".")) <= KNOWN | OWN


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_names_in_the_code_exist(block: str) -> None:
    used: set[str] = set()
    for node in ast.walk(ast.parse(block)):
        used |= _names(node)
    assert {name for name in used if not name.startswith("Postbote")} <= KNOWN | OWN


def _names(node: Any) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.keyword):
        return {str(node.arg)}
    return set()


def test_there_is_something_to_check() -> None:
    assert len(PATHS) >= 10
    assert len(NAMES) >= 30
    assert len(BLOCKS) == 2
