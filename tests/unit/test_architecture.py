"""ARCHITECTURE.md is true: every function, file and folder that it names exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/pillarbox"
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
WORDS = sorted(set(re.findall(r"`([^`\n]+)`", PROSE)))
PACKAGES = {path.stem for path in SOURCE.iterdir()}
SCHEMA = "\n".join(path.read_text("utf-8") for path in SOURCE.glob("store/schema/*.sql"))


def is_name(word: str) -> bool:
    """Whether it is a dotted Python name below `pillarbox`."""
    is_dotted = re.fullmatch(r"[a-z_]+(\.[A-Za-z_]\w*)+", word) is not None
    return is_dotted and word.partition(".")[0] in PACKAGES and not word.endswith((".py", ".sql"))


NAMES = [word for word in WORDS if is_name(word)]
SQL_FUNCTIONS = [word for word in WORDS if re.fullmatch(r"pillarbox\.[a-z_]+", word)]
PATHS = [word for word in WORDS if re.fullmatch(r"[\w./-]+/[\w./-]*", word) and word[0] != "/"]


def resolve(name: str) -> object:
    """The module, class, function or method of this name."""
    found: object = importlib.import_module("pillarbox")
    for part in name.split("."):
        if isinstance(found, ModuleType) and not hasattr(found, part):
            found = importlib.import_module(f"{found.__name__}.{part}")
        else:
            found = getattr(found, part)
    return found


def test_the_page_names_the_way_of_a_mail() -> None:
    assert len(NAMES) > 40
    assert {name.partition(".")[0] for name in NAMES} >= {
        "accept", "queue", "route", "deliver", "track",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_python_name_exists(name: str) -> None:
    assert resolve(name) is not None


@pytest.mark.parametrize("name", SQL_FUNCTIONS)
def test_every_sql_function_exists(name: str) -> None:
    assert re.search(rf"FUNCTION {re.escape(name)}\(", SCHEMA)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_file_of_the_folder_map_exists() -> None:
    folder_map = PAGE.partition("```\nsrc/pillarbox/")[2].partition("```")[0]
    files = set(re.findall(r"(?<![\w*])([a-z_]\w*\.py)\b", folder_map))
    known = {
        path.name for folder in ("src", "benchmarks") for path in (ROOT / folder).rglob("*.py")
    }
    assert files - known == set()
