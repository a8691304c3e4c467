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

# Replies are small; a buffer of our own spares plain asyncio a 256 KiB allocation for each read.
READ_BUFFER = 16_384
# Bodies up to this go out in one write with their dot and the next envelope; larger ones in slices
# of this size, so that a stalled server is noticed and little more than a slice waits in our
# memory.
SLICE = 131_072
# RFC 5321 asks us to wait for the answer to QUIT; nothing depends on it, so not for long.
GOODBYE_PATIENCE = 5.0

_GOOD, _GO_ON = ord("2"), ord("3")
_LEAVING = b"421"
_SETTLED = deferred(Reason.UNAVAILABLE)  # stands for recipients that are not there


@dataclass(frozen=True, slots=True)
class ReadyConnection:
    """A connection ready for mail: handshake, TLS and login are done."""

    transport: asyncio.Transport
    capabilities: ServerCapabilities
    transcript: str  # banner and extensions, for transcripts; never credentials


class ConnectionPool(Protocol):
    """What a connection needs from whoever owns it."""

    def take(self) -> SmtpTransaction | None: ...

    def requeue(
        self, transaction: SmtpTransaction, reason: Reason, why: str, link: str
    ) -> None: ...

    def rest(self, connection: SmtpConnection) -> None: ...

    def gone(self, connection: SmtpConnection) -> None: ...


class _Owed(Enum):
    """A reply that belongs to no mail and comes before all others."""

    NOTHING = 0
    RESET = 1  # to RSET
    EMPTY_DOT = 2  # to the dot that ends a mail without recipients


