"""Problems say what is wrong in our words, not in pydantic's."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pillarbox.api import (
    access_models,
    admin_login,
    dlq_models,
    new_message,
    route_models,
    webhook_models,
)
from pillarbox.api.problems import invalid
from pillarbox.model.access import Scope

# How pydantic begins its sentences.
PYDANTIC = (
    "Input should",
    "Field required",
    "String should",
    "List should",
    "Value error",
    "Extra inputs",
    "Datetime",
)
VALUES: list[Any] = [
    None, True, 5, -1, 1.5, "x", "", "x" * 5000, [], [1], ["x"] * 5000, {}, {"x": 1}, float("nan"), 10**400,
    "2030-01-01", "2030-01-01T00:00:00", "\ud800", [[["x"]]], {"a": {"b": {}}},
]  # fmt: skip


def told(kind: Any, value: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    return str(invalid(caught.value).members["detail"])


class Thing(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str


@pytest.mark.parametrize(
    ("kind", "value", "detail"),
    [
        (str, 1, "must be a string"),
        (int, "x", "must be a whole number"),
        (bool, "maybe", "must be true or false"),
        (UUID, "x", "must be an id (a UUID)"),
        (datetime, "soon", "must be a time such as 2030-12-31T23:59:00Z"),
        (Annotated[int, Field(ge=1)], 0, "must be at least 1"),
        (Annotated[int, Field(le=1000)], 1001, "must be at most 1,000"),
        (Annotated[str, Field(max_length=1)], "ab", "must have at most 1 character"),
        (Annotated[list[int], Field(min_length=2)], [1], "must have at least 2 items"),
        (Annotated[str, Field(pattern="^a$")], "b", "does not have the expected format"),
        (Literal["a", "b"], "c", "must be one of a or b"),
        (Scope, "x", "must be one of "),
        (Thing, {}, "is missing"),
        (Thing, {"name": "a", "more": 1}, "is not a known field"),
        (Thing, 5, "must be an object"),
    ],
)
def test_words(kind: Any, value: Any, detail: str) -> None:
    assert told(kind, value).startswith(detail)


def models() -> list[type[BaseModel]]:
    modules = (access_models, admin_login, dlq_models, new_message, route_models, webhook_models)
    found = [one for module in modules for one in vars(module).values()]
    return [
        one
        for one in found
        if isinstance(one, type) and issubclass(one, BaseModel) and one is not BaseModel
    ]


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_no_model_speaks_pydantic(model: type[BaseModel]) -> None:
    """Every field of every model with every odd value: whatever is wrong is said in our words."""
    # A query's values are strings, never null.
    values = (
        [one for one in VALUES if isinstance(one, str)]
        if model.__name__.endswith("Query")
        else VALUES
    )
    faults = [
        fault for name in [*model.model_fields, "no_such_field"] for value in values
        for fault in faults_of(model, {name: value})
    ]  # fmt: skip
    for fault in faults:
        assert not fault["detail"].startswith(PYDANTIC), fault
        assert fault["detail"] != "is not a valid value", fault


def faults_of(model: type[BaseModel], given: dict[str, Any]) -> list[dict[str, str]]:
    try:
        model.model_validate(given)
    except ValidationError as error:
        return list(invalid(error).members["errors"])
    return []
