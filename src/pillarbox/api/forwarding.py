"""Finds the client address of a request: that of the peer, or the one a trusted proxy names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pillarbox.model.proxies import TrustedProxies

# In the scope of a request that came through a trusted proxy.
PROXIED = "pillarbox.proxied"


class ForwardedMiddleware:
    """Replaces the client address of requests from trusted proxies; runs before all other code."""

    def __init__(self, app: ASGIApp, proxies: TrustedProxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if client is not None and self._proxies.trusts(client[0]):
            headers = Headers(scope=scope)
            forwarded = headers.getlist("x-forwarded-for"), headers.getlist("forwarded")
            scope["client"] = (self._proxies.client(client[0], *forwarded), client[1])
            scope[PROXIED] = True
        await self._app(scope, receive, send)
