"""The transport of all HTTP providers; a `ProviderApi` holds what differs between them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress

from aiohttp import ClientTimeout

from pillarbox.deliver.transports.base import OutgoingMail, SendResult
from pillarbox.deliver.transports.http_client import FAILURES, HttpClient, failed
from pillarbox.deliver.transports.http_send import HttpSend, ProviderApi
from pillarbox.errors import NotPossible, NotStarted
from pillarbox.model.provider_kind import TransportLimits

NOT_NOW = "the provider is not used at the moment"


class HttpTransport:
    """Sends mails through one HTTP provider; see the Transport port for what it promises.

    Not guaranteed: a request that was sent completely and got no response is unknown, and the mail
    may arrive twice if it is sent again. Waiting mails start in the order of `send`, but end in any
    order.
    """

    def __init__(
        self, client: HttpClient, api: ProviderApi, connections: int, timeout: float
    ) -> None:
        self._client = client
        self.api = api
        self._connections = connections
        self._timeout = ClientTimeout(total=timeout)
        self._url = api.build_check().url
        self._busy = 0
        self._active: set[HttpSend] = set()
        self._waiting: deque[asyncio.Future[NotStarted | None]] = deque()
        self._closing = False
        self._emptied: asyncio.Future[None] | None = None

    @property
    def limits(self) -> TransportLimits:
        return self.api.limits

    @property
    def connections(self) -> int:
        return self._connections

    @property
    def connections_open(self) -> int:
        """The connections to its host, which all providers there share."""
        return self._client.connections(self._url)

    @property
    def connections_busy(self) -> int:
        return self._busy

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def send(self, outgoing: OutgoingMail) -> SendResult:
        if self._closing:
            raise NotStarted("the transport is closing")
        if self._busy < self._connections:  # no mail waits while there is room
            self._busy += 1
        else:
            await self._wait_for_turn()
        sending = HttpSend(self.api, self._client, self._timeout, outgoing)
        self._active.add(sending)
        try:
            return await sending.run()
        finally:
            self._active.discard(sending)
            self._pass_on()

    async def _wait_for_turn(self) -> None:
        """Wait until another mail is done; raises NotStarted when recalled."""
        waiter: asyncio.Future[NotStarted | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            refusal = await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):  # `_pass_on` has skipped it already
                    self._waiting.remove(waiter)
            elif waiter.result() is None:  # its turn came in the same moment: pass it on
                self._pass_on()
            raise
        if refusal is not None:
            raise refusal

    def _pass_on(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._busy -= 1
        if not self._busy and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def recall(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(NotStarted(NOT_NOW))
        for sending in self._active:
            sending.withdraw(NOT_NOW)

    async def check(self) -> str:
        request = self.api.build_check()
        try:
            response = await self._client.request(request, None, self._timeout)
        except FAILURES as error:
            outcome = failed(error, None)
            raise NotPossible(f"{outcome.reason}: {outcome.text}") from None
        return self.api.read_check(response, time.time())

    async def close(self) -> None:
        """Wait for the mails in flight; the connections belong to the client."""
        self._closing = True
        self.recall()
        if self._busy:
            self._emptied = self._emptied or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._emptied)
