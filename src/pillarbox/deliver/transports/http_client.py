"""The HTTP client of a process; the requests of all providers share its connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from importlib.metadata import version
from typing import Any

import aiohttp
from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
)

from pillarbox.deliver.transports.http_request import ProviderRequest, ProviderRequestBody
from pillarbox.deliver.transports.http_responses import ProviderResponse
from pillarbox.model.outcome import Outcome, Reason, deferred, unknown

# Seconds; shorter than any provider's own, a minute or more: if the server closes a connection
# while we write to it, the outcome of the mail is unknown.
KEEPALIVE = 15.0
# Bytes of a response that are read: real ones have a few hundred.
MAX_RESPONSE = 65_536
FAILURES = (ClientError, OSError, TimeoutError)


class _Connector(TCPConnector):
    """Counts the open connections by host and port; each transport limits its own."""

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=KEEPALIVE)
        self.open: Counter[tuple[str | None, int | None]] = Counter()

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        connection = await super()._create_connection(req, traces, timeout)
        closed = getattr(connection, "closed", None)
        if closed is not None:  # aiohttp before 3.12 does not have it
            key = (req.url.host, req.url.port)
            self.open[key] += 1
            closed.add_done_callback(partial(self._gone, key))
        return connection

    def _gone(self, key: tuple[str | None, int | None], closed: asyncio.Future[None]) -> None:
        self.open[key] -= 1
        if not closed.cancelled():
            closed.exception()  # retrieved; the sender got it, too


class HttpClient:
    """Owns the session, which the first request opens."""

    def __init__(self) -> None:
        self._session: ClientSession | None = None
        self._connector: _Connector | None = None

    def open(self) -> ClientSession:
        """The session: no cookies, no proxies of the environment, TLS verified, no compression."""
        if self._session is None:
            self._connector = _Connector()
            self._session = ClientSession(
                connector=self._connector,
                cookie_jar=DummyCookieJar(),
                headers={
                    "User-Agent": f"pillarbox/{version('pillarbox')}",
                    "Accept": "application/json",
                },
                skip_auto_headers=("Accept-Encoding",),
                auto_decompress=False,
            )
        return self._session

    def connections(self, url: Any) -> int:
        """How many connections to that host and port are open."""
        if self._connector is None:
            return 0
        return self._connector.open[url.host, url.port]

    async def request(
        self, request: ProviderRequest, body: ProviderRequestBody | None, timeout: ClientTimeout
    ) -> ProviderResponse:
        """Make a request. Raises FAILURES.

        It follows no redirect, which would send the credentials to another host.
        """
        async with self.open().request(
            request.method,
            request.url,
            headers=request.headers,
            data=body,
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            return ProviderResponse(response.status, response.headers, await _read(response))

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = self._connector = None


async def _read(response: ClientResponse) -> bytes:
    """The body; empty if it breaks off, because the status has decided already."""
    try:
        length = response.content_length
        if length is not None and length <= MAX_RESPONSE:
            return await response.read()
        pieces, size = [], 0
        async for piece in response.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_RESPONSE:
                response.close()
                break
        return b"".join(pieces)[:MAX_RESPONSE]
    except FAILURES:
        return b""


def failed(error: BaseException, body: ProviderRequestBody | None) -> Outcome:
    """The outcome of a request without a response: unknown only if the whole body was sent."""
    reason, text = _cause(error)
    if body is None or not body.whole:
        if reason is Reason.PROTOCOL:
            reason = Reason.UNAVAILABLE
        return deferred(reason, None, text)
    if reason not in (Reason.TIMEOUT, Reason.PROTOCOL):
        reason = Reason.LOST
    return unknown(reason, f"{text}; the mail may have left")


def _cause(error: BaseException) -> tuple[Reason, str]:
    """The reason and a text for it; not the error's own text, which can hold the whole URL."""
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ServerFingerprintMismatch):
        return Reason.TLS, f"TLS failed: {_words(error)}"
    if isinstance(error, TimeoutError):
        return Reason.TIMEOUT, "no response in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        return Reason.UNAVAILABLE, f"cannot connect: {_words(error)}"
    if isinstance(error, aiohttp.ClientResponseError):
        return Reason.PROTOCOL, "the response was not HTTP"
    return Reason.UNAVAILABLE, "the connection broke before a response came"


def _words(error: BaseException) -> str:
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    return (
        getattr(inner, "verify_message", None)
        or getattr(inner, "strerror", None)
        or type(inner).__name__
    )
