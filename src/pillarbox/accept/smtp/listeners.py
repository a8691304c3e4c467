"""Listeners: addresses to connect to, with their sockets and metrics."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pillarbox.sockets import listen, show_address

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge

    from pillarbox.accept.smtp.rules import SessionPolicy
    from pillarbox.model.secret import Secret
    from pillarbox.telemetry.metrics import Metrics

LogIn = Callable[
    [str, "Secret", str], Awaitable["SessionPolicy"]
]  # by user name, password and the peer's address


@dataclass(slots=True)
class Listener:
    """An address to connect to.

    `anonymous_policy` returns the policy of clients without a login, or None if they must log in.
    `log_in` replaces the handler's check of logins; `plain_login` allows logins without TLS.
    """

    name: str  # the setting that says where
    address: tuple[str, int]
    metrics: Metrics
    anonymous_policy: Callable[[], SessionPolicy | None] = lambda: None
    starttls: bool = False
    implicit_tls: bool = False
    plain_login: bool = False
    log_in: LogIn | None = None
    socket: socket.socket | None = None
    accepted: Callable[[float], None] = field(init=False)  # a mail, in so many seconds
    _sessions: Counter = field(init=False)
    _connections: Gauge = field(init=False)

    def __post_init__(self) -> None:
        self.accepted = self.metrics.smtp_accepted(self.name)
        self._sessions = self.metrics.smtp_sessions.labels(self.name)
        self._connections = self.metrics.smtp_connections.labels(self.name)

    @property
    def where(self) -> str:
        """Host and port; of an open one, the port it got."""
        host, port = self.address
        if self.socket:
            port = self.socket.getsockname()[1]
        return show_address(host, port)

    def open(self) -> None:
        """Bind, or raise an error that says what to do."""
        self.socket = listen(*self.address, self.name)

    def close(self) -> None:
        if self.socket:
            self.socket.close()

    def refused(self, reply: bytes, whole_mail: bool) -> None:
        self.metrics.smtp_refused(self.name, reply[:3].decode(), whole_mail)

    def login_failed(self) -> None:
        self.metrics.smtp_login_failures.labels(self.name).inc()

    def turned_away(self) -> None:
        self.metrics.smtp_turned_away.labels(self.name).inc()

    def came(self) -> None:
        self._sessions.inc()
        self._connections.inc()

    def went(self) -> None:
        self._connections.dec()
