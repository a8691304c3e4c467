"""Statements of `store/sql/*.sql`: named parameters, and every call in the source fits its statement."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import pillarbox
from pillarbox.store import sql
from pillarbox.store.lifecycle import TokenStore
from pillarbox.store.sql import Statement, Statements, compile_statement, expand

SOURCE = Path(pillarbox.__file__).parent


@pytest.mark.parametrize(
    ("text", "compiled", "parameters"),
    [
        ("SELECT 1", "SELECT 1", ()),
        ("SELECT :a, :b, :a", "SELECT $1, $2, $1", ("a", "b")),
        ("SELECT :a::text[], x::int", "SELECT $1::text[], x::int", ("a",)),
        ("SELECT ':no', \":no\", :yes -- :no", "SELECT ':no', \":no\", $1 -- :no", ("yes",)),
        ("/* :no */ SELECT 'it''s :no' || :yes", "/* :no */ SELECT 'it''s :no' || $1", ("yes",)),
        ("SELECT $q$ :no $q$, $$ :no $$, :yes", "SELECT $q$ :no $q$, $$ :no $$, $1", ("yes",)),
        ("SELECT a[1:n], f(x => :x)", "SELECT a[1:n], f(x => $1)", ("x",)),
        ("SELECT a[:lower:upper]", "SELECT a[$1:upper]", ("lower",)),
        ("x BETWEEN :low AND:high", "x BETWEEN $1 AND:high", ("low",)),
        ("SELECT $1 -- by number", "SELECT $1 -- by number", ()),
        ("SELECT :a -- replaces $1", "SELECT $1 -- replaces $1", ("a",)),
    ],
)
def test_named_parameters_become_placeholders(
    text: str, compiled: str, parameters: tuple[str, ...]
) -> None:
    statement = compile_statement("x", text)
    assert (statement.text, statement.parameters) == (compiled, parameters)


def test_one_statement_does_not_mix_names_and_numbers() -> None:
    with pytest.raises(ValueError, match="statement x has numbered and named"):
        compile_statement("x", "SELECT $1, :name")


def test_a_call_orders_its_arguments() -> None:
    statement = compile_statement("x", "SELECT :b, :a, :b")
    assert statement(a=1, b=2) == ("SELECT $1, $2, $1", 2, 1)


@pytest.mark.parametrize("arguments", [{}, {"a": 1}, {"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}])
def test_a_call_needs_exactly_the_parameters(arguments: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="statement x"):
        compile_statement("x", "SELECT :a, :b")(**arguments)


def test_a_statement_is_compiled_from_parts() -> None:
    parts = {"due": "state = 'queued' AND\n  -- use: now", "now": "at <= :now"}
    text = expand("SELECT :a WHERE (\n  -- use: due\n) -- use: this is a comment", parts)
    statement = compile_statement("x", text)
    assert statement.parameters == ("a", "now")
    assert statement.text == (
        "SELECT $1 WHERE (\nstate = 'queued' AND\nat <= $2\n) -- use: this is a comment"
    )


def test_an_unknown_part_is_an_error() -> None:
    with pytest.raises(KeyError):
        expand("SELECT\n-- use: nothing", {})


def test_parts_are_no_statements() -> None:
    names = {statement.name for statement in sql.load("queue")}
    assert {"claim", "claim_referenced"} <= names
    assert "claim_heads" not in names
    assert all("-- use:" not in statement.text for statement in sql.load("queue"))


def test_an_unknown_statement_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="there is no statement 'nothing'"):
        _ = sql.load("tenants").nothing


def calls_of_statements() -> Iterator[tuple[str, Statements, ast.Call]]:
    """Every `SQL.name(...)` in the source, with the statements that `SQL` stands for there."""
    for path in sorted(SOURCE.rglob("*.py")):
        if "SQL." not in (text := path.read_text("utf-8")) and "_sql." not in text:
            continue
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        module = importlib.import_module(name.removesuffix(".__init__"))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                statements = resolve(module, node.func.value)
                if isinstance(statements, Statements) and node.func.attr != "items":
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", statements, node


def resolve(module: ModuleType, node: ast.expr) -> object:
    if isinstance(node, ast.Name):
        return getattr(module, node.id, None)
    if not isinstance(node, ast.Attribute):
        return None
    if node.attr == "_sql":  # the only statements of an instance: they depend on the schema's name
        return TokenStore("lifecycle")._sql
    return getattr(resolve(module, node.value), node.attr, None)


def test_every_call_in_the_source_fits_its_statement() -> None:
    wrong = []
    found = 0
    for where, statements, call in calls_of_statements():
        assert isinstance(call.func, ast.Attribute)
        statement: Statement = getattr(statements, call.func.attr)
        given = {keyword.arg for keyword in call.keywords}
        found += 1
        if call.args or (None not in given and given != set(statement.parameters)):
            wrong.append(f"{where}: {statement.name} takes {statement.parameters}")
    assert not wrong
    assert found
