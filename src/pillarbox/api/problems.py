"""Error responses: problems (RFC 9457) with a stable type, and the errors that become them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pillarbox.api.problem_types import TYPES
from pillarbox.api.validation_messages import message_for
from pillarbox.errors import (
    IdempotencyConflict,
    InvalidMail,
    NotAllowed,
    NotFound,
    NotPossible,
    PillarboxError,
    Refused,
    RenderError,
    SecretError,
    StoreDataError,
    StoreError,
    Throttled,
    Unauthorized,
)
from pillarbox.telemetry import logs

log = logs.get("pillarbox.http")
MEDIA_TYPE = "application/problem+json"
# The path at which this server explains a type.
PROBLEMS_PATH = "/problems/"
# Seconds to wait when the database is unavailable: a restart takes about as long.
STORE_RETRY = 5
# Seconds to wait at overload: requests take milliseconds.
BUSY_RETRY = 1
# Errors listed in one response: the first ones are enough to correct a request.
MAX_FAULTS = 20
# Characters of a field name repeated in a response; known names are shorter.
MAX_FIELD_LENGTH = 100


_BY_STATUS = {400: "malformed", 404: "not-found", 405: "method-not-allowed"}
# Errors that operations raise on purpose; all others are logged and become `internal`.
EXPECTED = (InvalidMail, RenderError, Refused, NotFound, NotPossible, SecretError, StoreError)
# Names of fields of a mail that differ in this API.
_FIELDS = {"sender": "from"}
_CODES = {"missing": "missing", "extra_forbidden": "unknown_field"}


class ProblemError(Exception):
    """An error response; `more` are further members of its body."""

    def __init__(
        self,
        name: str,
        detail: str,
        *,
        code: str | None = None,
        field: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.name = name
        self.type = TYPES[name]
        self.headers = dict(headers or {})
        given = {"detail": detail, "code": code, "field": field, "hint": hint, **more}
        self.members = {key: value for key, value in given.items() if value is not None}

    def body(self) -> dict[str, Any]:
        head = {
            "type": PROBLEMS_PATH + self.name,
            "title": self.type.title,
            "status": self.type.status,
        }
        return head | self.members

    def response(self) -> Response:
        # Escaped to ASCII: a name from the request may contain a lone surrogate.
        return Response(json.dumps(self.body()), self.type.status, self.headers, MEDIA_TYPE)


def problem_of(error: BaseException) -> ProblemError:
    """Any error as a problem. Unexpected exceptions become `internal`, without details."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, PillarboxError):
        return _of_pillarbox_error(error)
    if isinstance(error, HTTPException):
        return _of_http(error)
    return ProblemError(
        "internal", "the request failed with an internal error; see the log of the server"
    )


def _of_pillarbox_error(error: PillarboxError) -> ProblemError:
    match error:
        case IdempotencyConflict():
            return _of_field("idempotency-conflict", error)
        case InvalidMail():
            return _of_field("invalid-mail", error)
        case RenderError():
            return _of_template(error)
        case NotAllowed():
            return _of_field("not-allowed", error)
        case Unauthorized():
            headers = {"WWW-Authenticate": 'Bearer realm="pillarbox"'}
            return ProblemError(
                "unauthorized", "send a valid API key: Authorization: Bearer pbx_…", headers=headers
            )
        case Throttled():
            return ProblemError(
                "throttled", str(error), headers={"Retry-After": str(math.ceil(error.retry_after))}
            )
        case NotFound():
            return ProblemError("not-found", "nothing with this id or name exists")
        case NotPossible():
            return ProblemError("not-possible", str(error))
        case SecretError():  # details of keys are not for tenants
            return ProblemError(
                "not-possible",
                "this installation has no encryption key for secrets: ask its operator",
            )
        case StoreDataError():
            log.error("PostgreSQL refused a value of a request", error=str(error))
            return ProblemError(
                "invalid-request",
                "PostgreSQL cannot store a value of the request",
                code="not_storable",
            )
        case StoreError():
            return ProblemError(
                "store-away",
                "the database is unavailable",
                headers={"Retry-After": str(STORE_RETRY)},
            )
    return ProblemError(
        "internal", "the request failed with an internal error; see the log of the server"
    )


def _of_field(name: str, error: InvalidMail | NotAllowed) -> ProblemError:
    field = _FIELDS.get(error.field, error.field)
    return ProblemError(name, error.message, code=error.code, field=field, hint=error.hint)


def _of_template(error: RenderError) -> ProblemError:
    code, field = "bad_value", "template"
    if error.variable is not None:
        code, field = "missing", f"data.{error.variable}"
    return ProblemError(
        "template",
        error.message,
        code=code,
        field=field[:MAX_FIELD_LENGTH],
        template=error.template,
        part=error.part,
        line=error.line,
        variable=error.variable,
    )


def _of_http(error: HTTPException) -> ProblemError:
    default = "malformed" if error.status_code < 500 else "internal"
    name = _BY_STATUS.get(error.status_code, default)
    details = {
        "not-found": "the path does not exist",
        "method-not-allowed": "the path does not support this method",
    }
    return ProblemError(
        name, details.get(name, "the request cannot be handled"), headers=error.headers
    )


def options_answer(request: Request, error: BaseException) -> Response | None:
    """The response to OPTIONS: the methods of the path; None for any other request."""
    if not isinstance(error, HTTPException) or error.status_code != 405:
        return None
    if request.method != "OPTIONS":
        return None
    return Response(status_code=204, headers=error.headers)


def busy(detail: str) -> ProblemError:
    return ProblemError("overloaded", detail, headers={"Retry-After": str(BUSY_RETRY)})


def invalid(
    error: ValidationError | Sequence[Mapping[str, Any]], *before: str | int
) -> ProblemError:
    """Validation errors of pydantic as a problem, without values; `before` is a path prefix."""
    if isinstance(error, ValidationError):
        error = error.errors(include_url=False, include_input=False)
    if any(each["type"] == "json_invalid" for each in error):
        return ProblemError("malformed", "the body is not JSON")
    faults = [_fault(each, before) for each in error[:MAX_FAULTS]]
    first = faults[0]
    return ProblemError(
        "invalid-request", first["detail"], code=first["code"], field=first["field"], errors=faults
    )


def _fault(error: Mapping[str, Any], before: tuple[str | int, ...]) -> dict[str, str]:
    field = path_of((*before, *error["loc"]))
    return {"field": field, "code": _code_of(error["type"]), "detail": message_for(error)}


def _code_of(kind: str) -> str:
    if kind in _CODES:
        return _CODES[kind]
    return "bad_type" if kind.endswith("_type") else "bad_value"


def path_of(location: Sequence[str | int]) -> str:
    """The path of a value in a body: `attachments[0].content`."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")[:MAX_FIELD_LENGTH] or "body"
