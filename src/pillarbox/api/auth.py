"""Authenticates HTTP requests: by API key, by session, or in `up` by their loopback address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pillarbox.api.forwarding import PROXIED
from pillarbox.api.middleware import LOCAL_NAMES, host_of_header, host_of_origin, is_loopback
from pillarbox.errors import Unauthorized
from pillarbox.model.access import Principal, Scope, Tenant, require, require_admin, require_metrics
from pillarbox.store.admins import SESSION_PREFIX

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.requests import HTTPConnection

    from pillarbox.app import App

# Headers that proxies add: behind a proxy the client only seems to be on this machine.
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
CONTEXT = "pillarbox.context"


@dataclass(frozen=True, slots=True)
class AnonymousContext:
    """The context of a request without a key: what it may do is proven by its body."""

    app: App
    peer: str


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The principal of a request, its tenant, and the application that serves it."""

    app: App
    principal: Principal
    _tenant: Tenant | None

    @property
    def tenant(self) -> Tenant:
        assert self._tenant is not None, "an operation of administrators has no tenant"
        return self._tenant

    @property
    def actor(self) -> dict[str, str]:
        """The actor, as events record it."""
        return {"who": self.principal.kind, "name": self.principal.name}


async def authenticate(
    request: HTTPConnection, app: App, scopes: Sequence[Scope]
) -> RequestContext:
    """The context of a request whose principal has these scopes.

    Raises Unauthorized, Throttled or NotAllowed.
    """
    principal = await _principal_of(request, app)
    tenant = None
    for scope in scopes:
        if scope is Scope.ADMIN:
            require_admin(principal)
        else:
            tenant = require(principal, scope)
    return RequestContext(app, principal, tenant)


async def _principal_of(request: HTTPConnection, app: App) -> Principal:
    if needs_no_key(request, app):
        return await app.authenticator.development()
    token = bearer_of(request)
    if token.startswith(SESSION_PREFIX):
        return await app.authenticator.by_session(token, peer_of(request))
    return await app.authenticator.by_key(token, peer_of(request))


def bearer_of(request: HTTPConnection) -> str:
    """The key or session of a request; Unauthorized if it has none, or several."""
    values = request.headers.getlist("authorization")
    scheme, _, token = values[0].partition(" ") if values else ("", "", "")
    if len(values) != 1 or scheme.lower() != "bearer":
        raise Unauthorized(
            "a key is required: create one with `pillarbox key add` and send it as"
            " `Authorization: Bearer …`"
        )
    return token.strip()


def peer_of(request: HTTPConnection) -> str:
    """The IP address of the client."""
    return request.client.host if request.client else ""


def needs_no_key(request: HTTPConnection, app: App) -> bool:
    """Whether a request is accepted without a key: in `up`, from this machine, if it has none."""
    return app.keyless and "authorization" not in request.headers and is_local(request)


def is_local(request: HTTPConnection) -> bool:
    """Whether a request seems to come from this machine, and not from a web page of another host.

    A proxy on this machine that rewrites Host and adds no header cannot be distinguished. Therefore
    this grants access in `up` only, never in `serve`.
    """
    headers = request.headers
    if request.client is None or not is_loopback(request.client.host):
        return False
    if PROXIED in request.scope or any(name in headers for name in FORWARDED):
        return False
    return host_of_header(headers.get("host", "")) in LOCAL_NAMES and _is_same_site(headers)


def _is_same_site(headers: Headers) -> bool:
    """Whether Origin and Sec-Fetch-Site, which browsers send, allow a request."""
    origin = headers.get("origin")
    if origin is not None and host_of_origin(origin) not in LOCAL_NAMES:
        return False
    return headers.get("sec-fetch-site", "none") in ("none", "same-origin")


async def check_operator(request: HTTPConnection, app: App) -> None:
    """Raise unless the client is an administrator, or in `up` a process on this machine."""
    if not needs_no_key(request, app):
        await authenticate(request, app, [Scope.ADMIN])


async def check_metrics(request: HTTPConnection, app: App) -> None:
    """Raise unless the client may read the metrics."""
    if app.settings.metrics_access != "open" and not needs_no_key(request, app):
        require_metrics(await _principal_of(request, app))
