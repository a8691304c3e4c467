"""`pillarbox.AsyncClient`: the HTTP API for programs in an event loop."""

from __future__ import annotations

import asyncio
import io
import random
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, Unpack
from uuid import UUID

import aiohttp

import pillarbox
from pillarbox.accept.mail import Mail
from pillarbox.client import calls
from pillarbox.client.answers import Changes, Message, MessageSummary, Sent
from pillarbox.client.batches import Batches, Results
from pillarbox.client.calls import (
    DEFAULT_URL,
    RETRIES,
    TIMEOUT,
    ApiCall,
    Filters,
    HttpRequest,
    HttpResponse,
    TemplateOptions,
)
from pillarbox.client.lists_async import AsyncDeadLetterCalls, AsyncSuppressionCalls
from pillarbox.client.sign_in_async import AsyncSignInCalls
from pillarbox.client.webhooks_async import AsyncWebhookCalls
from pillarbox.errors import NoAnswer, PillarboxError

if TYPE_CHECKING:
    from types import TracebackType

Result = TypeVar("Result")


class AsyncClient(AsyncDeadLetterCalls, AsyncSuppressionCalls, AsyncWebhookCalls, AsyncSignInCalls):
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
        self._address = calls.address(base_url)
        self._headers = calls.headers(api_key, pillarbox.__version__)
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._retries = retries
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

    async def send(self, mail: Mail, **words: Unpack[TemplateOptions]) -> Sent:
        """Hand a mail over; returns when it is committed. With `template` it has no subject, text, html or raw."""
        return await self._run(calls.send(mail, words))

    async def send_many(
        self, mails: Iterable[Mail], *, idempotency_key: str | None = None
    ) -> Results:
        """Hand several mails over; returns for each, in order, what was accepted or the error that it met.

        If a whole call fails before anything was accepted, its error is raised instead.
        """
        batches = Batches(list(mails), idempotency_key)
        for places, call in batches.calls():
            try:
                batches.put(places, await self._run(call))
            except PillarboxError as error:
                batches.fail(places, error)
        return batches.results()

    async def get(self, message_id: UUID | str) -> Message:
        """A message's whole story."""
        return await self._run(calls.get(message_id))

    def list(self, **filters: Unpack[Filters]) -> AsyncIterator[MessageSummary]:
        """The messages that fit all filters, newest first; fetched page by page as you go on."""
        return self._walk(calls.checked_filters(filters))

    async def raw(self, message_id: UUID | str) -> bytes:
        """The mail as it is sent."""
        return await self._run(calls.raw(message_id))

    async def cancel(self, message_id: UUID | str) -> Changes:
        """Cancel what was not sent yet; NotPossible if nothing of it can be."""
        return await self._run(calls.cancel(message_id))

    async def reschedule(self, message_id: UUID | str, send_at: datetime) -> Changes:
        """Send what was not tried yet at another time; NotPossible if nothing of it can be."""
        return await self._run(calls.reschedule(message_id, send_at))

    async def resend(self, message_id: UUID | str, *, idempotency_key: str | None = None) -> Sent:
        """Send a message once more, as a new one; NotPossible if its content was dropped."""
        return await self._run(calls.resend(message_id, idempotency_key))

    async def _walk(self, filters: Sequence[tuple[str, str]]) -> AsyncIterator[MessageSummary]:
        async for page in self._pages(lambda cursor: calls.page(filters, cursor)):
            for message in page.messages:
                yield message

    async def _run(self, call: ApiCall[Result]) -> Result:
        tried = 0
        while True:
            outcome = await self._ask(call.request)
            wait = call.wait(outcome, tried, self._retries, random.random())  # noqa: S311 -- nothing secret
            if wait is None:
                return call.read(outcome)
            tried += 1
            await asyncio.sleep(wait)

    async def _ask(self, request: HttpRequest) -> HttpResponse | NoAnswer:
        try:
            async with self._session().request(
                request.method,
                self._address + request.path,
                data=None
                if request.body is None
                else io.BytesIO(request.body),  # a file: sent bit by bit
                headers=self._headers | dict(request.headers),
                ssl=self._ssl,
                allow_redirects=False,  # the key is for this server alone
            ) as answer:
                return HttpResponse(answer.status, answer.headers, await answer.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return NoAnswer(f"no connection to the server: {type(error).__name__}", reached=False)
        except (aiohttp.ClientError, TimeoutError) as error:
            return NoAnswer(f"the server's answer was lost: {type(error).__name__}")

    def _session(self) -> aiohttp.ClientSession:
        """The session, made where there is a loop. No cookies: nothing here is said by them."""
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._opened
