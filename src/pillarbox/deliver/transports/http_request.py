"""One call to an HTTP provider: what is asked, how far it got, and its record for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from yarl import URL

from pillarbox.deliver.transports.http_responses import ProviderResponse, printable

# A body leaves in pieces of this size, so that one cut off in the midst is known not to have left
# wholly.
PIECE = 65_536
# What is kept of a response's body: an error of any provider with all its fields.
MAX_SHOWN = 4_000
# The header that carries our name for the attempt: a provider's support can find it.
CORRELATION = "X-Pillarbox-Attempt"
# The headers of a response that tell people something, and no secret.
TELLING = (
    "retry-after", "x-message-id", "x-request-id", "x-amzn-requestid", "x-amzn-errortype", "x-ratelimit-limit",
    "x-ratelimit-remaining", "x-ratelimit-reset", "location", "content-type",
)  # fmt: skip


@dataclass(slots=True)
class ProviderRequest:
    """A request about to be made. `headers` carry the credentials, and are never shown."""

    method: str
    url: URL
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)


class ProviderRequestBody(Payload):
    """A request's body that asks for leave before its first byte, and knows how far it got.

    aiohttp holds the head back until the body's first piece, so `refused` means that nothing left
    at all; older versions may have written the head, which no provider takes for a mail.
    """

    def __init__(self, value: bytes, content_type: str, may_begin: Callable[[], bool]) -> None:
        super().__init__(value, content_type=content_type)
        self._size = len(value)
        self._may_begin = may_begin
        self.refused: str | None = None  # why it was not begun
        self.begun = False
        self.whole = False  # the last piece was handed to the socket: the provider may have it all

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
        except Exception as error:  # the caller's own; it must not look like the provider's
            self.refused = f"may_begin failed: {error!r}"
            raise ConnectionAbortedError(self.refused) from None
        if not allowed:
            self.refused = "the right to send ended while the mail waited"
            raise ConnectionAbortedError(self.refused)


class HttpTranscript:
    """The exchange as people read it, like an SMTP transcript; made only when it is needed."""

    __slots__ = ("_entries", "started")

    def __init__(self, started: float) -> None:
        self.started = started
        self._entries: list[tuple[float, str, Any]] = []

    def asked(self, at: float, call: ProviderRequest, correlation: str) -> None:
        self._entries.append((at, "→", (call, correlation)))

    def answered(self, at: float, response: ProviderResponse) -> None:
        self._entries.append((at, "←", response))

    def remark(self, at: float, text: str) -> None:
        self._entries.append((at, "!", text))

    def text(self) -> str:
        """All of it; in words, without credentials."""
        return "\n".join(
            f"{(at - self.started) * 1000:+6.0f} ms {arrow} {printable(line)}"
            for at, arrow, said in self._entries
            for line in _lines(said)
        )


def _lines(said: Any) -> list[str]:
    if isinstance(said, ProviderResponse):
        return _response_lines(said)
    if isinstance(said, str):
        return [said]
    call, correlation = said
    lines = [
        f"{call.method} {call.url.raw_path_qs} HTTP/1.1",
        f"Host: {call.url.host_port_subcomponent}",
    ]
    return [*lines, f"{CORRELATION}: {correlation}", f"({len(call.body):,} bytes)"]


def _response_lines(response: ProviderResponse) -> list[str]:
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {response.status} {phrase}".rstrip()]
    lines += [
        f"{name}: {response.headers[name][:500]}" for name in TELLING if name in response.headers
    ]
    body = response.text
    if body:
        lines.append(
            body
            if len(body) <= MAX_SHOWN
            else f"{body[:MAX_SHOWN]} … ({len(response.body):,} bytes)"
        )
    return lines
