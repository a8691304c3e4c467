"""Routes: authenticate a request before its body is read, and parse the body once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.responses import Response

from pillarbox.api.auth import CONTEXT, AnonymousContext, RequestContext, authenticate, peer_of
from pillarbox.api.bodies import LONG, SMALL, check_json
from pillarbox.api.openapi import PUBLIC
from pillarbox.api.problems import EXPECTED, ProblemError, invalid, problem_of
from pillarbox.model.access import Scope

if TYPE_CHECKING:
    from starlette.types import Receive, Send
    from starlette.types import Scope as ASGIScope

    from pillarbox.api.bodies import BodyBudget
    from pillarbox.app import App

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
KEY_HEADER = "idempotency-key"


class OperationRoute(APIRoute):
    """An operation that needs scopes, with a small body or none; FastAPI parses its parameters."""

    max_body = SMALL

    @property
    def scopes(self) -> list[Scope]:
        """The scopes that a key needs, as the OpenAPI description has them."""
        assert self.openapi_extra is not None
        return [Scope(scope) for scope in self.openapi_extra["security"][0]["key"]]

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        has_body = self.body_field is not None

        async def run(request: Request) -> Response:
            app, bodies = server_state(request)
            request.scope[CONTEXT] = await self._admit(request, app)
            if not has_body:
                return await handle(request)
            check_json(request.headers)
            with bodies.hold(self.max_body) as body:
                return await handle(
                    BufferedRequest(request, await body.read(request.headers, request.receive))
                )

        return run

    async def _admit(self, request: Request, app: App) -> RequestContext | AnonymousContext:
        return await authenticate(request, app, self.scopes)


class PublicRoute(OperationRoute):
    """An operation that needs no key, such as a login; the OpenAPI description says so, too."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        assert self.openapi_extra == PUBLIC, "a public operation must be described as PUBLIC"

    @property
    def scopes(self) -> list[Scope]:
        return []

    async def _admit(self, request: Request, app: App) -> RequestContext | AnonymousContext:
        return AnonymousContext(app, peer_of(request))


class LargeBodyRoute(OperationRoute):
    """An operation with a larger body, such as a list of addresses."""

    max_body = LONG


class BufferedRequest(Request):
    """A request whose body was already read."""

    def __init__(self, request: Request, body: bytes) -> None:
        super().__init__(request.scope, request.receive)
        self._given = body

    async def body(self) -> bytes:
        return self._given

    async def json(self) -> Any:
        return from_json(self._given)


class SubmissionRoute(OperationRoute):
    """An operation that accepts mails: its large body is parsed from bytes to the model at once."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        run = self.get_route_handler()

        async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
            """As FastAPI's, without its exit stacks for files and dependencies: there are none."""
            try:
                response = await run(Request(scope, receive))
            except (ProblemError, *EXPECTED) as error:
                response = problem_of(error).response()
            await response(scope, receive, send)

        self.app = app

    def get_route_handler(self) -> Handler:
        call, scopes = self.endpoint, self.scopes
        assert self.body_field is not None
        model: Any = self.body_field.field_info.annotation

        async def run(request: Request) -> Response:
            app, bodies = server_state(request)
            context = await authenticate(request, app, scopes)
            headers = request.headers
            check_json(headers)
            with bodies.hold(app.settings.http_max_body) as body:
                given = parsed(model, await body.read(headers, request.receive))
                answer: Response = await call(context, given, headers.get(KEY_HEADER))
                return answer

        return run


def parsed(model: type[BaseModel], body: bytes) -> Any:
    """The body as a model; ProblemError if it is invalid."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error) from None


def server_state(request: Request) -> tuple[App, BodyBudget]:
    """The application and the body budget of the server."""
    return request.app.state.context  # type: ignore[no-any-return]


async def request_context(request: Request) -> RequestContext:
    context: RequestContext = request.scope[CONTEXT]
    return context


async def anonymous_context(request: Request) -> AnonymousContext:
    context: AnonymousContext = request.scope[CONTEXT]
    return context


# The parameter of an operation that receives the request context.
Context = Annotated[RequestContext, Depends(request_context)]
# The same for a public operation.
Anonymous = Annotated[AnonymousContext, Depends(anonymous_context)]


def router(kind: type[APIRoute] = OperationRoute) -> APIRouter:
    return APIRouter(route_class=kind)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def adapter_of(record: object) -> TypeAdapter[Any]:
    """Serializes records of this type; made once for each type."""
    kind: Any = type(record)
    return _adapter(kind)


def json_response(
    record: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """A record of `pillarbox.wire`, or a model of the API, as the response."""
    body = adapter_of(record).dump_json(record, by_alias=True)
    return Response(body, status, headers, "application/json")


def plain_json(record: object) -> Any:
    """A record as the values of JSON, to be a part of a response."""
    return adapter_of(record).dump_python(record, mode="json", by_alias=True)
