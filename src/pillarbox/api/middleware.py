"""ASGI middleware: checks Host and Origin, limits and counts requests, sets security headers."""

from __future__ import annotations

import ipaddress
import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from pillarbox.api import status_pages
from pillarbox.api.problems import ProblemError, busy, problem_of
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.http")
# Answered under any load: an orchestrator stops a process that does not answer them.
PROBES = frozenset({"/healthz", "/readyz"})
# Requests to these paths are signed. Providers call them by any host name.
SIGNED = "/webhooks/"
API = "/api/"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    address = ip_of(host)
    return address.is_loopback if address else host.lower() == "localhost"


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def host_of_header(header: str) -> str:
    """The host in a Host header, without port and brackets."""
    name = header.lower()
    if not name.endswith("]"):
        name = name.rsplit(":", 1)[0]
    return name.removeprefix("[").removesuffix("]")


def host_of_origin(origin: str) -> str:
    """The host in an Origin header; empty if it has none, such as `null`."""
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""


def _may_be_form(scope: Scope) -> bool:
    """Whether a request may be a form of the account pages: browsers send it with Origin `null`.

    These pages forbid referrers. A form contains the signed link; the API accepts no forms.
    """
    return bool(scope["method"] == "POST" and not scope["path"].startswith(API))


class HostMiddleware:
    """Refuses unknown Host and Origin headers, and adds security headers to every response."""

    HEADERS = (
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"no-store"),
        (b"content-security-policy", status_pages.POLICY.encode()),
    )

    def __init__(self, app: ASGIApp, host: str, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._names = LOCAL_NAMES | {host.lower(), *hosts}
        address = ip_of(host)
        self._everywhere = address is not None and address.is_unspecified

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {name for name, _ in given}
                message["headers"] = given + [
                    header for header in self.HEADERS if header[0] not in names
                ]
            await send(message)

        answer: ASGIApp = self._app
        if scope["type"] == "http" and not scope["path"].startswith(SIGNED):
            problem = self._refusal(Headers(scope=scope), _may_be_form(scope))
            if problem is not None:
                answer = problem.response()
        await answer(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers, may_be_form: bool) -> ProblemError | None:
        host = headers.get("host", "")
        if not self.knows(host):
            return ProblemError(
                "wrong-host", "the host name of the request is not one of `http_hosts`"
            )
        origin = headers.get("origin")
        if origin is None or (may_be_form and origin == "null"):
            return None
        name = host_of_origin(origin)
        if self._is_known_name(name) or name == host_of_header(host):
            return None
        return ProblemError(
            "foreign-origin", "requests from pages of other servers are not accepted"
        )

    def knows(self, header: str) -> bool:
        """Whether a Host header names this server."""
        return self._is_known_name(host_of_header(header)) or "*" in self._names

    def _is_known_name(self, name: str) -> bool:
        """Whether a name is served; a server on all interfaces also serves any IP address."""
        if name in self._names:
            return True
        if not self._everywhere:
            return False
        return ip_of(name) is not None or name == socket.gethostname().lower()


class RequestMiddleware:
    """Counts, times and limits requests; unexpected exceptions become `internal`."""

    def __init__(self, app: ASGIApp, metrics: Metrics, limit: int) -> None:
        self._app = app
        self._metrics = metrics
        self._limit = limit
        self._now = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._now += 1
        try:
            if self._now > self._limit and scope["path"] not in PROBES:
                await busy("too many requests are being handled").response()(
                    scope, receive, send_and_note
                )
            else:
                await self._app(scope, receive, send_and_note)
        except ClientDisconnect:
            pass  # the client is gone
        except Exception as error:
            log.error("a request failed", route=route_of(scope), exc=error)
            if not status:
                await problem_of(error).response()(scope, receive, send_and_note)
        finally:
            self._now -= 1
            self._metrics.request(
                route_of(scope), scope["method"], status, time.perf_counter() - started
            )


def route_of(scope: Scope) -> str:
    """The path template of the matched route: a bounded number of labels."""
    route = scope.get("route")
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    return f"{scope.get('root_path', '')}{path}" if path else "none"
