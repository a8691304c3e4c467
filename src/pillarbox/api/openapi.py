"""What OpenAPI says beside the models: problems by status, the key that is needed."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

from fastapi import Header, Path, Query
from pydantic import BaseModel, ConfigDict

from pillarbox.api.fields import NAME
from pillarbox.api.problem_types import TYPES
from pillarbox.api.problems import MEDIA_TYPE, ProblemError
from pillarbox.model.access import Scope

# What any operation can answer.
ALWAYS = (
    "unauthorized",
    "not-allowed",
    "wrong-host",
    "throttled",
    "internal",
    "overloaded",
    "store-away",
)
# What those with a body can, besides.
BODY = ("malformed", "request-timeout", "too-large", "unsupported-media-type", "invalid-request")
Responses = dict[int | str, dict[str, Any]]

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        description="A name of yours for this request, of up to 255 printable ASCII characters. Repeated within a day,"
        " the same request gets the same answer and nothing is sent twice; a different one is refused with 409.",
    ),
]
NamePath = Annotated[str, Path(pattern=NAME, description="A tenant's name.")]
Prefix = Annotated[str, Path(pattern=r"^(pbx_)?[a-z0-9]{10}$", description="The key's prefix.")]
KeepDescendants = Annotated[
    bool, Query(description="Leave the keys and logins in force that it made.")
]
Username = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9_.-]{1,63}@[A-Za-z0-9_.-]{1,63}$", description="The user name.")
]


class Fault(BaseModel):
    """One of several things wrong with a request."""

    field: str
    code: str
    detail: str


class Problem(BaseModel):
    """A problem as in RFC 9457. `type` is stable, and the address of a page that explains it."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str | None = None
    field: str | None = None
    hint: str | None = None
    errors: list[Fault] | None = None


def needs(*scopes: Scope) -> dict[str, Any]:
    """That an operation needs a key with these scopes."""
    return {"security": [{"key": [scope.value for scope in scopes]}]}


# That an operation needs no key.
PUBLIC: dict[str, Any] = {"security": []}


def problems(*names: str) -> Responses:
    """The answers of an operation that are problems: these, and what any can answer."""
    by_status: dict[int, list[str]] = defaultdict(list)
    for name in dict.fromkeys((*names, *ALWAYS)):
        by_status[TYPES[name].status].append(name)
    return {status: _response(some) for status, some in sorted(by_status.items())}


def _response(names: list[str]) -> dict[str, Any]:
    described = "; or: ".join(TYPES[name].title for name in names)
    examples = {name: {"value": ProblemError(name, TYPES[name].title).body()} for name in names}
    content = {
        MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": examples}
    }
    return {"description": described, "content": content}
