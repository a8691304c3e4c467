"""The one HTTP client of a process: every provider's calls share its connections."""

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

# Shorter than any provider's own, which are a minute and more: a connection that the server closes
# just when we write to it leaves a mail whose end nobody knows.
KEEPALIVE = 15.0
# Of a response, at most: real ones are a few hundred bytes, and nobody may fill our memory.
MAX_ANSWER = 65_536
FAILURES = (ClientError, OSError, TimeoutError)


class _Connector(TCPConnector):
    """Counts the connections that are open, by host and port. How many there may be, each transport says."""

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=KEEPALIVE)
        self.open: Counter[tuple[str | None, int | None]] = Counter()

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        connection = await super()._create_connection(req, traces, timeout)
        if (
            closed := getattr(connection, "closed", None)
        ) is not None:  # before 3.12 nobody is told
            key = (req.url.host, req.url.port)
            self.open[key] += 1
            closed.add_done_callback(partial(self._gone, key))
        return connection

    def _gone(self, key: tuple[str | None, int | None], closed: asyncio.Future[None]) -> None:
        self.open[key] -= 1
        if not closed.cancelled():
            closed.exception()  # seen; whoever used the connection was told, too


class HttpClient:
    """Owns the session; opened by the first call, so that commands that call nobody pay nothing."""

    def __init__(self) -> None:
        self._session: ClientSession | None = None
        self._connector: _Connector | None = None

    def open(self) -> ClientSession:
        """The session. No cookies, no proxies of the environment, TLS verified, nothing compressed."""
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

    def connections(self, call_url: Any) -> int:
        """How many connections to that host and port are open."""
        return self._connector.open[call_url.host, call_url.port] if self._connector else 0

    async def request(
        self, call: ProviderRequest, body: ProviderRequestBody | None, timeout: ClientTimeout
    ) -> ProviderResponse:
        """Make a call; never follows a redirect, which would carry the credentials elsewhere. Raises FAILURES."""
        async with self.open().request(
            call.method,
            call.url,
            headers=call.headers,
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
    """The body as far as it comes: the status has said what counts, and a response that breaks off says no less."""
    try:
        length = response.content_length
        if length is not None and length <= MAX_ANSWER:
            return await response.read()
        pieces, size = [], 0
        async for piece in response.content.iter_any():
            pieces.append(piece)
            if (size := size + len(piece)) > MAX_ANSWER:
                response.close()
                break
        return b"".join(pieces)[:MAX_ANSWER]
    except FAILURES:
        return b""


def failed(error: BaseException, body: ProviderRequestBody | None) -> Outcome:
    """What a call that got no response means: the mail may have left only if all of it was handed over."""
    reason, text = _cause(error)
    if body is not None and body.whole:
        late = reason in (Reason.TIMEOUT, Reason.PROTOCOL)
        return unknown(reason if late else Reason.LOST, f"{text}; the mail may have left")
    return deferred(Reason.UNAVAILABLE if reason is Reason.PROTOCOL else reason, None, text)


def _cause(error: BaseException) -> tuple[Reason, str]:
    """The reason and words for it; not the error's own, which can hold the whole address."""
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
