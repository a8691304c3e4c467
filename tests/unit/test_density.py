"""Density: code that reads top to bottom."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/pillarbox"


def nested(path: Path) -> list[str]:
    """The conditional expressions that contain another one, as file:line."""
    found = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.IfExp):
            within = [*ast.walk(node.body), *ast.walk(node.orelse), *ast.walk(node.test)]
            if any(isinstance(child, ast.IfExp) for child in within):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return found


def test_no_conditional_expression_contains_another() -> None:
    found = [place for path in sorted(SOURCE.rglob("*.py")) for place in nested(path)]
    assert found == []
