"""The HTTP API, `/api/v1`: all operations, their OpenAPI description, and error responses."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route

from pillarbox.api import (
    admin,
    admin_login,
    batch,
    dlq,
    keys,
    listing,
    messages,
    openapi,
    reports,
    resend,
    routes,
    sign_in,
    status_pages,
    suppression_files,
    suppressions,
    webhooks,
)
from pillarbox.api.auth import authenticate
from pillarbox.api.bodies import BodyBudget
from pillarbox.api.problems import EXPECTED, ProblemError, invalid, options_answer, problem_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pillarbox.app import App

API_PREFIX = "/api/v1"
VERSION = "1"
TITLE = "Pillarbox"
DESCRIPTION = """\
Send mails, read their status, and change mails that are not sent yet.

Send an API key as `Authorization: Bearer pbx_…`; `security` of each operation names the required
scopes. Errors are problems (RFC 9457) with a stable `type`. Unknown fields in a request are errors.
"""
TAGS = [
    {"name": "messages", "description": "Mails and their deliveries."},
    {"name": "dead letters", "description": "Failed deliveries, and reprocessing them."},
    {"name": "suppressions", "description": "Addresses to which mails are not sent."},
    {"name": "routes", "description": "The provider of a mail, and why it was chosen."},
    {"name": "keys", "description": "Keys and SMTP logins of the tenant."},
    {"name": "webhooks", "description": "HTTP calls to the tenant about events of its mails."},
    {"name": "admin", "description": "The installation: tenants, all keys and logins."},
    {"name": "sign-in", "description": "Codes by mail, for accounts."},
    {
        "name": "sign-in of administrators",
        "description": "Sessions, for administrators without a key.",
    },
]
KEY = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "pbx_… or pbs_…",
    "description": "An API key; for the scope `admin` also a session of an administrator.",
}
# The most frequent route comes first: routes are tried in order.
ROUTERS = (
    messages.submissions,
    batch.routes,
    listing.routes,
    messages.routes,
    resend.routes,
    keys.routes,
    admin.routes,
    routes.routes,
    dlq.routes,
    suppressions.larger,
    suppression_files.routes,
    suppressions.routes,
    webhooks.routes,
    reports.routes,
    sign_in.routes,
    admin_login.public,
    admin_login.routes,
)
OPERATIONS = [route for router in ROUTERS for route in router.routes]


class ApiApplication(FastAPI):
    """The API of one installation; None: only to generate its description."""

    def __init__(self, app: App | None) -> None:
        extra: list[BaseRoute] = [Route("/openapi.json", self._described), Route("/", self._shown)]
        super().__init__(
            routes=[*OPERATIONS, *extra],
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            exception_handlers={
                **dict.fromkeys((*EXPECTED, ProblemError, HTTPException, Exception), _answer),
                RequestValidationError: _answer_invalid,
            },
        )
        if app is not None:
            self.state.context = (app, BodyBudget(app.settings.http_bytes_in_flight))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As Starlette: FastAPI's telemetry would read the environment at every request."""
        await Starlette.__call__(self, scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        return description()

    async def _described(self, request: Request) -> Response:
        await self._check(request)
        return JSONResponse(description())

    async def _shown(self, request: Request) -> Response:
        await self._check(request)
        return HTMLResponse(status_pages.operations(description(), API_PREFIX))

    async def _check(self, request: Request) -> None:
        """Raise unless the client has a key, with any scope: scanners get no description."""
        app, _ = self.state.context
        await authenticate(request, app, [])


@cache
def description() -> dict[str, Any]:
    """The OpenAPI 3.1 description of the API."""
    document = get_openapi(
        title=TITLE,
        version=VERSION,
        description=DESCRIPTION,
        routes=OPERATIONS,
        tags=TAGS,
        servers=[{"url": API_PREFIX}],
    )
    parts = document["components"]
    parts["securitySchemes"] = {"key": KEY}
    problem = openapi.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    parts["schemas"] |= problem.pop("$defs", {}) | {"Problem": problem}
    parts["schemas"] |= openapi.deprecated_schemas()
    _remove_default_errors(document)
    return document


def _remove_default_errors(document: dict[str, Any]) -> None:
    """Remove FastAPI's default response to invalid parameters, which this API does not use."""
    for methods in document["paths"].values():
        for operation in methods.values():
            if "application/json" in operation["responses"].get("422", {}).get("content", ()):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        # Starlette names the methods of the first route only that has the path.
        error = HTTPException(405, headers={"Allow": _methods(request)})
    return options_answer(request, error) or problem_of(error).response()


def _methods(request: Request) -> str:
    """The methods of a path; for `/messages/batch` without those of `/messages/{message_id}`."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    exact = [route for route in found if "{" not in route.path]
    methods = {method for route in exact or found for method in route.methods or ()}
    return ", ".join(sorted(methods | {"OPTIONS"}))


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(each["loc"][0] == "path" for each in found):  # an invalid id or name is not found
        return ProblemError("not-found", "nothing with this id or name exists").response()
    return invalid([{**each, "loc": each["loc"][1:]} for each in found]).response()
