"""HTTP connections: uvicorn's, with limits on the arrival time and the header size of requests."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pillarbox.api.connections import RESERVED_TIMEOUT, ConnectionLimits, ProbesOnly
from pillarbox.api.problems import MEDIA_TYPE, ProblemError, busy

# Bytes of a request line and its header fields: four times the limit of browsers and proxies.
MAX_HEAD_BYTES = 32 * 1024
# Seconds for which the rest of a refused request is read and discarded. Closing at once would reset
# the connection, and the client's kernel would discard the answer before the client has read it.
LINGER = 2.0


class ResponseTransport:
    """The transport for uvicorn's request cycle: `close` waits until the response can be read."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        self._connection.close_after_response()


class HttpConnection(HttpToolsProtocol):
    """A connection with timeouts. A request that arrives in one piece needs no timer."""

    def __init__(self, *args: Any, limits: ConnectionLimits, **more: Any) -> None:
        super().__init__(*args, **more)
        self.peer = "unknown"
        self._limits = limits
        self._timeout = limits.server.request_timeout
        self._is_reserved = False
        self._timer: asyncio.TimerHandle | None = None
        self._lingers = False
        self._discards = False  # the last answer is written: what still arrives is not parsed
        self._in_head = False
        self._arriving = False  # between a request's first byte and its last
        self._head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None:  # it may be gone already
            self.peer = self.client[0]
        if not self._limits.admit(self):
            self._is_reserved = self._limits.reserve(self)
            self._limits.count_refused()
            if not self._is_reserved:
                self._refuse(busy("too many connections are open"))
                return
            self.app = ProbesOnly(self.app)
            self._timeout = min(self._timeout, RESERVED_TIMEOUT)
        self._arm(self._timeout)  # for the first byte

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._limits.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._discards or self.transport.is_closing():
            return
        super().data_received(data)
        if not self._arriving:
            self._disarm()
        elif self._in_head and self._is_too_much(len(data)):
            self._refuse(
                ProblemError(
                    "head-too-large", f"the request header must be at most {MAX_HEAD_BYTES} bytes"
                )
            )
        elif self._is_answered() and not self._lingers:
            self._lingers = True
            self._arm(LINGER)
        elif self._timer is None:
            self._arm(self._timeout)

    def close_after_response(self) -> None:
        """Close the connection; first discard the rest of a request that is still arriving."""
        if not self._arriving:
            self.transport.close()
            return
        self._discards = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._arm(LINGER)

    def close_idle(self) -> None:
        """Close this idle connection, to make room for another."""
        self.transport.close()

    def on_message_begin(self) -> None:
        self._in_head = self._arriving = True
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._limits.mark_busy(self)
        super().on_headers_complete()
        self.cycle.transport = ResponseTransport(self)  # type: ignore[assignment]
        if self._is_reserved:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._arriving = self._lingers = False
        super().on_message_complete()
        self._mark_idle_if_answered()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._mark_idle_if_answered()

    def _mark_idle_if_answered(self) -> None:
        is_answered = self.cycle is None or (self.cycle.response_complete and not self.pipeline)
        if is_answered and (self._in_head or not self._arriving):
            self._limits.mark_idle(self)

    def _is_too_much(self, size: int) -> bool:
        self._head += size
        return self._head > MAX_HEAD_BYTES

    def _is_answered(self) -> bool:
        """Whether a request was answered before it has arrived completely."""
        return not self._in_head and self.cycle is not None and self.cycle.response_complete

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        """The timer has ended: close, and answer a partial request with a timeout."""
        if (
            self._arriving
            and not self._discards
            and (self._in_head or not self.cycle.response_started)
        ):
            detail = f"the request did not arrive within {self._timeout:g} seconds"
            self._refuse(ProblemError("request-timeout", detail))
        else:
            self.transport.close()

    def _refuse(self, problem: ProblemError) -> None:
        answer = problem.response()
        head = [
            STATUS_LINE[answer.status_code],
            *(b"%s: %s\r\n" % (name, value) for name, value in answer.raw_headers),
            b"connection: close\r\n\r\n",
        ]
        assert answer.media_type == MEDIA_TYPE
        self.transport.write(b"".join(head) + bytes(answer.body))
        self.close_after_response()
