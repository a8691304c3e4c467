"""The HTTP door: health, metrics, a status page, captured mails. Starlette and uvicorn in our own loop."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from pillarbox.api import page
from pillarbox.errors import NotFound, SchemaMismatch, SettingsError, StoreError
from pillarbox.store import catalog
from pillarbox.store.migrations import check_schema
from pillarbox.store.statistics import statistics
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pillarbox.app import App

log = logs.get("pillarbox.http")
# Whoever probes takes a longer wait for a failure; orchestrators allow one to a few seconds.
READY_TIMEOUT = 2.0
# Requests under way when we stop; none of ours takes longer.
GOODBYE_TIMEOUT = 5
CAPTURED_SHOWN = 50
ALWAYS_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


async def serve_http(app: App, stop: asyncio.Event, ready: Callable[[str], None] | None = None) -> None:
    """Answer HTTP until `stop`; `ready` gets the URL once somebody can connect."""
    host, _ = app.settings.http_address
    with _listen(*app.settings.http_address) as listener:
        port = listener.getsockname()[1]
        config = uvicorn.Config(
            build(app, host),
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=GOODBYE_TIMEOUT,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = _url(host, port)
        log.info("listening", port=port)
        if ready:
            ready(url)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """Signals are the command's business, not the server's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, or an error that says what to do."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise SettingsError(f"cannot listen on {_where(host, port)}: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise SettingsError(f"{_where(host, port)} {reason}: choose another with --http HOST:PORT") from None
    return listener


def _where(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _url(host: str, port: int) -> str:
    wildcard = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- where it listens, not where it is reached
    return f"http://{_where(wildcard.get(host, host), port)}/"


def build(app: App, host: str) -> Starlette:
    """The application for a server that listens on `host`."""
    site = Site(app, private=is_loopback(host))
    routes = [
        Route("/", site.status),
        Route("/healthz", site.healthz),
        Route("/readyz", site.readyz),
        Route("/metrics", site.metrics),
        Route("/captured", site.captured),
        Route("/captured/{number:int}", site.captured_mail),
    ]
    handlers = {StoreError: _store_away, NotFound: _not_found}
    return Starlette(routes=routes, middleware=[Middleware(Guard, host=host)], exception_handlers=handlers)


def is_loopback(host: str) -> bool:
    address = _ip(host)
    return address.is_loopback if address else host.lower() == "localhost"


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class Guard:
    """Refuses foreign Host headers (a web page that rebinds its name to us); sets what all answers carry."""

    HEADERS = (
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"no-store"),
        (b"content-security-policy", page.POLICY.encode()),
    )

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._host = host.lower()
        address = _ip(host)
        self._everywhere = address is not None and address.is_unspecified

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.HEADERS]
            await send(message)

        answer: ASGIApp = self._app
        if scope["type"] == "http" and not self.knows(Headers(scope=scope).get("host", "")):
            answer = PlainTextResponse("this host name is not served here\n", 421)
        await answer(scope, receive, guarded)

    def knows(self, header: str) -> bool:
        """Whether a Host header names us; listening everywhere, any bare address does: no name is in it."""
        name = header.lower().rsplit(":", 1)[0] if not header.endswith("]") else header.lower()
        name = name.removeprefix("[").removesuffix("]")
        if name in ALWAYS_LOCAL or name == self._host:
            return True
        return self._everywhere and (_ip(name) is not None or name == socket.gethostname().lower())


class Site:
    """What is served. `private`: only this machine can reach it, so captured mails may be shown."""

    def __init__(self, app: App, private: bool) -> None:
        self._app = app
        self._private = private

    async def healthz(self, request: Request) -> Response:
        """The process lives."""
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """The database answers, and its schema fits."""
        try:
            async with asyncio.timeout(READY_TIMEOUT), self._app.database.connection() as connection:
                await check_schema(connection)
        except SchemaMismatch as error:
            return PlainTextResponse(f"{error}\n", 503)
        except (StoreError, TimeoutError):
            return PlainTextResponse("the database does not answer\n", 503)
        return PlainTextResponse("ready\n")

    async def metrics(self, request: Request) -> Response:
        return Response(self._app.metrics.render(), media_type=CONTENT_TYPE)

    async def status(self, request: Request) -> Response:
        numbers = await statistics(self._app.database)
        mails = await catalog.list_captured(self._app.database, 10) if self._private else None
        return HTMLResponse(page.status(numbers, mails))

    async def captured(self, request: Request) -> Response:
        if not self._private:
            return _private_only()
        before = request.query_params.get("before", "")
        mails = await catalog.list_captured(
            self._app.database, CAPTURED_SHOWN, int(before[:18]) if before.isdecimal() else None
        )
        return HTMLResponse(page.captured(mails, len(mails) == CAPTURED_SHOWN))

    async def captured_mail(self, request: Request) -> Response:
        """The exact bytes; text/plain, so that a browser runs nothing of a hostile mail."""
        if not self._private:
            return _private_only()
        content = await catalog.captured_content(self._app.database, request.path_params["number"])
        return Response(content, media_type="text/plain")


def _private_only() -> Response:
    text = "captured mails are shown only when listening on this machine alone; use `pillarbox captured list`\n"
    return PlainTextResponse(text, 403)


async def _store_away(request: Request, error: Exception) -> Response:
    return HTMLResponse(page.away(), 503)


async def _not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse("not found\n", 404)
