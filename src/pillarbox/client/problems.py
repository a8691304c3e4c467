"""Problems (RFC 9457) of the server as errors of `pillarbox.errors`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pillarbox.errors import (
    IdempotencyConflict,
    InvalidMail,
    NoAnswer,
    NotAllowed,
    NotFound,
    NotPossible,
    PillarboxError,
    RenderError,
    StoreError,
    Throttled,
    Unauthorized,
    UnknownName,
    WrongCode,
)

_FIELDS = {"from": "sender"}
_UNKNOWN = ("unknown_class", "unknown_tenant")
_PLAIN: Mapping[str, type[PillarboxError]] = {
    "unauthorized": Unauthorized,
    "not-found": NotFound,
    "in-flight": NotPossible,
    "not-possible": NotPossible,
    "content-purged": NotPossible,
    "taken": NotPossible,
    "store-away": StoreError,
    "overloaded": StoreError,
}
_OF_FIELDS: Mapping[str, type[InvalidMail] | type[NotAllowed]] = {
    "invalid-mail": InvalidMail,
    "invalid-request": InvalidMail,
    "malformed": InvalidMail,
    "too-large": InvalidMail,
    "idempotency-conflict": IdempotencyConflict,
    "not-allowed": NotAllowed,
    "foreign-origin": NotAllowed,
}
# Seconds to wait if the server throttles without Retry-After.
WAIT = 1.0


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> PillarboxError:
    """The error of a response with a status of 300 or more."""
    problem = _problem(body)
    if problem is None:  # from a proxy, or a different server
        return NoAnswer(f"the server answered {status}, without a problem of Pillarbox", status)
    return of_problem(problem, retry_after(headers))


def of_problem(problem: Mapping[str, Any], wait: float | None = None) -> PillarboxError:
    """A problem as an error; `wait` is its Retry-After."""
    name = str(problem.get("type", "")).rpartition("/")[2]
    detail = str(problem.get("detail") or problem.get("title") or name)
    if name in _OF_FIELDS:
        return _of_field(name, detail, problem)
    if name == "template":
        return _of_template(detail, problem)
    if name == "code":
        return WrongCode(detail, void=bool(problem.get("void", True)))
    if name == "throttled":
        if wait is None:
            wait = WAIT
        return Throttled(detail, wait)
    if name in _PLAIN:
        return _PLAIN[name](detail)
    return NoAnswer(f"{detail} ({name})", int(problem.get("status", 0)))


def _of_field(name: str, detail: str, problem: Mapping[str, Any]) -> InvalidMail | NotAllowed:
    code = str(problem.get("code") or name.replace("-", "_"))
    field = str(problem.get("field") or "message")
    kind = UnknownName if code in _UNKNOWN else _OF_FIELDS[name]
    return kind(code, _FIELDS.get(field, field), detail, problem.get("hint"))


def _of_template(detail: str, problem: Mapping[str, Any]) -> RenderError:
    line = problem.get("line")
    if not isinstance(line, int):
        line = None
    name = str(problem.get("template") or "")
    return RenderError(
        name, detail, part=problem.get("part"), line=line, variable=problem.get("variable")
    )


def _problem(body: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    if not isinstance(found, dict) or "type" not in found:
        return None
    return found


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds of a Retry-After header; a date is ignored, because clocks differ."""
    value = headers.get("Retry-After", "")
    is_number = value.isascii() and value.isdecimal() and len(value) < 9
    return float(value) if is_number else None
