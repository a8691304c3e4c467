"""Measures how dense Python code is: `python -m benchmarks.density [PATH…]` (default:
src/pillarbox).

Prints one table with a row per path. Code lines are lines with at least one token that is not a
comment, without docstrings. Nothing is asserted: the aims are in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_PATH = "src/pillarbox"
COLUMN_LIMIT = 100
# Class names may repeat there: a test double is named like the thing that it replaces.
REPEATED_NAMES_ALLOWED_IN = "testing"

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTION_TYPES = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED_TYPES = (*FUNCTION_TYPES, ast.ClassDef, ast.Module)
BRANCH_TYPES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.comprehension,
    ast.Assert,
    ast.match_case,
)
LAYOUT_TOKENS = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@dataclass
class Density:
    """The counts of all files below a path."""

    nodes: int = 0
    code_lines: int = 0
    conditional_expressions: int = 0
    complexity: int = 0
    long_lines: int = 0
    function_lengths: list[int] = field(default_factory=list)
    class_names: Counter[str] = field(default_factory=Counter)
    private_functions: Counter[str] = field(default_factory=Counter)
    referenced_names: Counter[str] = field(default_factory=Counter)

    def add_file(self, path: Path) -> None:
        """Add the counts of one Python file."""
        source = path.read_text("utf-8")
        tree = ast.parse(source)
        docstring_lines = set[int]()
        may_repeat_names = REPEATED_NAMES_ALLOWED_IN in path.parts
        for node in ast.walk(tree):
            self.nodes += 1
            if isinstance(node, DOCUMENTED_TYPES):
                docstring_lines.update(docstring_lines_of(node))
            if isinstance(node, FUNCTION_TYPES):
                self._add_function(node)
            elif isinstance(node, ast.ClassDef) and not may_repeat_names:
                self.class_names[node.name] += 1
            elif isinstance(node, ast.IfExp):
                self.conditional_expressions += 1
            elif isinstance(node, ast.Name):
                self.referenced_names[node.id] += 1
            elif isinstance(node, ast.Attribute):
                self.referenced_names[node.attr] += 1
        self.code_lines += len(code_lines_of(source) - docstring_lines)
        self.long_lines += sum(len(line) > COLUMN_LIMIT for line in source.splitlines())

    def _add_function(self, function: Function) -> None:
        assert function.end_lineno is not None
        self.function_lengths.append(function.end_lineno - function.lineno + 1)
        self.complexity += complexity_of(function)
        is_dunder = function.name.startswith("__")
        if function.name.startswith("_") and not is_dunder:
            self.private_functions[function.name] += 1

    def function_length(self, share: float) -> int:
        """The length that this share of the functions does not exceed."""
        lengths = sorted(self.function_lengths)
        if not lengths:
            return 0
        return lengths[min(int(len(lengths) * share), len(lengths) - 1)]

    def repeated_class_names(self) -> list[str]:
        return sorted(name for name, count in self.class_names.items() if count > 1)

    def called_once(self) -> int:
        """Private functions with a unique name and a single reference."""
        return sum(
            definitions == 1 and self.referenced_names[name] == 1
            for name, definitions in self.private_functions.items()
        )

    def columns(self) -> dict[str, str]:
        """The figures by their column heads."""
        per_line = self.nodes / max(self.code_lines, 1)
        per_thousand = 1000 * self.conditional_expressions / max(self.code_lines, 1)
        function_lines = max(sum(self.function_lengths), 1)
        lengths = [self.function_length(share) for share in (0.5, 0.9, 1.0)]
        functions = max(len(self.function_lengths), 1)
        return {
            "code lines": f"{self.code_lines:,}",
            "nodes/line": f"{per_line:.2f}",
            "if-exp/1000": f"{per_thousand:.1f}",
            "complexity/line": f"{self.complexity / function_lines:.3f}",
            "function p50/p90/max": "/".join(map(str, lengths)),
            f"over {COLUMN_LIMIT}": str(self.long_lines),
            "repeated classes": str(len(self.repeated_class_names())),
            "called once": f"{self.called_once()} ({self.called_once() / functions:.0%})",
        }


def docstring_lines_of(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module,
) -> range:
    """The lines of a node's docstring; empty without one."""
    if ast.get_docstring(node, clean=False) is None:
        return range(0)
    docstring = node.body[0]
    assert docstring.end_lineno is not None
    return range(docstring.lineno, docstring.end_lineno + 1)


def code_lines_of(source: str) -> set[int]:
    """The numbers of all lines that hold code."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT_TOKENS:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def complexity_of(function: Function) -> int:
    """Cyclomatic complexity: one, plus one for each branch and each further boolean operand."""
    complexity = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCH_TYPES):
            complexity += 1
        elif isinstance(node, ast.BoolOp):
            complexity += len(node.values) - 1
    return complexity


def python_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from sorted(path.rglob("*.py"))


def measure(path: Path) -> Density:
    """Measure a file, or all files below a folder."""
    density = Density()
    for file in python_files(path):
        density.add_file(file)
    return density


def print_table(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def main(arguments: list[str]) -> int:
    rows: list[list[str]] = []
    repeated: list[str] = []
    for argument in arguments or [DEFAULT_PATH]:
        path = Path(argument)
        if not path.exists():
            print(f"density: {argument} does not exist", file=sys.stderr)
            return 2
        density = measure(path)
        columns = density.columns()
        if not rows:
            rows.append(["path", *columns])
        rows.append([argument, *columns.values()])
        repeated += density.repeated_class_names()
    print_table(rows)
    if repeated:
        print("repeated class names:", ", ".join(sorted(set(repeated))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
