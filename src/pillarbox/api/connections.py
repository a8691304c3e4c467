"""Limits the number of HTTP connections, and chooses which idle one is closed for a new one.

A connection is idle while no complete request head has arrived on it: between two requests, and
also before the first one, however slowly its bytes come. At a limit the connection that has been
idle longest makes room. Where none is idle, a few connections above the limit are taken for a
moment, on which only probes are answered: whether a connection brings a probe is known only after
its first request has arrived.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pillarbox.accept.auth import network_of
from pillarbox.api.middleware import PROBES
from pillarbox.api.problems import busy

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pillarbox.model.proxies import TrustedProxies
    from pillarbox.telemetry.metrics import Metrics

# Connections above the limit, for probes. Orchestrators and balancers have one or two each; the
# others are for clients that are refused there. More would need more open files than the limit
# accounts for.
RESERVED = 16
# Seconds for the request of a reserved connection to arrive: probes send it at once.
RESERVED_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a server; the settings `http_…` give the reasons."""

    connections: int
    per_peer: int
    request_timeout: float


class LimitedConnection(Protocol):
    """A connection, as the limits see it."""

    peer: str

    def close_idle(self) -> None:
        """Close, to make room for another connection."""
        ...


class ConnectionLimits:
    """The connections of one server, by client network and by idle time."""

    def __init__(self, server: ServerLimits, proxies: TrustedProxies, metrics: Metrics) -> None:
        self.server = server
        self._proxies = proxies
        self._metrics = metrics
        # The counted network of each connection; None: of a trusted proxy.
        self._networks: dict[LimitedConnection, str | None] = {}
        self._by_network: Counter[str] = Counter()
        self._idle: dict[LimitedConnection, None] = {}  # the longest idle first
        # The oldest first; whether the connection still waits for its request.
        self._reserved: dict[LimitedConnection, bool] = {}

    def admit(self, connection: LimitedConnection) -> bool:
        """Whether a new connection is within the limits; an idle one may be closed for it."""
        network = None if self._proxies.trusts(connection.peer) else network_of(connection.peer)
        if network is not None and self._by_network[network] >= self.server.per_peer:
            if not self._close_idle(network):
                return False
        elif len(self._networks) >= self.server.connections and not self._close_idle():
            return False
        self._networks[connection] = network
        if network is not None:
            self._by_network[network] += 1
        self.mark_idle(connection)
        return True

    def reserve(self, connection: LimitedConnection) -> bool:
        """Whether a connection above the limit may stay open for a probe."""
        if len(self._reserved) >= RESERVED:
            waiting = next(
                (connection for connection, waits in self._reserved.items() if waits), None
            )
            if waiting is None:
                return False
            self._close(waiting)
        self._reserved[connection] = True
        return True

    def mark_idle(self, connection: LimitedConnection) -> None:
        """The connection waits for a request."""
        if connection in self._networks:
            self._idle.setdefault(connection)

    def mark_busy(self, connection: LimitedConnection) -> None:
        """A request has arrived on the connection."""
        self._idle.pop(connection, None)
        if connection in self._reserved:
            self._reserved[connection] = False

    def remove(self, connection: LimitedConnection) -> None:
        """The connection is closed; may be called twice."""
        self._idle.pop(connection, None)
        self._reserved.pop(connection, None)
        network = self._networks.pop(connection, None)
        if network is not None:
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]

    def count_refused(self) -> None:
        """Count a refused connection."""
        self._metrics.http_connections_shed.labels("refused").inc()

    def _close_idle(self, network: str | None = None) -> bool:
        """Close the connection that is idle longest, of one network or of all; false if none is."""
        found = (
            connection
            for connection in self._idle
            if network is None or self._networks[connection] == network
        )
        longest = next(found, None)
        if longest is None:
            return False
        self._close(longest)
        return True

    def _close(self, connection: LimitedConnection) -> None:
        self.remove(connection)
        self._metrics.http_connections_shed.labels("idle").inc()
        connection.close_idle()


class ProbesOnly:
    """The application of a reserved connection: probes are answered, other requests get 503."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_probe = scope["type"] == "http" and scope["path"] in PROBES
        if is_probe:
            await self._app(scope, receive, send)
        else:
            await busy("too many connections are open").response()(scope, receive, send)
