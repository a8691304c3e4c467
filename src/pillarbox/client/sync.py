"""`pillarbox.Client`: the HTTP API for programs that wait for answers."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, Unpack
from uuid import UUID

import urllib3

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
from pillarbox.client.lists_sync import DeadLetterCalls, SuppressionCalls
from pillarbox.client.sign_in_sync import SignInCalls
from pillarbox.client.webhooks_sync import WebhookCalls
from pillarbox.errors import NoAnswer, PillarboxError

if TYPE_CHECKING:
    from types import TracebackType

Result = TypeVar("Result")
# Connections kept open: as many threads can use one client without waiting for a handshake.
CONNECTIONS = 10


class Client(DeadLetterCalls, SuppressionCalls, WebhookCalls, SignInCalls):
    """Hands mails over by the HTTP API, and tells what became of them. Threads can share one.

    What is lost on the way is repeated with the same idempotency key, `retries` times at most;
    `timeout` is for one try, in seconds. Without a key it can only talk to an installation in
    development, on the same machine.
    """

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
        self._timeout = urllib3.Timeout(total=timeout)
        self._retries = retries
        self._pool = urllib3.PoolManager(
            maxsize=CONNECTIONS, retries=False, ssl_context=ssl_context
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def send(self, mail: Mail, **words: Unpack[TemplateOptions]) -> Sent:
        """Hand a mail over; returns when it is committed. With `template` it has no subject, text, html or raw."""
        return self._run(calls.send(mail, words))

    def send_many(self, mails: Iterable[Mail], *, idempotency_key: str | None = None) -> Results:
        """Hand several mails over; returns for each, in order, what was accepted or the error that it met.

        If a whole call fails before anything was accepted, its error is raised instead.
        """
        batches = Batches(list(mails), idempotency_key)
        for places, call in batches.calls():
            try:
                batches.put(places, self._run(call))
            except PillarboxError as error:
                batches.fail(places, error)
        return batches.results()

    def get(self, message_id: UUID | str) -> Message:
        """A message's whole story."""
        return self._run(calls.get(message_id))

    def list(self, **filters: Unpack[Filters]) -> Iterator[MessageSummary]:
        """The messages that fit all filters, newest first; fetched page by page as you go on."""
        return self._walk(calls.checked_filters(filters))

    def raw(self, message_id: UUID | str) -> bytes:
        """The mail as it is sent."""
        return self._run(calls.raw(message_id))

    def cancel(self, message_id: UUID | str) -> Changes:
        """Cancel what was not sent yet; NotPossible if nothing of it can be."""
        return self._run(calls.cancel(message_id))

    def reschedule(self, message_id: UUID | str, send_at: datetime) -> Changes:
        """Send what was not tried yet at another time; NotPossible if nothing of it can be."""
        return self._run(calls.reschedule(message_id, send_at))

    def resend(self, message_id: UUID | str, *, idempotency_key: str | None = None) -> Sent:
        """Send a message once more, as a new one; NotPossible if its content was dropped."""
        return self._run(calls.resend(message_id, idempotency_key))

    def _walk(self, filters: Sequence[tuple[str, str]]) -> Iterator[MessageSummary]:
        for page in self._pages(lambda cursor: calls.page(filters, cursor)):
            yield from page.messages

    def _run(self, call: ApiCall[Result]) -> Result:
        tried = 0
        while True:
            outcome = self._ask(call.request)
            wait = call.wait(outcome, tried, self._retries, random.random())  # noqa: S311 -- nothing secret
            if wait is None:
                return call.read(outcome)
            tried += 1
            time.sleep(wait)

    def _ask(self, request: HttpRequest) -> HttpResponse | NoAnswer:
        try:
            answer = self._pool.request(
                request.method,
                self._address + request.path,
                body=request.body,
                headers=self._headers | dict(request.headers),
                timeout=self._timeout,
                redirect=False,  # the key is for this server alone
            )
        except (
            urllib3.exceptions.NewConnectionError,
            urllib3.exceptions.ConnectTimeoutError,
        ) as error:
            return NoAnswer(f"no connection to the server: {type(error).__name__}", reached=False)
        except urllib3.exceptions.HTTPError as error:
            return NoAnswer(f"the server's answer was lost: {type(error).__name__}")
        return HttpResponse(answer.status, answer.headers, answer.data)
