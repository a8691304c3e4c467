"""The HTTP of the twins: a lean server on httptools, fast enough to stand against a benchmark."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import parse_qsl, unquote

import httptools

# Larger than the largest mail that any of the services takes, in base64 (SES: 40 MB).
MAX_BODY = 64 * 2**20
JSON = "application/json"


@dataclass(slots=True)
class Request:
    """A request as it came; the names of headers are in lower case."""

    method: str
    target: str  # as it stood in the request line
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    def json(self) -> Any:
        """What the body says; ValueError when it is not JSON."""
        return json.loads(self.body)


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def rendered(self) -> bytes:
        lines = [f"{name}: {value}\r\n" for name, value in self.headers.items()]
        head = (
            f"{_status_line(self.status)}Content-Length: {len(self.body)}\r\n{''.join(lines)}\r\n"
        )
        return head.encode("latin-1", "replace") + self.body


@cache
def _status_line(status: int) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:  # Mailgun's 420
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n"


def json_answer(status: int, body: object, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, json.dumps(body).encode(), {"Content-Type": JSON, **(headers or {})})


class Connection(asyncio.Protocol):
    """One client. `arrived` gets every whole request and answers, now or later, or closes."""

    def __init__(
        self, arrived: Callable[[Connection, Request], None], open_ones: set[Connection]
    ) -> None:
        self._arrived = arrived
        self._open = open_ones  # of which this one is while it lasts
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()  # pipelined requests, while one is being answered
        self._busy = False
        self._last = False  # the client wants no more answers on this connection
        self.lost = False
        self._begin()

    def _begin(self) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._open.discard(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.answer(Answer(400, headers={"Connection": "close"}))
            self.close()

    # what the parser calls

    def on_message_begin(self) -> None:
        self._begin()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if key in self._headers:
            text = f"{self._headers[key]},{text}"
        self._headers[key] = text

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= MAX_BODY:
            self._body.append(body)
        elif self._body:
            self._body.clear()
            self.answer(Answer(413, headers={"Connection": "close"}))
            self.close()

    def on_message_complete(self) -> None:
        if self._size > MAX_BODY:
            return
        method = self._parser.get_method().decode("latin-1")
        request = Request(
            method, self._target.decode("latin-1"), self._headers, b"".join(self._body)
        )
        self._last = not self._parser.should_keep_alive()
        if self._busy:
            self._waiting.append(request)
            return
        self._busy = True
        self._arrived(self, request)

    # what the twin calls

    def answer(self, answer: Answer) -> None:
        if not self.lost:
            self._transport.write(answer.rendered())
        self._busy = False
        if self._waiting and not self.lost:
            self._busy = True
            self._arrived(self, self._waiting.popleft())
        elif self._last:
            self.close()

    def close(self) -> None:
        """Close once everything is written."""
        if not self.lost:
            self._transport.close()

    def abort(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be gone
            self._transport.abort()
