"""What the parts of both clients stand on: `_run`, which each client has, and walking pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol, TypeVar

from pillarbox.client.calls import ApiCall


class Paged(Protocol):
    """A part of a whole, and where the next one begins; None at the end."""

    @property
    def next_cursor(self) -> str | None: ...


Result = TypeVar("Result")
Page = TypeVar("Page", bound=Paged)


class Asking:
    """A part of `pillarbox.Client`."""

    def _run(self, call: ApiCall[Result]) -> Result:
        raise NotImplementedError

    def _pages(self, after: Callable[[str | None], ApiCall[Page]]) -> Iterator[Page]:
        """Page after page, each fetched when it is wanted."""
        cursor = None
        while True:
            page = self._run(after(cursor))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return


class AsyncAsking:
    """A part of `pillarbox.AsyncClient`."""

    async def _run(self, call: ApiCall[Result]) -> Result:
        raise NotImplementedError

    async def _pages(self, after: Callable[[str | None], ApiCall[Page]]) -> AsyncIterator[Page]:
        """Page after page, each fetched when it is wanted."""
        cursor = None
        while True:
            page = await self._run(after(cursor))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return
