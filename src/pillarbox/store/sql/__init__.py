"""The named statements of `store/sql/*.sql`, with their parameters passed by name.

In a file, `-- name: find_keys` starts a statement and the comment lines after it describe it.
A parameter is written `:prefixes`; it becomes `$1`, `$2`, … in the order of first use, except
inside strings, comments, quoted names and dollar quotes (`::text` and `a[1:2]` are left alone).

    SQL = sql.load("access")
    rows = await database.fetch(*SQL.find_keys(prefixes=["ab12"]))

`-- part: x` starts a text that is no statement by itself: a line `-- use: x` in a statement, or in
another part, stands for it.

A call returns the text and the arguments in the order of the placeholders. A missing or unknown
argument is a TypeError; `tests/unit/test_statements.py` finds these in the source, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

_HEADING = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_USE = re.compile(r"^ *-- use: (\w+)$", re.MULTILINE)
# What a parameter cannot be part of, then the parameter. The look-behind excludes array slices.
_TOKEN = re.compile(
    r"""
      --[^\n]* | /\*.*?\*/                      # comments
    | '(?:[^']|'')*' | "(?:[^"]|"")*"           # strings and quoted names
    | (?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag)  # dollar quotes
    | :: | :=
    | \$(?P<number>\d+)
    | (?<![\w\])]):(?P<name>[A-Za-z_]\w*)
    """,
    re.DOTALL | re.VERBOSE,
)


class Statement:
    """One statement: its name, its text with `$n` placeholders, and its parameters in order."""

    __slots__ = ("name", "parameters", "text")

    def __init__(self, name: str, text: str, parameters: tuple[str, ...]) -> None:
        self.name = name
        self.text = text
        self.parameters = parameters

    def __call__(self, **arguments: Any) -> tuple[Any, ...]:
        """The text, followed by the arguments in the order of its placeholders."""
        if len(arguments) == len(self.parameters):
            try:
                return (self.text, *[arguments[name] for name in self.parameters])
            except KeyError:
                pass
        raise self._mismatch(arguments)

    def _mismatch(self, arguments: dict[str, Any]) -> TypeError:
        missing = [name for name in self.parameters if name not in arguments]
        unknown = [name for name in arguments if name not in self.parameters]
        return TypeError(f"statement {self.name}: missing {missing}, unknown {unknown}")


class Statements:
    """The statements of one file: `SQL.find_keys` is a statement, `SQL["find_keys"]` its text."""

    def __init__(self, statements: dict[str, Statement]) -> None:
        self._statements = statements

    def __getattr__(self, name: str) -> Statement:
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(f"there is no statement {name!r}") from None

    def __getitem__(self, name: str) -> str:
        return self._statements[name].text

    def __iter__(self) -> Iterator[Statement]:
        return iter(self._statements.values())

    def items(self) -> Iterator[tuple[str, str]]:
        """Names and texts."""
        return ((name, statement.text) for name, statement in self._statements.items())

    def __or__(self, other: Statements) -> Statements:
        return Statements(self._statements | other._statements)


def load(file: str, schema: str | None = None) -> Statements:
    """The statements of `<file>.sql`; `schema` replaces `{schema}` in their text."""
    content = resources.files(__name__).joinpath(f"{file}.sql").read_text("utf-8")
    if schema is not None:
        content = content.replace("{schema}", schema)
    headings = _HEADING.split(content)[1:]
    sections = list(zip(headings[::3], headings[1::3], headings[2::3], strict=True))
    parts = {name: text.strip() for heading, name, text in sections if heading == "part"}
    return Statements(
        {
            name: compile_statement(name, expand(text, parts))
            for heading, name, text in sections
            if heading == "name"
        }
    )


def expand(text: str, parts: Mapping[str, str]) -> str:
    """Replace each line `-- use: x` by part x, with the parts that it uses; KeyError if unknown."""
    return _USE.sub(lambda use: expand(parts[use[1]], parts), text)


def compile_statement(name: str, text: str) -> Statement:
    """Replace the named parameters of a text by placeholders; ValueError if it has both kinds."""
    parameters: list[str] = []
    is_numbered = False

    def replace(found: re.Match[str]) -> str:
        nonlocal is_numbered
        is_numbered = is_numbered or found["number"] is not None
        parameter = found["name"]
        if parameter is None:
            return found[0]
        if parameter not in parameters:
            parameters.append(parameter)
        return f"${parameters.index(parameter) + 1}"

    compiled = _TOKEN.sub(replace, text.strip())
    if parameters and is_numbered:
        raise ValueError(f"statement {name} has numbered and named parameters")
    return Statement(name, compiled, tuple(parameters))
