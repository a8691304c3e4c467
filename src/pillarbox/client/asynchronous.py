"""`pillarbox.AsyncClient`: the HTTP API for programs in an event loop."""

from __future__ import annotations

import asyncio
import io
import ssl
from typing import TYPE_CHECKING

import aiohttp

from pillarbox.client.all_operations import AllOperations
from pillarbox.client.api_call import DEFAULT_URL, RETRIES, TIMEOUT, HttpRequest, HttpResponse
from pillarbox.errors import NoAnswer

if TYPE_CHECKING:
    from types import TracebackType


class AsyncClient(AllOperations):
    """As `pillarbox.Client`, with methods that are awaited. Use it as `async with`, or close it."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(base_url, api_key, retries)
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._ssl = ssl_context or True
        self._opened: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"

    async def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()

    async def _ask(self, request: HttpRequest) -> HttpResponse | NoAnswer:
        # A file: sent in pieces.
        body = None if request.body is None else io.BytesIO(request.body)
        try:
            async with self._session().request(
                request.method,
                self._address + request.path,
                data=body,
                headers=self._headers | dict(request.headers),
                ssl=self._ssl,
                allow_redirects=False,  # the key is for this server alone
            ) as response:
                return HttpResponse(response.status, response.headers, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return NoAnswer(f"no connection to the server: {type(error).__name__}", reached=False)
        except (aiohttp.ClientError, TimeoutError) as error:
            return NoAnswer(f"the server's answer was lost: {type(error).__name__}")

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _session(self) -> aiohttp.ClientSession:
        """The session, created inside the event loop; it keeps no cookies."""
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._opened
