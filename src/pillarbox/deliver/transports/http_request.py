"""One request to an HTTP provider: its body, how far it was sent, and its transcript."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from yarl import URL

from pillarbox.deliver.transports.http_responses import ProviderResponse, printable

# A body is sent in pieces of this size: one that was cut off is known to be incomplete.
PIECE = 65_536
# What is kept of a response's body: an error of any provider with all its fields.
MAX_SHOWN = 4_000
# The header with our id of the attempt, by which the provider's support can find it.
CORRELATION = "X-Pillarbox-Attempt"
# The headers of a response that help people, and hold no secret.
SHOWN_HEADERS = (
    "retry-after",
    "x-message-id",
    "x-request-id",
    "x-amzn-requestid",
    "x-amzn-errortype",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "location",
    "content-type",
)


@dataclass(slots=True)
class ProviderRequest:
    """A request about to be made. `headers` carry the credentials, and are never shown."""

    method: str
    url: URL
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)


class ProviderRequestBody(Payload):
    """A request's body that asks for permission before its first byte, and knows how far it got.

    aiohttp holds the head back until the body's first piece, so `refused` means that nothing was
    sent at all; older versions may have sent the head, which no provider takes for a mail.
    """

    def __init__(self, value: bytes, content_type: str, may_begin: Callable[[], bool]) -> None:
        super().__init__(value, content_type=content_type)
        self._size = len(value)
        self._may_begin = may_begin
        self.refused: str | None = None  # why it was not begun
        self.begun = False
        self.whole = False  # the last piece was written: the provider may have all of it

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value.decode(encoding, errors))

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        self._ask()
        self.begun = True
        size = len(self._value)
        if size <= PIECE:
            self.whole = True
            await writer.write(self._value)
            return
        view = memoryview(self._value)
        for at in range(0, size, PIECE):
            self.whole = at + PIECE >= size
            await writer.write(view[at : at + PIECE])

    def withdraw(self, why: str) -> bool:
        """Forbid it to begin; False if it has begun."""
        if not self.begun:
            self.refused = self.refused or why
        return not self.begun

    def _ask(self) -> None:
        if self.refused is not None:
            raise ConnectionAbortedError(self.refused)
        try:
            allowed = self._may_begin()
        except Exception as error:  # the caller's fault; it must not look like the provider's
            self.refused = f"may_begin failed: {error!r}"
            raise ConnectionAbortedError(self.refused) from None
        if not allowed:
            self.refused = "the right to send ended while the mail waited"
            raise ConnectionAbortedError(self.refused)


class HttpTranscript:
    """The requests and responses of one mail; the text is composed only when it is needed."""

    __slots__ = ("_entries", "started")

    def __init__(self, started: float) -> None:
        self.started = started
        self._entries: list[tuple[float, str, Callable[[], list[str]]]] = []

    def sent(self, at: float, request: ProviderRequest, correlation: str) -> None:
        self._entries.append((at, "→", partial(_request_lines, request, correlation)))

    def received(self, at: float, response: ProviderResponse) -> None:
        self._entries.append((at, "←", partial(_response_lines, response)))

    def remark(self, at: float, text: str) -> None:
        self._entries.append((at, "!", lambda: [text]))

    def text(self) -> str:
        """The whole transcript, without credentials."""
        lines = []
        for at, arrow, compose in self._entries:
            offset = f"{(at - self.started) * 1000:+6.0f} ms {arrow} "
            lines += [offset + printable(line) for line in compose()]
        return "\n".join(lines)


def _request_lines(request: ProviderRequest, correlation: str) -> list[str]:
    return [
        f"{request.method} {request.url.raw_path_qs} HTTP/1.1",
        f"Host: {request.url.host_port_subcomponent}",
        f"{CORRELATION}: {correlation}",
        f"({len(request.body):,} bytes)",
    ]


def _response_lines(response: ProviderResponse) -> list[str]:
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {response.status} {phrase}".rstrip()]
    headers = response.headers
    lines += [f"{name}: {headers[name][:500]}" for name in SHOWN_HEADERS if name in headers]
    body = response.text
    if len(body) > MAX_SHOWN:
        body = f"{body[:MAX_SHOWN]} … ({len(response.body):,} bytes)"
    if body:
        lines.append(body)
    return lines
