"""The records of the API: the server writes what the clients read, and neither declares its own."""

from __future__ import annotations

import inspect
import json
import pkgutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from importlib import import_module
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest

from pillarbox import AsyncClient, Client, wire
from pillarbox.api.routing import json_response
from pillarbox.api.v1 import description
from pillarbox.client.calls import Sent
from pillarbox.client.reading import read
from pillarbox.client.webhook_calls import Webhook
from pillarbox.wire.dlq import DeadLetterSummary
from pillarbox.wire.messages import Delivery
from pillarbox.wire.suppressions import SuppressionsImported

MODULES = [
    import_module(f"pillarbox.wire.{one.name}") for one in pkgutil.iter_modules(wire.__path__)
]
RECORDS = [
    one
    for module in MODULES
    for one in vars(module).values()
    if is_dataclass(one) and inspect.isclass(one) and one.__module__ == module.__name__
]
SAMPLES: dict[Any, Any] = {
    str: "ä <b>",
    int: 7,
    float: 0.25,
    bool: True,
    UUID: UUID("0198c5a2-7d7e-7b0c-9e55-0c2f0c3d7a11"),
    datetime: datetime(2030, 1, 2, 3, 4, 5, 678900, tzinfo=UTC),
    Any: {"deep": [None, 1]},
}


def sample(hint: Any, *, empty: bool) -> Any:
    """A value of this type; with `empty`, nothing where nothing is allowed."""
    if is_dataclass(hint) and inspect.isclass(hint):
        return record(hint, empty=empty)
    arguments = get_args(hint)
    if get_origin(hint) is Sequence:
        return () if empty else (sample(arguments[0], empty=empty),) * 2
    if get_origin(hint) is Mapping:
        return {} if empty else {"key": sample(arguments[1], empty=empty)}
    if NoneType in arguments:
        (inner,) = (one for one in arguments if one is not NoneType)
        return None if empty else sample(inner, empty=empty)
    return SAMPLES[hint]


def record(kind: Any, *, empty: bool = False) -> Any:
    hints = get_type_hints(kind)
    return kind(**{one.name: sample(hints[one.name], empty=empty) for one in fields(kind)})


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("empty", [True, False], ids=["empty", "full"])
def test_the_client_reads_what_the_server_writes(kind: Any, empty: bool) -> None:
    written = record(kind, empty=empty)
    value = json.loads(json_response(written).body)
    assert read(kind, value) == written
    assert read(kind, value | {"of a newer server": [1]}) == written


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_the_schema_has_the_names_that_are_written(kind: Any) -> None:
    schemas = description()["components"]["schemas"]
    if kind.__name__ in schemas:  # a base of several records has no schema
        schema = schemas[kind.__name__]
        assert list(schema["properties"]) == list(json.loads(json_response(record(kind)).body))
        assert schema["title"] == kind.__name__


def test_every_answer_of_the_clients_is_described() -> None:
    names = {one.__name__ for one in RECORDS} - {"DeadLettersChanged"}
    assert names <= description()["components"]["schemas"].keys()


def test_answers_of_older_servers_are_read() -> None:
    for kind, names in (
        (Delivery, {"history"}),
        (DeadLetterSummary, {"tokens"}),
        (SuppressionsImported, {"refused", "faults"}),  # not in the answer to `POST /suppressions`
    ):
        value = json.loads(json_response(record(kind)).body)
        found = read(kind, {name: one for name, one in value.items() if name not in names})
        assert all(not getattr(found, name) for name in names)
        assert names == {one.name for one in fields(kind) if "absent" in one.metadata}


def test_what_clients_add_to_records() -> None:
    """Only what stands in a header, or in some answers: everything else is declared in `wire`."""
    assert {one.name for one in fields(Sent)} == {"id", "deliveries", "repeated"}
    added = [one for one in fields(Webhook) if one.default is not MISSING]
    assert [one.name for one in added] == ["secret"]
    assert "pbx" not in repr(record(Webhook))


def test_records_and_their_reader_need_no_package() -> None:
    modules = ", ".join([*(one.__name__ for one in MODULES), "pillarbox.client.reading"])
    code = (
        f"import sys, {modules}; print([one for one in sys.modules if one.partition('.')[0] in"
        " ('pydantic', 'fastapi', 'starlette', 'asyncpg', 'aiohttp', 'urllib3')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- both clients


def methods(kind: type) -> dict[str, Any]:
    found = inspect.getmembers(kind, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_")}


def test_both_clients_have_the_same_methods() -> None:
    assert methods(Client).keys() == methods(AsyncClient).keys()


@pytest.mark.parametrize("name", sorted(methods(AsyncClient).keys() - {"close"}))
def test_methods_of_both_clients_have_the_same_signature_and_words(name: str) -> None:
    blocking, awaited = methods(Client)[name], methods(AsyncClient)[name]
    assert blocking.__doc__ == awaited.__doc__
    assert str(inspect.signature(blocking)) == str(inspect.signature(awaited)).replace(
        "AsyncIterator[", "Iterator["
    )
    assert not inspect.iscoroutinefunction(blocking)
