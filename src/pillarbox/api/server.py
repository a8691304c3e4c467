"""The HTTP server: the API, health probes, metrics, the status page and captured mails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from pillarbox.api import status_pages
from pillarbox.api.accounts import AccountEndpoint
from pillarbox.api.auth import check_metrics, check_operator, needs_no_key
from pillarbox.api.connections import ConnectionLimits, ServerLimits
from pillarbox.api.feedback import FeedbackEndpoint
from pillarbox.api.forwarding import ForwardedMiddleware
from pillarbox.api.middleware import HostMiddleware, RequestMiddleware, is_loopback
from pillarbox.api.problem_types import TYPES
from pillarbox.api.problems import options_answer, problem_of
from pillarbox.api.protocol import HttpConnection
from pillarbox.api.v1 import API_PREFIX, ApiApplication
from pillarbox.errors import NotFound, Refused, StoreError, TaskEnded, WrongDatabase
from pillarbox.model.proxies import TrustedProxies
from pillarbox.sockets import listen, show_address
from pillarbox.store import catalog
from pillarbox.store.migrations import check_schema
from pillarbox.store.statistics import statistics
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from socket import socket

    from starlette.requests import Request

    from pillarbox.app import App

log = logs.get("pillarbox.http")
# Orchestrators take a longer wait for a failure; they allow one to a few seconds.
READY_TIMEOUT = 2.0
# Seconds for requests in progress at shutdown; no operation takes longer.
GOODBYE_TIMEOUT = 5
CAPTURED_SHOWN = 50


class Digits(IntegerConvertor):
    """A number of limited length: Python refuses to parse very long ones."""

    regex = "[0-9]{1,18}"


register_url_convertor("digits", Digits())


async def serve_http(
    app: App, stop: asyncio.Event, ready: Callable[[str], None] | None = None
) -> None:
    """Serve HTTP until `stop`; `ready` gets the URL when the server accepts connections."""
    host, _ = app.settings.http_address
    app.lifecycle.templates  # noqa: B018 -- reads them now: an invalid folder is an error here
    with listen(*app.settings.http_address, "http") as listener:
        port = listener.getsockname()[1]

        def notify() -> None:
            log.info("listening", port=port)
            if ready:
                ready(_url(host, port))

        await serve_until(stop, _config(app, host), listener, notify)


async def serve_until(
    stop: asyncio.Event, config: uvicorn.Config, listener: socket, ready: Callable[[], None]
) -> None:
    """Run uvicorn on a socket until `stop`; `ready` is called when it has started."""
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    ready()
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving
    if not stop.is_set():
        raise TaskEnded("the HTTP server ended before it was stopped")


def _config(app: App, host: str) -> uvicorn.Config:
    settings = app.settings
    server_limits = ServerLimits(
        settings.http_connections, settings.http_connections_per_peer, settings.http_request_timeout
    )
    proxies = TrustedProxies(settings.trusted_proxies)
    limits = ConnectionLimits(server_limits, proxies, app.metrics)
    requests = RequestMiddleware(build(app, host), app.metrics, settings.http_concurrency)
    return uvicorn.Config(
        ForwardedMiddleware(requests, proxies),
        http=partial(HttpConnection, limits=limits),  # type: ignore[arg-type]
        ws="none",
        proxy_headers=False,  # ForwardedMiddleware trusts fewer proxies than uvicorn
        timeout_keep_alive=settings.http_keep_alive,  # type: ignore[arg-type]  # any number will do
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=GOODBYE_TIMEOUT,
    )


class _Server(uvicorn.Server):
    """Leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _url(host: str, port: int) -> str:
    wildcard = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- of a listener
    return f"http://{show_address(wildcard.get(host, host), port)}/"


