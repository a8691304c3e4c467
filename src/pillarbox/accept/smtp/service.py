"""SMTP as the settings want it: listeners, limits, certificate."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from pillarbox.accept.smtp.listeners import Listener
from pillarbox.accept.smtp.rules import SessionLimits
from pillarbox.accept.smtp.server import Server, SmtpConnectionLimits, Timeouts
from pillarbox.accept.smtp.submission import SubmissionHandler
from pillarbox.accept.smtp.tls import Certificate
from pillarbox.errors import SettingsError, Unauthorized
from pillarbox.model.address import ascii_domain
from pillarbox.model.proxies import TrustedProxies
from pillarbox.sockets import show_address
from pillarbox.store.opening import patiently
from pillarbox.supervisor import Supervisor

if TYPE_CHECKING:
    import asyncio

    from pillarbox.accept.auth import Authenticator
    from pillarbox.accept.intake import Intake
    from pillarbox.settings import Settings
    from pillarbox.telemetry.metrics import Metrics

# Listeners that need no login, and accept any: on loopback addresses, in `up`.
DEVELOPMENT = frozenset({"smtp", "smtp_starttls"})
Ready = Callable[[Mapping[str, str]], None]


class SmtpService:
    """What the settings say about SMTP, ready to be run."""

    def __init__(
        self,
        settings: Settings,
        authenticator: Authenticator,
        intake: Intake,
        metrics: Metrics,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor(metrics)
        self._settings = settings
        self._metrics = metrics
        self._name = ascii_domain(settings.smtp_hostname or socket.gethostname())
        self._limits = limits_of(settings)
        self._handler = SubmissionHandler(authenticator, intake, self._limits, self._name)

    async def run(self, stop: asyncio.Event, ready: Ready | None = None) -> None:
        """Serve until `stop`; `ready` gets where each listener is, once all can be connected to."""
        certificate = self._certificate()
        listeners = [
            await patiently(partial(self._listener, name, *address), stop)
            for name, address in self._settings.smtp_addresses.items()
        ]
        server = Server(
            self._name,
            self._handler,
            self._limits,
            timeouts_of(self._settings),
            connection_limits_of(self._settings),
            certificate,
            self._supervisor,
        )
        with ExitStack() as opened:
            for listener in listeners:
                listener.open()
                opened.callback(listener.close)
            if ready:
                ready({listener.name: listener.where for listener in listeners})
            await server.run(listeners, stop)

    def _certificate(self) -> Certificate | None:
        chain, key = self._settings.smtp_certificate, self._settings.smtp_private_key
        if chain is None and "smtp_starttls" in self._settings.smtp_addresses:
            from pillarbox.accept.smtp import (
                development_certificate,
            )  # only here: it takes long to import

            host, _ = self._settings.smtp_addresses["smtp_starttls"]
            chain = development_certificate.load_or_create(self._settings.data_dir, host).server
        if chain is None:
            return None
        return Certificate(chain, key)

    async def _listener(self, name: str, host: str, port: int) -> Listener:
        if name not in DEVELOPMENT:
            tls = name == "smtp_tls"
            return Listener(name, (host, port), self._metrics, starttls=not tls, implicit_tls=tls)
        where = show_address(host, port)
        if not is_loopback(host):
            raise SettingsError(
                f"{name} is {where}, where others could send mail without a login: name a"
                " loopback address, or use smtp_submission or smtp_tls"
            )
        try:
            policy = await self._handler.development()
        except Unauthorized:
            raise SettingsError(
                f"{name} is {where}, but mail without a login is for development, with"
                " `pillarbox up`: use smtp_submission or smtp_tls"
            ) from None
        starttls = name == "smtp_starttls"
        return Listener(
            name,
            (host, port),
            self._metrics,
            lambda: policy,
            starttls=starttls,
            # Clients that find STARTTLS use it, and would not trust the certificate.
            plain_login=not starttls,
            log_in=self._handler.log_in_to_development,
        )


def limits_of(settings: Settings) -> SessionLimits:
    return SessionLimits(
        message=settings.smtp_max_message,
        recipients=settings.smtp_max_recipients,
        line=settings.smtp_max_line,
        text_line=settings.smtp_max_text_line,
        header=settings.smtp_max_header,
        header_lines=settings.smtp_max_header_lines,
        nesting=settings.smtp_max_nesting,
        errors=settings.smtp_max_errors,
        commands=settings.smtp_max_commands,
        messages=settings.smtp_max_messages,
    )


def timeouts_of(settings: Settings) -> Timeouts:
    return Timeouts(
        settings.smtp_idle_timeout, settings.smtp_mail_timeout, settings.smtp_login_timeout
    )


def connection_limits_of(settings: Settings) -> SmtpConnectionLimits:
    return SmtpConnectionLimits(
        settings.smtp_connections,
        settings.smtp_connections_per_peer,
        settings.smtp_bytes_in_flight,
        TrustedProxies(settings.trusted_proxies),
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