class SmtpConnection(asyncio.BufferedProtocol):
    """Feeds mails to the server; at most one awaits its final answer, and one its envelope's."""

    def __init__(self, pool: ConnectionPool, link: ReadyConnection, settings: SmtpSettings) -> None:
        self._pool = pool
        self._transport = link.transport
        self._capabilities = link.capabilities
        self._transcript = link.transcript
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._view = memoryview(bytearray(READ_BUFFER))
        self._rest = b""  # the beginning of a reply
        self._unread = 0  # replies received and not yet looked at
        self._envelope: SmtpTransaction | None = None  # its envelope was written
        self._sending: SmtpTransaction | None = None  # part of its body was written
        self._finishing: SmtpTransaction | None = None  # its final dot was written
        self._owed = _Owed.NOTHING
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
        # Reading must rest while the protocol changes: uvloop chooses its callbacks when reading
        # starts.
        self._transport.pause_reading()
        self._transport.set_protocol(self)
        self._transport.resume_reading()

    # --- what the pool asks ---

    def feed(self) -> None:
        """Begin with the next waiting mail, or rest."""
        self._now = self._loop.time()
        self.over = self.over or self._transport.is_closing()  # lost, and about to be told so
        if not self.over:
            self._go_on()

    def quit(self) -> None:
        """Say goodbye. Only for a connection that carries nothing."""
        self.over = True
        self._transport.write(b"QUIT\r\n")
        self._deadline.sharpen(self._loop.time() + GOODBYE_PATIENCE)

    def abort(self) -> None:
        """Hang up at once; mails whose final dot was not written are given back."""
        for transaction in (self._envelope, self._sending):
            if transaction is not None:
                transaction.give_back("the transport was closed in a hurry")
        self._envelope = self._sending = None
        self._lose(Reason.UNAVAILABLE, "the connection was given up while closing")

    def recall(self) -> None:
        """Give back what was not handed over; what awaits its final answer still gets it."""
        if self._finishing is not None:
            if self._envelope is not None:
                self._envelope.give_back("the provider is not used now")
        elif not self.over and not self._idle:
            self.abort()

    # --- what the transport tells ---

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        data = self._rest + self._view[:nbytes] if self._rest else bytes(self._view[:nbytes])
        if self.over:
            self._hang_up()
        else:
            self._now = self._loop.time()
            replies, self._rest = split_replies(data)
            self._hear_all(replies)

    def eof_received(self) -> bool:
        self._lose(Reason.UNAVAILABLE, "the server closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._lose(Reason.UNAVAILABLE, f"the connection was lost: {exc or 'closed'}")
        self._pool.gone(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._sending is not None:
            self._now = self._loop.time()
            self._send_slices(self._sending)

    # --- replies ---

    def _hear_all(self, replies: list[bytes]) -> None:
        self._unread = len(replies)
        for reply in replies:
            self._unread -= 1
            self._hear(reply)
            if self.over:
                return
        if self._rest and not can_become_reply(self._rest):
            self._lose(Reason.PROTOCOL, "the server's answer made no sense")
        elif replies and not self._idle:
            self._deadline.at = self._now + self._allowed()

    def _hear(self, reply: bytes) -> None:
        if self._owed is not _Owed.NOTHING:
            self._hear_owed(reply)
        elif (transaction := self._finishing) is not None:
            self._finishing = None
            self._hear_final(transaction, reply)
        elif (transaction := self._envelope) is not None:
            self._hear_envelope(transaction, reply)
        else:
            self._hear_early(reply)

    def _hear_owed(self, reply: bytes) -> None:
        if reply.startswith(_LEAVING) or (self._owed is _Owed.RESET and reply[0] != _GOOD):
            return self._lose(Reason.UNAVAILABLE, text_of(reply))
        self._owed = _Owed.NOTHING
        if self._envelope is None:
            self._go_on()
        elif not self._capabilities.pipelining:
            self._transport.write(self._envelope.commands[0])
        return None

    def _hear_final(self, transaction: SmtpTransaction, reply: bytes) -> None:
        """The answer to the final dot."""
        if reply[0] == _GO_ON:
            self._finishing = transaction
            return self._lose(
                Reason.PROTOCOL, f"the server answered the final dot with {text_of(reply)}"
            )
        if reply[0] == _GOOD:
            transaction.accept(reply, self._now, self._transcript)
        else:
            transaction.replies.append((self._now, reply))
            transaction.end(refusal(reply, SmtpStage.DOT), self._now, self._transcript)
        if reply.startswith(_LEAVING):
            self._lose(Reason.UNAVAILABLE, text_of(reply))
        elif self._envelope is None:
            self._go_on()
        return None

    def _hear_envelope(self, transaction: SmtpTransaction, reply: bytes) -> None:
        """The answer to MAIL, a RCPT or DATA."""
        transaction.note(reply, self._now)
        answered = len(transaction.replies)
        if reply.startswith(_LEAVING):
            return self._leave(transaction, reply)
        if answered == len(transaction.commands):
            return self._hear_data(transaction, reply)
        if reply[0] == _GO_ON:
            return self._lose(
                Reason.PROTOCOL, f"the server asked for the content too early: {text_of(reply)}"
            )
        if not self._capabilities.pipelining:
            self._say_next(transaction, answered)
        return None

    def _hear_data(self, transaction: SmtpTransaction, reply: bytes) -> None:
        if reply[0] == _GOOD:
            return self._lose(Reason.PROTOCOL, f"the server answered DATA with {text_of(reply)}")
        if reply[0] != _GO_ON:
            return self._close_envelope(transaction, reply)
        if transaction.nobody_left:
            return self._send_nothing(transaction, reply)
        return self._begin_body(transaction)

    def _hear_early(self, reply: bytes) -> None:
        """A reply nobody waits for: in the middle of a body, or to an idle connection."""
        transaction = self._sending
        if transaction is not None and reply[0] > _GO_ON:
            self._sending = None
            transaction.replies.append((self._now, reply))
            transaction.end(refusal(reply, SmtpStage.DOT), self._now, self._transcript)
        self._lose(Reason.PROTOCOL, f"the server spoke out of turn: {text_of(reply)}")

    def _leave(self, transaction: SmtpTransaction, reply: bytes) -> None:
        """421: the server closes. Said to a MAIL on a used connection, it means the connection, not the mail."""
        self._envelope = None
        if self._served > 1 and len(transaction.replies) == 1 and not transaction.requeued:
            self._pool.requeue(transaction, Reason.UNAVAILABLE, text_of(reply), self._transcript)
        else:
            transaction.end(refusal(reply, SmtpStage.DATA), self._now, self._transcript)
        self._lose(Reason.UNAVAILABLE, text_of(reply))

    # --- envelopes ---

    def _go_on(self) -> None:
        """The server owes nothing: next mail, goodbye, or rest."""
        if self._unread or self._rest:  # it would be taken for the answer to what comes next
            return self._lose(Reason.PROTOCOL, "the server answered more than it was asked")
        transaction = self._next()
        if transaction is not None:
            self._transport.write(self._opening(transaction))
            self._deadline.at = self._now + self._settings.command_timeout
        elif self._worn_out():
            self.quit()
        else:
            self._deadline.at = min(
                self._now + self._settings.max_idle, self._born + self._settings.max_age
            )
            self._pool.rest(self)
        return None

    def _next(self) -> SmtpTransaction | None:
        """Take the next mail that has something to say to this server."""
        while not self._worn_out() and (transaction := self._pool.take()):
            transaction.begin(seal(transaction.outgoing, self._capabilities), self._now)
            if transaction.commands:
                self._envelope = transaction
                self._served += 1
                return transaction
            transaction.end(_SETTLED, self._now, self._transcript, "nothing was sent")
        return None

    def _opening(self, transaction: SmtpTransaction) -> bytes:
        """What to write first for a mail: all of its envelope if the server can take it."""
        reset = b""
        if self._needs_reset:
            self._needs_reset = False
            self._owed = _Owed.RESET
            reset = b"RSET\r\n"
        if self._capabilities.pipelining:
            return reset + b"".join(transaction.commands)
        return reset or transaction.commands[0]

    def _worn_out(self) -> bool:
        """Whether it served long enough; every connection serves at least one mail, or none would move."""
        settings = self._settings
        old = self._served >= settings.max_messages or self._now - self._born >= settings.max_age
        return old and self._served > 0

    def _say_next(self, transaction: SmtpTransaction, answered: int) -> None:
        """Without PIPELINING: one command, unless nobody is left to send to."""
        if transaction.mail_refused or (
            answered == len(transaction.commands) - 1 and transaction.nobody_left
        ):
            return self._close_envelope(transaction, transaction.replies[-1][1])
        return self._transport.write(transaction.commands[answered])

    def _close_envelope(self, transaction: SmtpTransaction, reply: bytes) -> None:
        """The server wants no content: settle, and clear what it may still hold of the envelope."""
        self._envelope = None
        self._needs_reset = not transaction.mail_refused
        transaction.end(refusal(reply, SmtpStage.DATA), self._now, self._transcript)
        self._go_on()

    # --- content ---

    def _begin_body(self, transaction: SmtpTransaction) -> None:
        if self._unread or self._rest:
            return self._lose(Reason.PROTOCOL, "the server answered content it had not seen")
        self._envelope = None
        if not transaction.may_begin("before its content was written"):
            return self._lose(Reason.UNAVAILABLE, "given up before the content")
        transaction.body_at = self._now
        content = stuffed(transaction.outgoing.content)
        if len(content) <= SLICE:
            return self._finish_body(transaction, content)
        self._sending, self._body = transaction, memoryview(content)
        return self._send_slices(transaction)

    def _send_slices(self, transaction: SmtpTransaction) -> None:
        """Write until the transport has enough; resume_writing brings us back."""
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
            return self._lose(Reason.UNAVAILABLE, "given up before the final dot")
        return self._finish_body(transaction, last)

    def _finish_body(self, transaction: SmtpTransaction, content: bytes) -> None:
        """The last bytes, the dot and, if a mail waits, its envelope, in one write."""
        self._finishing = transaction
        self._write_with_next(content, final_dot(transaction.outgoing.content))
        self._deadline.at = self._now + self._settings.data_timeout

    def _send_nothing(self, transaction: SmtpTransaction, reply: bytes) -> None:
        """354 although nobody was accepted: end the empty content, whose answer means nothing."""
        self._envelope = None
        self._owed = _Owed.EMPTY_DOT
        transaction.end(refusal(reply, SmtpStage.DATA), self._now, self._transcript)
        self._write_with_next(b".\r\n")
        self._deadline.at = self._now + self._settings.command_timeout

    def _write_with_next(self, *parts: bytes) -> None:
        chained = self._next() if self._capabilities.pipelining else None
        self._transport.write(b"".join(parts if chained is None else (*parts, *chained.commands)))

    # --- the end ---

    def _lose(self, reason: Reason, why: str) -> None:
        """Give the connection up: only a written final dot leaves its mail unknown."""
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
            self._lose_envelope(envelope, reason, why, chained=finishing is not None)

    def _lose_envelope(
        self, transaction: SmtpTransaction, reason: Reason, why: str, *, chained: bool
    ) -> None:
        """An envelope behind another, or met by a server that had already left, may try elsewhere."""
        stale = self._served > 1 and reason is Reason.UNAVAILABLE
        innocent = chained or stale or self._owed is not _Owed.NOTHING
        if innocent and not transaction.replies:
            self._pool.requeue(transaction, reason, why, self._transcript)
        else:
            not_delivered(transaction, reason, why, self._now, self._transcript)

    def _hang_up(self) -> None:
        """After the answer to QUIT. Closing a TLS transport twice would make abort() powerless."""
        if not self._transport.is_closing():
            self._transport.close()

    # --- time ---

    @property
    def _idle(self) -> bool:
        busy = self._envelope or self._finishing or self._sending
        return busy is None and self._owed is _Owed.NOTHING

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
            self._lose(Reason.TIMEOUT, f"the server did not answer within {self._allowed():g} s")
