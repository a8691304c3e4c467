"""The server: connection limits, timeouts, shutting down."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from pillarbox.accept.auth import network_of
from pillarbox.accept.smtp.connection import MailHandler, ServerConnection, Work
from pillarbox.accept.smtp.listeners import Listener
from pillarbox.accept.smtp.machine import Machine
from pillarbox.accept.smtp.rules import MemoryBudget, SessionLimits
from pillarbox.model.proxies import TrustedProxies
from pillarbox.sockets import BACKLOG
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

if TYPE_CHECKING:
    import ssl

    from pillarbox.accept.smtp.tls import Certificate

log = logs.get("pillarbox.smtp")
# How often slow sessions and renewed certificates are looked for, in seconds.
LOOK_INTERVAL = 1.0
# Open files that a process needs beside its SMTP connections: database, HTTP, logs, deliveries.
OTHER_FILES = 256
# Seconds that a stopping server waits for mails that are being stored: as long as a statement may
# take.
STORING_TIMEOUT = 60.0
# Seconds for goodbyes to be written.
GOODBYE_TIMEOUT = 2.0
# Seconds until the next try when a connection could not be taken.
ACCEPT_PAUSE = 0.1
# How many files a process may have open without a limit of the system.
NO_LIMIT = 2**20


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that a session may take."""

    idle: float = 300.0  # from one complete command to the next
    mail: float = 600.0  # from DATA to the end of the mail
    login: float = 60.0  # from connecting to being logged in
    handshake: float = 30.0  # for TLS: a few round trips, however far away
    goodbye: float = 10.0  # to take our last words


@dataclass(frozen=True, slots=True)
class SmtpConnectionLimits:
    """How many connections there may be, and how much mail they may hold in memory together."""

    connections: int = 1000
    per_peer: int = 200  # not for trusted proxies, behind which are many
    octets: int = 256 * 2**20
    proxies: TrustedProxies = field(default_factory=TrustedProxies)


