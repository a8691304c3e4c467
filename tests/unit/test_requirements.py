"""The table of requirements is true: each is shown by a test or said to be missing, and no marker is lost or wrong."""

from __future__ import annotations

import ast
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GENERATE: dict[str, Any] = runpy.run_path(str(ROOT / "docs/generate.py"))
ASKED = GENERATE["asked"]()
REQUIREMENTS: dict[str, dict[str, str]] = ASKED["requirements"]
SHOWN: dict[str, list[str]] = GENERATE["shown_by"]()
# How many of each kind the specification has: none may be left out.
COUNTS = {"U": 5, "E": 10, "S": 7, "N": 5, "O": 5}


def test_every_requirement_is_listed() -> None:
    expected = [
        f"REQ-QUEUE-{letter}{n:03}" for letter, count in COUNTS.items() for n in range(1, count + 1)
    ]
    assert list(REQUIREMENTS) == expected
    for one in REQUIREMENTS.values():
        assert {"asks"} <= set(one) <= {"asks", "decided", "not_yet"}
        assert all(one.values())


def test_the_page_is_up_to_date() -> None:
    page = ROOT / "docs/reference/requirements.md"
    assert page.read_text("utf-8") == GENERATE["requirements_page"](), (
        "run: python docs/generate.py"
    )


def test_every_marker_names_a_requirement() -> None:
    unknown = {name: tests for name, tests in SHOWN.items() if name not in REQUIREMENTS}
    assert unknown == {}


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_a_requirement_is_shown_or_said_to_be_missing(name: str) -> None:
    assert name in SHOWN or "not_yet" in REQUIREMENTS[name]


def test_no_marker_stands_where_it_is_not_seen() -> None:
    """They belong on test functions, each with one id: the table would miss others, such as `pytestmark`."""
    written = Counter(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Attribute)
        and node.attr == "req"
        and ast.unparse(node) == "pytest.mark.req"
    )
    seen = Counter(test.partition("::")[0] for tests in SHOWN.values() for test in tests)
    assert written == seen
    assert not [
        test
        for tests in SHOWN.values()
        for test in tests
        if not test.partition("::")[2].startswith("test_")
    ]


@pytest.mark.parametrize("test", ASKED["named_tests"])
def test_tests_with_fixed_names_exist(test: str) -> None:
    path, _, name = test.partition("::")
    assert name in {
        node.name for node in ast.parse((ROOT / path).read_bytes()).body if hasattr(node, "name")
    }


def test_markers_are_read_without_running_anything(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "test_one.py").write_text(
        'import pytest\nraise SystemExit("run")\n'
        '@pytest.mark.req("A")\n@pytest.mark.parametrize("x", [1])\n@pytest.mark.req("B")\n'
        "async def test_both(x): ...\n"
        '@pytest.mark.req("A")\ndef test_a(): ...\n'
    )
    (folder / "helpers.py").write_text('@pytest.mark.req("C")\ndef test_c(): ...\n')
    place = "tests/unit/test_one.py"
    assert GENERATE["shown_by"](tmp_path / "tests") == {
        "A": [f"{place}::test_both", f"{place}::test_a"],
        "B": [f"{place}::test_both"],
    }
