"""A webhook receiver for tests: records calls, verifies signatures, and fails on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

from pillarbox.client.webhook import verify_webhook
from pillarbox.errors import InvalidWebhook
from pillarbox.testing.certificates import Certificate


@dataclass(frozen=True, slots=True)
class Received:
    """A received call. `told` is its content, None if no secret of the receiver verifies it."""

    id: str
    headers: Mapping[str, str]
    body: bytes
    told: Mapping[str, Any] | None

    @property
    def type(self) -> str:
        if not self.told:
            return ""
        return str(self.told["type"])

    @property
    def data(self) -> Mapping[str, Any]:
        if not self.told:
            return {}
        return dict(self.told["data"])


@dataclass(slots=True)
class ReceiverDials:
    """The behaviour of the receiver: its status, redirect, and faults."""

    status: int = 200
    body: str = ""
    redirect: str | None = None
    hang: bool = False
    drop: bool = False
    endless: bool = False
    times: int | None = None  # for how many calls these hold; None: until changed


@dataclass(slots=True)
class WebhookReceiver:
    """Use as `async with WebhookReceiver() as receiver`, and give `receiver.url` to `webhook add`.

    With a `certificate` it speaks TLS.
    """

    secrets: list[str] = field(default_factory=list)
    dials: ReceiverDials = field(default_factory=ReceiverDials)
    calls: list[Received] = field(default_factory=list)
    url: str = ""
    port: int = 0
    certificate: Certificate | None = None
    _runner: web.AppRunner | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _let_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> WebhookReceiver:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._receive)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        scheme = "http"
        tls = None
        if self.certificate:
            scheme = "https"
            tls = self.certificate.server_context()
        site = web.TCPSite(
            self._runner,
            "127.0.0.1",
            self.port,
            ssl_context=tls,
        )
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"{scheme}://127.0.0.1:{self.port}/hooks"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._let_go.set()
        if self._runner is not None:
            await self._runner.cleanup()

    def let_go(self) -> None:
        """Answer the calls that hang."""
        self._let_go.set()
        self._let_go = asyncio.Event()

    async def wait_for(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until the condition holds; looked at after every call."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = dict(request.headers)
        call_id = request.headers.get("webhook-id", "")
        self.calls.append(
            Received(
                call_id,
                headers,
                body,
                self._verified(headers, body),
            )
        )
        dials = self._dials()
        self._changed.set()
        if dials.hang:
            await self._let_go.wait()
        if dials.drop and request.transport is not None:
            request.transport.abort()
        if dials.redirect:
            return web.Response(status=307, headers={"Location": dials.redirect})
        if dials.endless:
            return await self._talk(request)
        return web.Response(status=dials.status, text=dials.body)

    def _dials(self) -> ReceiverDials:
        dials = self.dials
        if dials.times is not None:
            dials.times -= 1
            if dials.times <= 0:
                self.dials = ReceiverDials()
        return dials

    def _verified(self, headers: Mapping[str, str], body: bytes) -> Mapping[str, Any] | None:
        for secret in self.secrets:
            try:
                return verify_webhook(headers, body, secret)
            except InvalidWebhook:
                continue
        return None

    async def _talk(self, request: web.Request) -> web.StreamResponse:
        """An answer without an end, until nobody listens."""
        answer = web.StreamResponse(status=500)
        await answer.prepare(request)
        while not self._let_go.is_set():
            await answer.write(b"x" * 8192)
        return answer