def build(app: App, host: str) -> Starlette:
    """The application for a server that listens on `host`."""
    site = Site(app, private=is_loopback(host))
    routes = [
        Mount(API_PREFIX, ApiApplication(app)),
        Route("/", site.status),
        Route("/healthz", site.healthz),
        Route("/readyz", site.readyz),
        Route("/metrics", site.metrics),
        Route("/captured", site.captured),
        Route("/captured/{number:digits}", site.captured_mail),
        Route("/problems", site.problems),
        Route("/problems/{name}", site.problems),
        Route(
            "/webhooks/{provider_kind}/{provider_id:digits}",
            FeedbackEndpoint(app),
            methods=["POST"],
        ),
    ]
    handlers = {
        StoreError: _database_unavailable,
        NotFound: _not_found,
        Refused: _refused,
        HTTPException: _refused,
    }
    hosts = app.settings.http_hosts if app else ()  # None: only to list the routes
    guard = Middleware(HostMiddleware, host=host, hosts=hosts)
    served = Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)
    served.router.default = AccountEndpoint(
        app, served.router.default
    )  # what no route above answers
    return served


class Site:
    """The pages. `private`: the server listens on a loopback address, and shows captured mails."""

    def __init__(self, app: App, private: bool) -> None:
        self._app = app
        self._private = private

    async def healthz(self, request: Request) -> Response:
        """Liveness: the event loop answers, and no task has ended permanently."""
        if ended := self._app.supervisor.dead():
            return PlainTextResponse(f"{ended} ended\n", 503)
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Readiness: the database is writable, the schema fits, the worker claims and settles."""
        try:
            async with (
                asyncio.timeout(READY_TIMEOUT),
                self._app.database.connection() as connection,
            ):
                await check_schema(connection)
                read_only = await connection.fetchval(
                    "SELECT current_setting('transaction_read_only')::bool"
                )
        except WrongDatabase as error:
            return PlainTextResponse(f"{error}\n", 503)
        except (StoreError, TimeoutError):
            return PlainTextResponse("the database is unavailable\n", 503)
        if read_only:
            return PlainTextResponse("the database is read-only\n", 503)
        if failing := self._app.supervisor.not_ready():
            return PlainTextResponse(f"{failing} fails; see the log\n", 503)
        return PlainTextResponse("ready\n")

    async def metrics(self, request: Request) -> Response:
        await check_metrics(request, self._app)
        return Response(self._app.metrics.render(), media_type=CONTENT_TYPE)

    async def status(self, request: Request) -> Response:
        await check_operator(request, self._app)
        numbers = await statistics(self._app.database)
        mails = None
        if self._shows_captured(request):
            mails = await catalog.list_captured(self._app.database, 10)
        return HTMLResponse(status_pages.status(numbers, mails))

    def _shows_captured(self, request: Request) -> bool:
        """Captured mails contain codes and links: only `up` shows them, only to this machine."""
        return self._private and needs_no_key(request, self._app)

    async def problems(self, request: Request) -> Response:
        """Explains all problem types, or one."""
        name = request.path_params.get("name")
        if name is not None and name not in TYPES:
            raise NotFound("there is no problem type with this name")
        names = TYPES if name is None else [name]
        return HTMLResponse(status_pages.problems(names))

    async def captured(self, request: Request) -> Response:
        if not self._shows_captured(request):
            return _private_only()
        text = request.query_params.get("before", "")
        before = int(text[:18]) if text.isdecimal() else None
        mails = await catalog.list_captured(self._app.database, CAPTURED_SHOWN, before)
        return HTMLResponse(status_pages.captured(mails, len(mails) == CAPTURED_SHOWN))

    async def captured_mail(self, request: Request) -> Response:
        """The exact bytes; as text/plain, so that a browser runs no script of a hostile mail."""
        if not self._shows_captured(request):
            return _private_only()
        content = await catalog.captured_content(self._app.database, request.path_params["number"])
        return Response(content, media_type="text/plain")


def _private_only() -> Response:
    text = (
        "captured mails are shown by `pillarbox up` to this machine only:"
        " use `pillarbox captured list`\n"
    )
    return PlainTextResponse(text, 403)


async def _database_unavailable(request: Request, error: Exception) -> Response:
    return HTMLResponse(status_pages.database_unavailable(), 503)


async def _refused(request: Request, error: Exception) -> Response:
    return options_answer(request, error) or problem_of(error).response()


async def _not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse("not found\n", 404)
