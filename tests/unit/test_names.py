"""Names: a class name has one meaning in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/pillarbox"


def definitions() -> dict[str, list[str]]:
    """The files that define each class name. `testing/` mirrors names of the servers it imitates."""
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE)
        if name.parts[0] == "testing":
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(name))
    return found


def test_a_class_name_is_defined_once() -> None:
    assert {name: files for name, files in definitions().items() if len(files) > 1} == {}
