"""The base of the operations of both clients: making calls, and fetching pages."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

import pillarbox
from pillarbox.client import api_call
from pillarbox.client.api_call import ApiCall, HttpRequest, HttpResponse
from pillarbox.errors import NoAnswer


class Paged(Protocol):
    """A page, and where the next one begins; None at the end."""

    @property
    def next_cursor(self) -> str | None: ...


Result = TypeVar("Result")
Page = TypeVar("Page", bound=Paged)


class Operations:
    """Operations as coroutines over `_ask` and `_sleep`, which each client implements."""

    def __init__(self, base_url: str, api_key: str | None, retries: int) -> None:
        self._address = api_call.address(base_url)
        self._headers = api_call.headers(api_key, pillarbox.__version__)
        self._retries = retries

    async def _ask(self, request: HttpRequest) -> HttpResponse | NoAnswer:
        """Send a request once; NoAnswer is returned, not raised."""
        raise NotImplementedError

    async def _sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def _run(self, call: ApiCall[Result]) -> Result:
        """Make a call, and repeat it while that may help."""
        tried = 0
        while True:
            outcome = await self._ask(call.request)
            chance = random.random()  # noqa: S311 -- spreads the retries; nothing secret
            wait = call.wait(outcome, tried, self._retries, chance)
            if wait is None:
                return call.read(outcome)
            tried += 1
            await self._sleep(wait)

    async def _pages(self, after: Callable[[str | None], ApiCall[Page]]) -> AsyncIterator[Page]:
        """Page after page; each is fetched when the caller asks for it."""
        cursor = None
        while True:
            page = await self._run(after(cursor))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return
