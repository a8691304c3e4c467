"""One open SMTP connection: the pipelining client. The handshake is over when it begins."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from pillarbox.deliver.transports.smtp_deadline import Deadline
from pillarbox.deliver.transports.smtp_envelope import ServerCapabilities, final_dot, seal, stuffed
from pillarbox.deliver.transports.smtp_replies import (
    SmtpStage,
    can_become_reply,
    refusal,
    split_replies,
    text_of,
)
from pillarbox.deliver.transports.smtp_transaction import SmtpTransaction, not_delivered
from pillarbox.model.outcome import Reason, deferred, unknown

if TYPE_CHECKING:
    from pillarbox.model.provider_kinds.smtp import SmtpSettings

# Replies are small; an own buffer avoids asyncio's allocation of 256 KiB for each read.
READ_BUFFER = 16_384
# Bodies up to this size are written at once with their dot and the next envelope; larger ones in
# slices of this size, so that a stalled server is noticed and memory stays bounded.
SLICE = 131_072
# Seconds. RFC 5321 wants a client to wait for the reply to QUIT; nothing depends on it.
QUIT_TIMEOUT = 5.0

_POSITIVE, _INTERMEDIATE = ord("2"), ord("3")
_CLOSING = b"421"
_SETTLED = deferred(Reason.UNAVAILABLE)  # for recipients that do not exist


@dataclass(frozen=True, slots=True)
class ReadyConnection:
    """A connection ready for mail: handshake, TLS and login are done."""

    transport: asyncio.Transport
    capabilities: ServerCapabilities
    transcript: str  # banner and extensions, for transcripts; never credentials


class ConnectionPool(Protocol):
    """What a connection needs from its pool."""

    def take(self) -> SmtpTransaction | None: ...

    def requeue(
        self, transaction: SmtpTransaction, reason: Reason, why: str, link: str
    ) -> None: ...

    def rest(self, connection: SmtpConnection) -> None: ...

    def gone(self, connection: SmtpConnection) -> None: ...


class _PendingReply(Enum):
    """A reply that belongs to no mail and comes before all others."""

    NONE = 0
    RESET = 1  # to RSET
    EMPTY_DOT = 2  # to the dot that ends a mail without recipients


class SmtpConnection(asyncio.BufferedProtocol):
    """Sends mails; at most one waits for its final reply, and one for those to its envelope."""

    def __init__(self, pool: ConnectionPool, link: ReadyConnection, settings: SmtpSettings) -> None:
        self._pool = pool
        self._transport = link.transport
        self._capabilities = link.capabilities
        self._transcript = link.transcript
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._view = memoryview(bytearray(READ_BUFFER))
        self._rest = b""  # the beginning of a reply
        self._unread = 0  # replies received and not handled yet
        self._envelope: SmtpTransaction | None = None  # its envelope was written
        self._sending: SmtpTransaction | None = None  # part of its body was written
        self._finishing: SmtpTransaction | None = None  # its final dot was written
        self._pending = _PendingReply.NONE
        self._needs_reset = False
        self._body = memoryview(b"")
        self._paused = False
        self._served = 0
        self._born = self._now = self._loop.time()
        shortest = min(settings.command_timeout, settings.data_timeout, settings.max_idle)
        self._deadline = Deadline(self._loop, shortest, self._expire)
        self.over = False  # takes no more mails
        self._take_over()

    def _take_over(self) -> None:
        # Reading must pause while the protocol changes: uvloop chooses its callbacks when reading
        # starts.
        self._transport.pause_reading()
        self._transport.set_protocol(self)
        self._transport.resume_reading()

    # --- what the pool asks ---

    def feed(self) -> None:
        """Begin with the next waiting mail, or become idle."""
        self._now = self._loop.time()
        self.over = self.over or self._transport.is_closing()  # lost; connection_lost follows
        if not self.over:
            self._continue()

    def quit(self) -> None:
        """Send QUIT. Only for a connection that carries no mail."""
        self.over = True
        self._transport.write(b"QUIT\r\n")
        self._deadline.sharpen(self._loop.time() + QUIT_TIMEOUT)

    def abort(self) -> None:
        """Close at once; mails whose final dot was not written are given back."""
        for transaction in (self._envelope, self._sending):
            if transaction is not None:
                transaction.give_back("the transport was closed at once")
        self._envelope = self._sending = None
        self._fail(Reason.UNAVAILABLE, "the connection was given up while closing")

    def recall(self) -> None:
        """Give back unsent mails; a mail that waits for its final reply still gets it."""
        if self._finishing is not None:
            if self._envelope is not None:
                self._envelope.give_back("the provider is not used at the moment")
        elif not self.over and not self._idle:
            self.abort()

    # --- what the transport tells ---

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        data = self._rest + self._view[:nbytes] if self._rest else bytes(self._view[:nbytes])
        if self.over:
            self._close_transport()
        else:
            self._now = self._loop.time()
            replies, self._rest = split_replies(data)
            self._handle_replies(replies)

    def eof_received(self) -> bool:
        self._fail(Reason.UNAVAILABLE, "the server closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._fail(Reason.UNAVAILABLE, f"the connection was lost: {exc or 'closed'}")
        self._pool.gone(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._sending is not None:
            self._now = self._loop.time()
            self._send_slices(self._sending)

    # --- replies ---

    def _handle_replies(self, replies: list[bytes]) -> None:
        self._unread = len(replies)
        for reply in replies:
            self._unread -= 1
            self._handle_reply(reply)
            if self.over:
                return
        if self._rest and not can_become_reply(self._rest):
            self._fail(Reason.PROTOCOL, "the server's reply is malformed")
        elif replies and not self._idle:
            self._deadline.at = self._now + self._allowed()

    def _handle_reply(self, reply: bytes) -> None:
        if self._pending is not _PendingReply.NONE:
            self._handle_pending(reply)
        elif (transaction := self._finishing) is not None:
            self._finishing = None
            self._handle_final(transaction, reply)
        elif (transaction := self._envelope) is not None:
            self._handle_envelope(transaction, reply)
        else:
            self._handle_unexpected(reply)

    def _handle_pending(self, reply: bytes) -> None:
        if reply.startswith(_CLOSING) or (
            self._pending is _PendingReply.RESET and reply[0] != _POSITIVE
        ):
            return self._fail(Reason.UNAVAILABLE, text_of(reply))
        self._pending = _PendingReply.NONE
        if self._envelope is None:
            self._continue()
        elif not self._capabilities.pipelining:
            self._transport.write(self._envelope.commands[0])
        return None

    def _handle_final(self, transaction: SmtpTransaction, reply: bytes) -> None:
        """The reply to the final dot."""
        if reply[0] == _INTERMEDIATE:
            self._finishing = transaction
            return self._fail(
                Reason.PROTOCOL, f"the server answered the final dot with {text_of(reply)}"
            )
        if reply[0] == _POSITIVE:
            transaction.accept(reply, self._now, self._transcript)
        else:
            transaction.replies.append((self._now, reply))
            transaction.end(refusal(reply, SmtpStage.DOT), self._now, self._transcript)
        if reply.startswith(_CLOSING):
            self._fail(Reason.UNAVAILABLE, text_of(reply))
        elif self._envelope is None:
            self._continue()
        return None

    def _handle_envelope(self, transaction: SmtpTransaction, reply: bytes) -> None:
        """The reply to MAIL, RCPT or DATA."""
        transaction.note(reply, self._now)
        answered = len(transaction.replies)
        if reply.startswith(_CLOSING):
            return self._server_leaves(transaction, reply)
        if answered == len(transaction.commands):
            return self._handle_data(transaction, reply)
        if reply[0] == _INTERMEDIATE:
            return self._fail(
                Reason.PROTOCOL, f"the server asked for the content too early: {text_of(reply)}"
            )
        if not self._capabilities.pipelining:
            self._send_next_command(transaction, answered)
        return None

    def _handle_data(self, transaction: SmtpTransaction, reply: bytes) -> None:
        if reply[0] == _POSITIVE:
            return self._fail(Reason.PROTOCOL, f"the server answered DATA with {text_of(reply)}")
        if reply[0] != _INTERMEDIATE:
            return self._close_envelope(transaction, reply)
        if transaction.nobody_left:
            return self._send_nothing(transaction, reply)
        return self._begin_body(transaction)

    def _handle_unexpected(self, reply: bytes) -> None:
        """An unexpected reply: in the middle of a body, or on an idle connection."""
        transaction = self._sending
        if transaction is not None and reply[0] > _INTERMEDIATE:
            self._sending = None
            transaction.replies.append((self._now, reply))
            transaction.end(refusal(reply, SmtpStage.DOT), self._now, self._transcript)
        self._fail(Reason.PROTOCOL, f"the server sent an unexpected reply: {text_of(reply)}")

    def _server_leaves(self, transaction: SmtpTransaction, reply: bytes) -> None:
        """421: the server closes. After MAIL on a used connection, the mail is not the cause."""
        self._envelope = None
        if self._served > 1 and len(transaction.replies) == 1 and not transaction.requeued:
            self._pool.requeue(transaction, Reason.UNAVAILABLE, text_of(reply), self._transcript)
        else:
            transaction.end(refusal(reply, SmtpStage.DATA), self._now, self._transcript)
        self._fail(Reason.UNAVAILABLE, text_of(reply))

    # --- envelopes ---

    def _continue(self) -> None:
        """No reply is pending: send the next mail, quit, or become idle."""
        if self._unread or self._rest:  # it would be taken for the next reply
            return self._fail(
                Reason.PROTOCOL, "the server sent more replies than there were commands"
            )
        transaction = self._next()
        if transaction is not None:
            self._transport.write(self._opening(transaction))
            self._deadline.at = self._now + self._settings.command_timeout
        elif self._is_worn_out():
            self.quit()
        else:
            self._deadline.at = min(
                self._now + self._settings.max_idle, self._born + self._settings.max_age
            )
            self._pool.rest(self)
        return None

    def _next(self) -> SmtpTransaction | None:
        """The next mail that has commands for this server."""
        while not self._is_worn_out() and (transaction := self._pool.take()):
            transaction.begin(seal(transaction.outgoing, self._capabilities), self._now)
            if transaction.commands:
                self._envelope = transaction
                self._served += 1
                return transaction
            transaction.end(_SETTLED, self._now, self._transcript, "nothing was sent")
        return None

    def _opening(self, transaction: SmtpTransaction) -> bytes:
        """What to write first for a mail: its whole envelope with PIPELINING."""
        reset = b""
        if self._needs_reset:
            self._needs_reset = False
            self._pending = _PendingReply.RESET
            reset = b"RSET\r\n"
        if self._capabilities.pipelining:
            return reset + b"".join(transaction.commands)
        return reset or transaction.commands[0]

    def _is_worn_out(self) -> bool:
        """Whether to close it for its age or use; every connection sends at least one mail."""
        settings = self._settings
        old = self._served >= settings.max_messages or self._now - self._born >= settings.max_age
        return old and self._served > 0

    def _send_next_command(self, transaction: SmtpTransaction, answered: int) -> None:
        """Without PIPELINING: one command, unless no recipient is left."""
        if transaction.mail_refused or (
            answered == len(transaction.commands) - 1 and transaction.nobody_left
        ):
            return self._close_envelope(transaction, transaction.replies[-1][1])
        return self._transport.write(transaction.commands[answered])

    def _close_envelope(self, transaction: SmtpTransaction, reply: bytes) -> None:
        """The server wants no content: settle the mail, and reset the envelope at the server."""
        self._envelope = None
        self._needs_reset = not transaction.mail_refused
        transaction.end(refusal(reply, SmtpStage.DATA), self._now, self._transcript)
        self._continue()

    # --- content ---

    def _begin_body(self, transaction: SmtpTransaction) -> None:
        if self._unread or self._rest:
            return self._fail(Reason.PROTOCOL, "the server answered content before it was sent")
        self._envelope = None
        if not transaction.may_begin("before its content was written"):
            return self._fail(Reason.UNAVAILABLE, "given up before the content")
        transaction.body_at = self._now
        content = stuffed(transaction.outgoing.content)
        if len(content) <= SLICE:
            return self._finish_body(transaction, content)
        self._sending, self._body = transaction, memoryview(content)
        return self._send_slices(transaction)

    def _send_slices(self, transaction: SmtpTransaction) -> None:
        """Write until the transport pauses writing; resume_writing continues."""
        while len(self._body) > SLICE:
            self._transport.write(self._body[:SLICE])
            self._body = self._body[SLICE:]
            if self._paused:
                self._deadline.at = self._now + self._settings.command_timeout
                return None
        last, self._body = bytes(self._body), memoryview(b"")
        self._sending = None
        if not transaction.may_begin(
            "before its final dot was written"
        ):  # a long body, and we may have slept on the way
            return self._fail(Reason.UNAVAILABLE, "given up before the final dot")
        return self._finish_body(transaction, last)

    def _finish_body(self, transaction: SmtpTransaction, content: bytes) -> None:
        """Write the last bytes, the dot and the envelope of the next waiting mail at once."""
        self._finishing = transaction
        self._write_with_next(content, final_dot(transaction.outgoing.content))
        self._deadline.at = self._now + self._settings.data_timeout

    def _send_nothing(self, transaction: SmtpTransaction, reply: bytes) -> None:
        """354 although no recipient was accepted: end the empty content, and ignore its reply."""
        self._envelope = None
        self._pending = _PendingReply.EMPTY_DOT
        transaction.end(refusal(reply, SmtpStage.DATA), self._now, self._transcript)
        self._write_with_next(b".\r\n")
        self._deadline.at = self._now + self._settings.command_timeout

    def _write_with_next(self, *parts: bytes) -> None:
        chained = self._next() if self._capabilities.pipelining else None
        self._transport.write(b"".join(parts if chained is None else (*parts, *chained.commands)))

    # --- the end ---

    def _fail(self, reason: Reason, why: str) -> None:
        """Give the connection up: only a mail whose final dot was written becomes unknown."""
        if self.over:
            return
        finishing, self._finishing = self._finishing, None
        sending, self._sending = self._sending, None
        envelope, self._envelope = self._envelope, None
        self.over = True
        self._now = self._loop.time()
        self._transport.abort()
        if finishing is not None:
            finishing.end(unknown(Reason.LOST, why), self._now, self._transcript, why)
        if sending is not None:
            not_delivered(sending, reason, why, self._now, self._transcript)
        if envelope is not None:
            self._fail_envelope(envelope, reason, why, chained=finishing is not None)

    def _fail_envelope(
        self, transaction: SmtpTransaction, reason: Reason, why: str, *, chained: bool
    ) -> None:
        """Retry on another connection if the mail cannot be the cause."""
        stale = self._served > 1 and reason is Reason.UNAVAILABLE
        may_retry = chained or stale or self._pending is not _PendingReply.NONE
        if may_retry and not transaction.replies:
            self._pool.requeue(transaction, reason, why, self._transcript)
        else:
            not_delivered(transaction, reason, why, self._now, self._transcript)

    def _close_transport(self) -> None:
        """Close after the reply to QUIT. Closing a TLS transport twice disables its abort()."""
        if not self._transport.is_closing():
            self._transport.close()

    # --- time ---

    @property
    def _idle(self) -> bool:
        busy = self._envelope or self._finishing or self._sending
        return busy is None and self._pending is _PendingReply.NONE

    def _allowed(self) -> float:
        return (
            self._settings.command_timeout
            if self._finishing is None
            else self._settings.data_timeout
        )

    def _expire(self) -> None:
        if self.over:
            self._transport.abort()
        elif self._idle:
            self.quit()
        else:
            self._fail(Reason.TIMEOUT, f"the server did not answer within {self._allowed():g} s")
