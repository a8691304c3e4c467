"""SMTP: a pool of pipelining connections to one server."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import aiosmtplib

from pillarbox.deliver.transports.base import OutgoingMail, SendResult, TransportContext
from pillarbox.deliver.transports.smtp_connection import ReadyConnection, SmtpConnection
from pillarbox.deliver.transports.smtp_handshake import HandshakeFailed, SmtpConnector
from pillarbox.deliver.transports.smtp_transaction import SmtpTransaction, not_delivered
from pillarbox.errors import NotPossible, NotStarted
from pillarbox.model.outcome import Reason
from pillarbox.model.provider_kinds.smtp import KIND, SmtpSettings

# Seconds between failed connects, doubled each time: they spare a server that is down, and find one
# that restarts soon.
FIRST_BACKOFF = 0.1
MAX_BACKOFF = 2.0


class SmtpTransport:
    """Sends mails through one SMTP server; see the Transport port for what it promises.

    Not guaranteed: a mail whose final dot was written when the connection broke is unknown, and
    may arrive twice if it is sent again. Waiting mails start in the order of `send`, but end in
    any order.
    """

    limits = KIND.limits

    def __init__(self, settings: SmtpSettings) -> None:
        self._settings = settings
        self._connector = SmtpConnector(settings)
        self._waiting: deque[SmtpTransaction] = deque()
        self._connections: set[SmtpConnection] = set()
        self._idle: list[SmtpConnection] = []  # last in, first out: the others can expire
        self._connecting: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._not_before = 0.0  # when the next connect may begin
        self._retry: asyncio.TimerHandle | None = None
        self._closing = False
        self._emptied: asyncio.Future[None] | None = None

    @property
    def connections(self) -> int:
        return self._settings.connections

    @property
    def connections_open(self) -> int:
        return len(self._connections)

    @property
    def connections_busy(self) -> int:
        return len(self._connections) - len(self._idle)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def send(self, outgoing: OutgoingMail) -> SendResult:
        if self._closing:
            raise NotStarted("the transport is closing")
        loop = asyncio.get_running_loop()
        transaction = SmtpTransaction(outgoing, loop.create_future(), loop.time())
        self._waiting.append(transaction)
        self._assign()
        try:
            result = await transaction.future
        except asyncio.CancelledError:
            with suppress(ValueError):  # being sent already: its result is dropped
                self._waiting.remove(transaction)
            raise
        if type(result) is SendResult:
            return result
        raise result

    def recall(self) -> None:
        self._give_back_waiting("the provider is not used at the moment")
        for task in self._connecting:
            task.cancel()
        for connection in list(self._connections):
            connection.recall()

    def _give_back_waiting(self, why: str) -> None:
        while self._waiting:
            self._waiting.popleft().give_back(why)

    async def check(self) -> str:
        try:
            handshake = await self._connector.greet(self._settings.connect_timeout)
        except HandshakeFailed as failed:
            raise NotPossible(f"{failed.outcome.reason}: {failed}") from None
        try:
            line = handshake.describe()
            await handshake.client.noop()
            await handshake.client.quit()
        except (aiosmtplib.SMTPException, TimeoutError, OSError) as error:
            raise NotPossible(f"{line}; but then: {error}") from None
        finally:
            handshake.client.close()
        return line

    async def close(self) -> None:
        self._closing = True
        if self._retry is not None:
            self._retry.cancel()
        self._give_back_waiting("the transport was closed")
        while self._idle:
            self._idle.pop().quit()
        try:
            await self._stop_connecting()
            await self._wait_until_closed()
        except asyncio.CancelledError:
            for connection in self._connections:
                connection.abort()
            raise

    async def _stop_connecting(self) -> None:
        while self._connecting:
            for task in self._connecting:
                task.cancel()
            # Python 3.11's wait_for, which aiosmtplib uses, can swallow a cancellation: repeat it.
            _, self._connecting = await asyncio.wait(self._connecting, timeout=0.1)

    async def _wait_until_closed(self) -> None:
        if self._connections:
            self._emptied = self._emptied or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._emptied)

    # --- what connections ask ---

    def take(self) -> SmtpTransaction | None:
        """The next mail that may begin."""
        while self._waiting:
            transaction = self._waiting.popleft()
            if not transaction.future.done() and transaction.may_begin("while the mail waited"):
                return transaction
        return None

    def requeue(self, transaction: SmtpTransaction, reason: Reason, why: str, link: str) -> None:
        """Put a mail that has not begun back, once; `gone` follows and finds it a connection."""
        if transaction.future.done():
            return
        if self._closing:
            transaction.give_back("the transport was closed")
        elif transaction.requeued:
            not_delivered(transaction, reason, why, asyncio.get_running_loop().time(), link)
        else:
            transaction.again()
            self._waiting.appendleft(transaction)

    def rest(self, connection: SmtpConnection) -> None:
        if self._closing:
            connection.quit()
        else:
            self._idle.append(connection)

    def gone(self, connection: SmtpConnection) -> None:
        self._connections.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)
        self._assign()

    # --- matching mails and connections ---

    def _assign(self) -> None:
        """Assign waiting mails to idle connections, or open new ones; busy ones take the rest."""
        while self._waiting and self._idle:
            self._idle.pop().feed()
        if (
            len(self._connections) < self._settings.connections
            and self._waiting
            and not self._closing
        ):
            self._open_connections()

    def _open_connections(self) -> None:
        room = self._settings.connections - len(self._connections) - len(self._connecting)
        wanted = min(len(self._waiting) - len(self._connecting), room)
        if self._failures or not self._connections:
            wanted = self._probe(wanted)
        for _ in range(wanted):
            task = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add(task)
            task.add_done_callback(self._connect_ended)

    def _probe(self, wanted: int) -> int:
        """While connecting fails, and before the first success: one attempt at a time."""
        if self._connecting or wanted < 1:
            return 0
        loop = asyncio.get_running_loop()
        if loop.time() >= self._not_before:
            return 1
        if self._retry is None:
            self._retry = loop.call_at(self._not_before, self._resume)
        return 0

    def _resume(self) -> None:
        self._retry = None
        self._not_before = 0.0
        self._assign()

    async def _connect(self) -> None:
        # The backoff counts: no mail waits longer than connect_timeout for a connection.
        timeout = self._settings.connect_timeout - self._backoff()
        try:
            link = await self._connector.open(timeout)
        except HandshakeFailed as failed:
            self._connect_failed(failed)
        else:
            self._connected(link)

    def _connect_ended(self, task: asyncio.Task[None]) -> None:
        """Continue after an unexpected error: the waiting mails need another connection."""
        self._connecting.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        loop = asyncio.get_running_loop()
        loop.call_exception_handler(
            {"message": "connecting broke", "exception": error, "task": task}
        )
        self._failures += 1
        self._not_before = loop.time() + self._backoff()
        self._assign()

    def _connected(self, link: ReadyConnection) -> None:
        self._forget_connecting()
        self._failures = 0
        connection = SmtpConnection(self, link, self._settings)
        self._connections.add(connection)
        connection.feed()
        self._assign()

    def _forget_connecting(self) -> None:
        """The current task no longer counts as connecting."""
        task = asyncio.current_task()
        assert task is not None
        self._connecting.discard(task)

    def _backoff(self) -> float:
        if not self._failures:
            return 0.0
        longest = min(MAX_BACKOFF, self._settings.connect_timeout / 4)
        return min(FIRST_BACKOFF * 2.0 ** min(self._failures - 1, 10), longest)

    def _connect_failed(self, failed: HandshakeFailed) -> None:
        """Defer the mails that no other connection can take, and those that waited too long."""
        self._forget_connecting()
        now = asyncio.get_running_loop().time()
        self._failures += 1
        self._not_before = now + self._backoff()
        spared = self._may_wait(failed)
        waiting, self._waiting = self._waiting, deque()
        for place, transaction in enumerate(reversed(waiting)):
            if place < spared and now - transaction.queued < self._settings.connect_timeout:
                self._waiting.appendleft(transaction)
            else:
                transaction.end(failed.outcome, now, failed.transcript)
        self._assign()

    def _may_wait(self, failed: HandshakeFailed) -> int:
        """How many of the waiting mails, from the last, may wait for another connection."""
        if self._connecting or any(not connection.over for connection in self._connections):
            return len(self._waiting)
        if self._failures == 1 and failed.outcome.reason is Reason.UNAVAILABLE:
            return (
                len(self._waiting) - 1
            )  # the first failure costs one mail, and the others try again
        return 0


def build_transport(settings: SmtpSettings, context: TransportContext) -> SmtpTransport:
    return SmtpTransport(settings)
