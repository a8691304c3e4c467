"""One SMTP connection: performs the actions of its state machine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, cast

from pillarbox.accept.smtp import replies
from pillarbox.accept.smtp.actions import Action, Authenticate, StartTls, Submit, SubmittedMail
from pillarbox.accept.smtp.refusals import refuse_login, refuse_mail
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    import ssl

    from pillarbox.accept.smtp.listeners import Listener
    from pillarbox.accept.smtp.rules import SessionPolicy
    from pillarbox.accept.smtp.server import Server
    from pillarbox.model.secret import Secret

log = logs.get("pillarbox.smtp")
# What may come over TLS before start_tls has returned: an eager client's first commands.
MAX_EARLY = 65_536


class MailHandler(Protocol):
    """Checks logins and stores mails. Both may raise any PillarboxError."""

    async def log_in(self, username: str, password: Secret, peer: str) -> SessionPolicy: ...
    async def submit(self, policy: SessionPolicy, mail: SubmittedMail, peer: str) -> object:
        """Store the mail; returns its id once it is committed."""
        ...


class ServerConnection(asyncio.Protocol):
    """The sockets, timeouts and TLS of one state machine."""

    def __init__(self, server: Server, listener: Listener, admitted: str | None = None) -> None:
        self._server = server
        self._listener = listener
        self._loop = server.loop
        self._admitted = admitted is not None  # a peer's address, if a place is taken already
        self._upgrading = self._handshaking = self._closing = self._lost = False
        self._held_up = False  # we stopped reading while a result is awaited
        self._blocked = False  # the peer does not read what we write
        self._early = b""
        self.peer = admitted or "unknown"
        self.born = self.since = self._loop.time()

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._machine = self._server.new_machine(self._listener)
        if not self._admitted:
            name = transport.get_extra_info("peername")
            self.peer = name[0] if name else "unknown"  # it may be gone already
            self._admitted = self._server.admit(self.peer, self._listener)
        if self._admitted:
            self._server.connections.add(self)
            self._perform(self._machine.greet())
        else:
            self._perform(self._machine.leave(replies.TOO_MANY_CONNECTIONS))

    def data_received(self, data: bytes) -> None:
        if self._upgrading:
            self._keep_early(data)
            return
        actions = self._machine.receive(data)
        if actions:
            self._perform(actions)
        elif self._machine.waiting and not self._held_up:
            self._held_up = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Close the connection: TLS has no half-closed state, and SMTP clients use none."""
        return False

    def pause_writing(self) -> None:
        self._blocked = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._blocked = False
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        if (
            not self._machine.waiting
        ):  # else when the result is there: till then its octets are held
            self._machine.forget()
        if self._admitted:
            self._server.connections.discard(self)
            self._server.left(self.peer, self._listener)

    # --- what the server calls

    def look_at_clock(self, now: float) -> None:
        """End it if it has been too slow."""
        machine, timeouts = self._machine, self._server.timeouts
        if self._closing:
            if now - self.since > timeouts.goodbye:
                self._transport.abort()
        elif (
            not machine.waiting and not self._upgrading
        ):  # the store and the handshake have timeouts of their own
            longest = timeouts.mail if machine.reading_mail else timeouts.idle
            if now - self.since > longest or (
                machine.policy is None and now - self.born > timeouts.login
            ):
                self._perform(machine.leave(replies.TOO_SLOW))

    def leave(self) -> None:
        """The server shuts down."""
        if self._upgrading:
            self._transport.abort()
        else:
            self._perform(self._machine.leave(replies.SHUTTING_DOWN))

    def abort(self) -> None:
        self._transport.abort()

    # --- carrying out

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if type(action) is bytes:
                self._transport.write(action)
            elif type(action) is Submit:
                self._server.spawn(self._submit(action.mail))
            elif type(action) is Authenticate:
                self._server.spawn(self._log_in(action))
            elif type(action) is StartTls:
                self._begin_tls()
            else:
                self._closing = True
                self._transport.close()
        self.since = self._loop.time()

    async def _submit(self, mail: SubmittedMail) -> None:
        policy = self._machine.policy
        assert policy is not None
        began = self._loop.time()
        try:
            message_id = await self._server.handler.submit(policy, mail, self.peer)
        except Exception as error:
            actions = self._machine.failed(refuse_mail(error))
        else:
            self._listener.accepted(self._loop.time() - began)
            log.mail(
                "accepted", message=message_id, listener=self._listener.name,
                size=len(mail.content), recipients=len(mail.recipients),
            )  # fmt: skip
            actions = self._machine.submitted(message_id)
        self._go_on(actions)

    async def _log_in(self, asked: Authenticate) -> None:
        log_in = self._listener.log_in or self._server.handler.log_in
        try:
            policy = await log_in(asked.username, asked.password, self.peer)
        except Exception as error:
            self._listener.login_failed()
            actions = self._machine.failed(refuse_login(error))
        else:
            actions = self._machine.authenticated(policy)
        self._go_on(actions)

    def _go_on(self, actions: list[Action]) -> None:
        """After a result."""
        if self._lost:
            self._machine.forget()
            return
        self._perform(actions)
        self._held_up = False
        self._read_on()

    def _read_on(self) -> None:
        if not (self._held_up or self._blocked or self._closing or self._upgrading):
            self._transport.resume_reading()

    # --- TLS

    def _begin_tls(self) -> None:
        # Whatever is still on its way in clear reaches TLS, which takes it for a broken handshake.
        self._transport.pause_reading()
        self._upgrading = True
        self._server.spawn(self._upgrade(self._server.tls_context()))

    async def _upgrade(self, context: ssl.SSLContext) -> None:
        if self._closing or self._lost:
            return
        self._handshaking = True  # from here on, what comes comes over TLS
        try:
            transport = await self._loop.start_tls(
                self._transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._server.timeouts.handshake,
            )
        except (OSError, TimeoutError):  # ssl.SSLError is an OSError
            transport = None
        if transport is None or self._closing:
            self._transport.abort()
            self.connection_lost(None)
            return
        self._transport = transport
        self._upgrading = False
        self._machine.secured()
        self.since = self._loop.time()
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def _keep_early(self, data: bytes) -> None:
        """It came over TLS, but before we know its transport, over which to answer."""
        self._early += data
        if len(self._early) > MAX_EARLY or not self._handshaking:
            self._closing = True
            self._transport.abort()


Work = Coroutine[Any, Any, None]
