"""Reads the bodies of requests within two limits: one per body, and one for all together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from pillarbox.api.problems import ProblemError, busy

if TYPE_CHECKING:
    from types import TracebackType

    from starlette.datastructures import Headers
    from starlette.types import Receive

# Bytes of a body with a few values, such as a time or the settings of a tenant.
SMALL = 64 * 1024
# Bytes of a thousand addresses of maximal length, each with a note.
LONG = 1024 * 1024


class BodyBudget:
    """The bytes that the bodies of all requests may hold at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def hold(self, limit: int) -> RequestBody:
        return RequestBody(self, limit)


class RequestBody:
    """The body of one request; its bytes are given back to the budget at the end."""

    __slots__ = ("_budget", "_held", "_limit")

    def __init__(self, budget: BodyBudget, limit: int) -> None:
        self._budget = budget
        self._limit = limit
        self._held = 0

    def __enter__(self) -> RequestBody:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._budget.used -= self._held

    async def read(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body, or a ProblemError before more than the limit was read."""
        self._check_length(headers.get("content-length"))
        chunks = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk, more = message.get("body", b""), message.get("more_body", False)
            self._take(len(chunk))
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _check_length(self, length: str | None) -> None:
        """Refuse a body whose Content-Length is over the limit, before reading it."""
        if length is None or not length.isascii() or not length.isdecimal():
            return
        if int(length[:18]) > self._limit:
            self._refuse()

    def _take(self, size: int) -> None:
        self._held += size
        self._budget.used += size
        if self._held > self._limit:
            self._refuse()
        if self._budget.used > self._budget.limit:
            raise busy("too many large requests are being handled")

    def _refuse(self) -> None:
        raise ProblemError("too-large", f"the body must be at most {self._limit} bytes")


def check_json(headers: Headers) -> None:
    """Refuse a body whose Content-Type is not JSON."""
    kind = media_type(headers)
    if kind == "application/json":
        return
    if not kind.startswith("application/") or not kind.endswith("+json"):
        raise ProblemError("unsupported-media-type", "the body must be application/json")


def check_media_type(headers: Headers, expected: str) -> None:
    """Refuse a body with a different Content-Type."""
    if media_type(headers) != expected:
        raise ProblemError("unsupported-media-type", f"the body must be {expected}")


def media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()