class Server:
    """All SMTP connections of a process."""

    def __init__(
        self,
        name: str,
        handler: MailHandler,
        limits: SessionLimits,
        timeouts: Timeouts,
        connection_limits: SmtpConnectionLimits,
        certificate: Certificate | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor(Metrics())
        self.handler = handler
        self.timeouts = timeouts
        self.loop = asyncio.get_running_loop()
        self._name = name
        self._limits = limits
        self._connection_limits = replace(
            connection_limits, connections=_possible(connection_limits.connections)
        )
        self._certificate = certificate
        self._budget = MemoryBudget(connection_limits.octets)
        self.connections: set[ServerConnection] = (
            set()
        )  # those that speak SMTP, after the handshake of TLS
        self._places: Counter[str] = Counter()  # taken, by network
        self._taken = 0  # places taken, all together
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes: set[asyncio.Task[None]] = set()  # of those who have not spoken SMTP yet
        self._empty = asyncio.Event()
        self._empty.set()

    async def run(self, listeners: Sequence[Listener], stop: asyncio.Event) -> None:
        """Serve open listeners until `stop`; then finish mails being stored and close the rest."""
        keep = self._supervisor.keep
        accepting = [
            self.loop.create_task(keep("accept SMTP connections", partial(self._accept, one), stop))
            for one in listeners
            if one.implicit_tls
        ]
        servers = [await self._start(one) for one in listeners if not one.implicit_tls]
        with self._reloading():
            await self._supervisor.run_every(
                "watch SMTP sessions", LOOK_INTERVAL, self._look_around, stop
            )
        for server in servers:
            server.close()
        for task in (*accepting, *self._handshakes):
            task.cancel()
        await asyncio.gather(*accepting, *self._handshakes, return_exceptions=True)
        for listener in listeners:
            listener.close()
        await self._say_goodbye()

    async def _start(self, listener: Listener) -> asyncio.AbstractServer:
        assert listener.socket is not None, "open it first"
        return await self.loop.create_server(
            lambda: ServerConnection(self, listener), sock=listener.socket, backlog=BACKLOG
        )  # fmt: skip

    async def _accept(self, listener: Listener) -> None:
        """Accept connections that begin with TLS; they count before the handshake is done."""
        assert listener.socket is not None, "open it first"
        while True:
            try:
                taken, address = await self.loop.sock_accept(listener.socket)
            except (
                OSError
            ) as error:  # the peer is gone already; or files ran out, and the next try fails, too
                log.warning("a connection could not be taken", error=str(error.strerror))
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            if self.admit(address[0], listener):
                task = self.loop.create_task(self._shake_hands(listener, taken, address[0]))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
                self._supervisor.watch("SMTP handshake", task)
            else:
                taken.close()

    async def _shake_hands(self, listener: Listener, taken: socket.socket, peer: str) -> None:
        try:
            await self.loop.connect_accepted_socket(
                lambda: ServerConnection(self, listener, peer),
                taken,
                ssl=self.tls_context(),
                ssl_handshake_timeout=self.timeouts.handshake,
            )
        except BaseException as error:
            taken.close()
            self.left(peer, listener)
            if not isinstance(
                error, OSError | asyncio.CancelledError
            ):  # ssl.SSLError and TimeoutError are OSErrors
                raise

    @contextlib.contextmanager
    def _reloading(self) -> Iterator[None]:
        """Within, SIGHUP makes us read the certificate again."""
        if self._certificate is None:
            yield
            return
        self.loop.add_signal_handler(signal.SIGHUP, self._certificate.reload)
        try:
            yield
        finally:
            self.loop.remove_signal_handler(signal.SIGHUP)

    async def _look_around(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.look_at_clock(now)
        if self._certificate:
            self._certificate.refresh()

    async def _say_goodbye(self) -> None:
        for connection in list(self.connections):
            connection.leave()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STORING_TIMEOUT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), GOODBYE_TIMEOUT)
        for connection in list(self.connections):
            connection.abort()

    # --- what connections call

    def new_machine(self, listener: Listener) -> Machine:
        return Machine(
            self._name,
            self._limits,
            listener.anonymous_policy(),
            starttls=listener.starttls,
            secure=listener.implicit_tls,
            plain_login=listener.plain_login,
            budget=self._budget,
            on_refusal=listener.refused,
        )

    def admit(self, peer: str, listener: Listener) -> bool:
        """Whether there is a place for another connection; if so it is taken."""
        network = network_of(peer)
        is_crowded = self._places[
            network
        ] >= self._connection_limits.per_peer and not self._connection_limits.proxies.trusts(peer)
        if self._taken >= self._connection_limits.connections or is_crowded:
            listener.turned_away()
            return False
        self._places[network] += 1
        self._taken += 1
        self._empty.clear()
        listener.came()
        return True

    def left(self, peer: str, listener: Listener) -> None:
        """A place is free again."""
        network = network_of(peer)
        self._places[network] -= 1
        self._taken -= 1
        if not self._places[network]:
            del self._places[network]
        if not self._taken:
            self._empty.set()
        listener.went()

    def spawn(self, work: Work) -> None:
        """Run something for a connection; it is waited for when we stop."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._supervisor.watch("SMTP session", task)

    def tls_context(self) -> ssl.SSLContext:
        assert self._certificate is not None, "TLS is offered only where there is a certificate"
        return self._certificate.context


def _possible(connections: int) -> int:
    """As many connections as open files allow; raises the soft limit if it must and may."""
    wanted = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    most = hard
    if hard == resource.RLIM_INFINITY:
        most = NO_LIMIT
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most), hard))
    if most < wanted:
        log.warning(
            "fewer SMTP connections than smtp_connections allows: open files are limited",
            files=most,
        )
    return max(1, min(connections, most - OTHER_FILES))
