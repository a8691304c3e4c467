"""One call of the API without I/O: the request, the result, and when to repeat it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode, urlsplit

from pillarbox.client.problems import error_of, retry_after
from pillarbox.client.reading import Record, read
from pillarbox.errors import NoAnswer

Result = TypeVar("Result")
API_PREFIX = "/api/v1"
DEFAULT_URL = "http://127.0.0.1:8025"
# Seconds for one attempt: the server allows a minute for a request to arrive.
TIMEOUT = 30.0
# How often a request is repeated: with the waits, long enough for a restart of the server or its
# database.
RETRIES = 5
# Seconds before the first repetition, if the server names none; doubled each time.
FIRST_WAIT = 0.2
# A longer Retry-After is an error: the caller should not be blocked for so long.
MAX_WAIT = 30.0
# The statuses of a server or proxy that is temporarily unable to answer.
TEMPORARY = frozenset({429, 502, 503, 504})
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. `repeatable`: performing it twice has the same effect as once."""

    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response. Header names are matched in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


def _is_finished(response: HttpResponse) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[Result]):
    """A request, and how to read its response."""

    request: HttpRequest
    reads: Callable[[HttpResponse], Result]
    is_finished: Callable[[HttpResponse], bool] = _is_finished

    def read(self, outcome: HttpResponse | NoAnswer) -> Result:
        """The result; raises the error in the response, or NoAnswer."""
        if isinstance(outcome, NoAnswer):
            raise outcome
        if outcome.status >= 300:
            raise error_of(outcome.status, outcome.headers, outcome.body)
        try:
            return self.reads(outcome)
        except (LookupError, TypeError, ValueError) as error:
            raise NoAnswer("the response is not one of Pillarbox", outcome.status) from error

    def wait(
        self, outcome: HttpResponse | NoAnswer, tried: int, retries: int, chance: float
    ) -> float | None:
        """Seconds to wait before repeating; None: do not repeat. `chance` is in [0, 1)."""
        if tried >= retries or not self._may_help(outcome):
            return None
        wait = None
        if isinstance(outcome, HttpResponse):
            wait = retry_after(outcome.headers)
        if wait is None:
            return float(FIRST_WAIT * 2**tried * (0.5 + chance / 2))
        return wait if wait <= MAX_WAIT else None

    def _may_help(self, outcome: HttpResponse | NoAnswer) -> bool:
        """Whether repeating may help, and cannot perform a request twice that must not be."""
        if isinstance(outcome, NoAnswer):
            return self.request.repeatable or not outcome.reached
        if outcome.status in TEMPORARY:
            return self.request.repeatable or outcome.status == 429
        return outcome.status < 300 and not self.is_finished(outcome)


def get(
    path: str, kind: type[Record], parameters: Sequence[tuple[str, Any]] = ()
) -> ApiCall[Record]:
    """GET a record. Parameters that are None are left out."""
    query = urlencode([(name, value) for name, value in parameters if value is not None])
    target = f"{path}?{query}" if query else path
    return ApiCall(HttpRequest("GET", target), reading(kind))


def send_json(
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    kind: type[Record],
    *,
    repeatable: bool = True,
) -> ApiCall[Record]:
    """Send a body, or None, and read a record."""
    if body is None:
        return ApiCall(HttpRequest(method, path, repeatable=repeatable), reading(kind))
    content = json.dumps(body).encode()
    return ApiCall(HttpRequest(method, path, content, JSON, repeatable), reading(kind))


def delete(path: str) -> ApiCall[None]:
    """DELETE; not repeatable: the second time, nothing is found."""
    return ApiCall(HttpRequest("DELETE", path, repeatable=False), nothing)


def download(path: str) -> ApiCall[bytes]:
    """GET a body that is not JSON."""
    request = HttpRequest("GET", path, headers={"Accept": "*/*"})
    return ApiCall(request, lambda response: response.body)


def reading(kind: type[Record]) -> Callable[[HttpResponse], Record]:
    """Reads the body of a response as a record."""
    return lambda response: read(kind, json.loads(response.body))


def nothing(response: HttpResponse) -> None:
    """Reads a response without a body."""


def address(base_url: str) -> str:
    """The URL of the API; ValueError if `base_url` is not a URL of a server."""
    parts = urlsplit(base_url)
    is_server = parts.scheme in ("http", "https") and parts.hostname
    if not is_server or parts.query or parts.fragment or parts.username:
        raise ValueError("base_url must be like https://mail.example.com")
    return base_url.rstrip("/").removesuffix(API_PREFIX) + API_PREFIX


def headers(api_key: str | None, version: str) -> dict[str, str]:
    """The headers of every request."""
    common = {"Accept": "application/json", "User-Agent": f"pillarbox-python/{version}"}
    if api_key is None:
        return common
    if not api_key.isascii() or not api_key.isprintable() or not api_key.strip():
        raise ValueError("api_key must be a key such as pbx_…")
    return common | {"Authorization": f"Bearer {api_key.strip()}"}
