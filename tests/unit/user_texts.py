"""Every text that users read, with where it stands: commands, problems, settings, errors, logs, pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from pillarbox.cli.main import root
from pillarbox.settings import SPECS
from pillarbox.telemetry.metrics import METRICS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/pillarbox"
# Modules whose strings are all written for users.
TEXT_MODULES = (
    "cli", "api/problem_types.py", "api/problems.py", "api/validation_words.py", "api/described.py",
    "api/account_words.py", "api/page.py", "accept/smtp/replies.py",
)  # fmt: skip
# Keyword arguments that carry texts for users, whatever is called.
TEXT_KEYWORDS = frozenset(
    {"help", "description", "summary", "title", "detail", "hint", "short_help"}
)
LOG_METHODS = frozenset({"debug", "info", "mail", "warning", "error"})


class Text(NamedTuple):
    """A text for users: the file or command it belongs to, its line there, and the text."""

    source: str
    line: int
    text: str


def texts() -> Iterator[Text]:
    """All of them; some more than once."""
    yield from _commands(typer.main.get_command(root), "pillarbox")
    yield from _settings()
    for name, metric in METRICS.items():
        yield Text(f"metric {name}", 0, metric.help)
    for path in sorted(SOURCE.rglob("*.py")):
        yield from _in_code(path)
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        yield from _in_page(path)


def _commands(command: Any, path: str) -> Iterator[Text]:
    yield Text(path, 0, command.help or "")
    for parameter in command.params:
        yield Text(path, 0, getattr(parameter, "help", None) or "")
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{path} {name}")


def _settings() -> Iterator[Text]:
    for name, spec in SPECS.items():
        for text in (spec.help, spec.why, spec.default, spec.kind.allowed):
            yield Text(f"setting {name}", 0, text)


def _in_code(path: Path) -> Iterator[Text]:
    name = str(path.relative_to(SOURCE))
    tree = ast.parse(path.read_bytes())
    if name.startswith(TEXT_MODULES):
        yield from _strings(tree, name, _docstrings(tree))
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _is_for_users(node)):
            yield from _strings(node, name)
        elif isinstance(node, ast.keyword) and node.arg in TEXT_KEYWORDS:
            yield from _strings(node.value, name)


def _is_for_users(call: ast.Call) -> bool:
    """Whether a call writes a log line or makes an error."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="log"), attr=method):
            return method in LOG_METHODS
        case ast.Name(id=function):
            return function in ERRORS or function.lstrip("_") in ("refuse", "problem", "fail")
    return False


def _strings(node: ast.AST, name: str, skipped: frozenset[int] = frozenset()) -> Iterator[Text]:
    for child in ast.walk(node):
        match child:
            case ast.Constant(value=str(text)) if " " in text and id(child) not in skipped:
                yield Text(name, child.lineno, text)


def _docstrings(tree: ast.AST) -> frozenset[int]:
    """The nodes of docstrings: those of commands are read as help texts."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.body and isinstance(node.body[0], ast.Expr)
    )


def _in_page(path: Path) -> Iterator[Text]:
    """The prose of a page: without blocks of code, words in back quotes and addresses of links."""
    in_block = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_block = not in_block
        elif not in_block:
            prose = re.sub(r"`[^`]*`|\]\([^)]*\)|<https?:[^>]*>", " ", line)
            yield Text(str(path.relative_to(ROOT)), number, prose)


def _errors() -> frozenset[str]:
    tree = ast.parse((SOURCE / "errors.py").read_bytes())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef))


ERRORS = _errors()
