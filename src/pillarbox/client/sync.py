"""`pillarbox.Client`: the HTTP API for programs without an event loop.

Its methods are those of `AllOperations`. Their coroutines wait for nothing but `_ask` and `_sleep`,
which block here: each coroutine runs to its end in one step, and no event loop is needed.
"""

from __future__ import annotations

import inspect
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import urllib3

from pillarbox.client.all_operations import AllOperations
from pillarbox.client.api_call import DEFAULT_URL, RETRIES, TIMEOUT, HttpRequest, HttpResponse
from pillarbox.errors import NoAnswer

if TYPE_CHECKING:
    from types import TracebackType

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
# Connections kept open: as many threads can use one client without waiting for a handshake.
CONNECTIONS = 10


class _BlockingOperations(AllOperations):
    """The operations, with requests that block."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        timeout: float,
        retries: int,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        super().__init__(base_url, api_key, retries)
        self._timeout = urllib3.Timeout(total=timeout)
        self._pool = urllib3.PoolManager(
            maxsize=CONNECTIONS, retries=False, ssl_context=ssl_context
        )

    @property
    def address(self) -> str:
        return self._address

    def close(self) -> None:
        self._pool.clear()

    async def _ask(self, request: HttpRequest) -> HttpResponse | NoAnswer:
        try:
            response = self._pool.request(
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
        return HttpResponse(response.status, response.headers, response.data)

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 -- blocks on purpose


def _finish(awaitable: Awaitable[Result]) -> Result:
    """The result of a coroutine that never suspends."""
    try:
        awaitable.__await__().send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise RuntimeError("an operation of the blocking client was suspended")


def _each(items: AsyncIterator[Result]) -> Iterator[Result]:
    """The items of an iterator that never suspends."""
    try:
        while True:
            yield _finish(items.__anext__())
    except StopAsyncIteration:
        return
    finally:
        if isinstance(items, AsyncGenerator):
            _finish(items.aclose())


def _blocking(
    method: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Client, Parameters], Result]:
    """The method of `Client` that runs this operation to its end."""

    @wraps(method)
    def run(client: Client, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return _finish(method(client._operations, *args, **kwargs))

    return run


def _iterating(
    method: Callable[Concatenate[Any, Parameters], AsyncIterator[Result]],
) -> Callable[Concatenate[Client, Parameters], Iterator[Result]]:
    """The method of `Client` that walks through the results of this operation."""

    @wraps(method)
    def run(
        client: Client, /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Iterator[Result]:
        return _each(method(client._operations, *args, **kwargs))

    signature = inspect.signature(method)
    returned = str(signature.return_annotation).replace("AsyncIterator", "Iterator")
    run.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    return run


class Client:
    """Submits mails by the HTTP API, and reads what became of them. Threads can share one.

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
        self._operations = _BlockingOperations(base_url, api_key, timeout, retries, ssl_context)

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
        return f"{type(self).__name__}({self._operations.address!r})"

    def close(self) -> None:
        """Close the connections."""
        self._operations.close()

    send = _blocking(AllOperations.send)
    send_many = _blocking(AllOperations.send_many)
    get = _blocking(AllOperations.get)
    list = _iterating(AllOperations.list)
    raw = _blocking(AllOperations.raw)
    cancel = _blocking(AllOperations.cancel)
    reschedule = _blocking(AllOperations.reschedule)
    resend = _blocking(AllOperations.resend)

    dead_letters = _iterating(AllOperations.dead_letters)
    dead_letter_summary = _blocking(AllOperations.dead_letter_summary)
    reprocess = _blocking(AllOperations.reprocess)
    discard = _blocking(AllOperations.discard)

    suppressions = _iterating(AllOperations.suppressions)
    suppress = _blocking(AllOperations.suppress)
    unsuppress = _blocking(AllOperations.unsuppress)
    import_suppressions = _blocking(AllOperations.import_suppressions)
    export_suppressions = _blocking(AllOperations.export_suppressions)

    add_webhook = _blocking(AllOperations.add_webhook)
    webhooks = _blocking(AllOperations.webhooks)
    get_webhook = _blocking(AllOperations.get_webhook)
    change_webhook = _blocking(AllOperations.change_webhook)
    remove_webhook = _blocking(AllOperations.remove_webhook)
    rotate_webhook = _blocking(AllOperations.rotate_webhook)
    test_webhook = _blocking(AllOperations.test_webhook)
    webhook_calls = _iterating(AllOperations.webhook_calls)
    replay_webhook = _blocking(AllOperations.replay_webhook)

    begin_sign_in = _blocking(AllOperations.begin_sign_in)
    verify_sign_in = _blocking(AllOperations.verify_sign_in)
