"""Opens connections that are ready for mail: connect, EHLO, STARTTLS, AUTH, by aiosmtplib."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace
from typing import cast

import aiosmtplib

from pillarbox.deliver.transports.smtp_connection import ReadyConnection
from pillarbox.deliver.transports.smtp_envelope import ServerCapabilities
from pillarbox.deliver.transports.smtp_replies import SmtpStage, classify, printable
from pillarbox.model.outcome import Outcome, Reason, deferred
from pillarbox.model.provider_kinds.smtp import SmtpSettings, Tls
from pillarbox.model.secret import masked


class HandshakeFailed(Exception):
    """No connection is ready for mail; `outcome` is that of every mail that waited for it."""

    def __init__(self, outcome: Outcome, transcript: str) -> None:
        super().__init__(outcome.text)
        self.outcome = outcome
        self.transcript = transcript


class _Client(aiosmtplib.SMTP):
    """Closes at once: a TLS transport would wait for the close_notify of a server that hangs."""

    def close(self) -> None:
        if self.transport is not None:
            cast("asyncio.Transport", self.transport).abort()
        super().close()


class SmtpConnector:
    """Opens connections to one server; caches the TLS context and our host name."""

    def __init__(self, settings: SmtpSettings) -> None:
        self._settings = settings
        self._context: ssl.SSLContext | None = None
        self._helo = settings.helo

    async def open(self, timeout: float) -> ReadyConnection:
        """A connection ready for mail, or HandshakeFailed."""
        handshake = await self.greet(timeout)
        return handshake.hand_over()

    async def greet(self, timeout: float) -> SmtpHandshake:
        """A finished handshake; aiosmtplib still owns the connection."""
        client: _Client | None = None
        transcript: list[str] = []
        try:
            async with asyncio.timeout(timeout):
                client = await self._prepare(timeout)
                handshake = SmtpHandshake(client, self._settings, transcript)
                await handshake.run()
                return handshake
        except Exception as error:
            _drop(client)
            raise _failure(error, self._settings, transcript) from error
        except asyncio.CancelledError:
            _drop(client)
            raise

    async def _prepare(self, timeout: float) -> _Client:
        settings = self._settings
        if self._helo is None:
            self._helo = await asyncio.to_thread(socket.getfqdn)
        if self._context is None and settings.tls is not Tls.NONE:
            self._context = await asyncio.to_thread(_tls_context, settings)
        return _Client(
            hostname=settings.host,
            port=settings.port,
            local_hostname=self._helo,
            timeout=timeout,
            use_tls=settings.tls is Tls.IMPLICIT,
            start_tls=False,  # done below, to know which step failed
            tls_context=self._context,
        )


class SmtpHandshake:
    """The steps of one handshake, and what the server offers."""

    def __init__(
        self, client: aiosmtplib.SMTP, settings: SmtpSettings, transcript: list[str]
    ) -> None:
        self.client = client
        self._settings = settings
        self._transcript = transcript

    async def run(self) -> None:
        settings = self._settings
        self._transcript.append(
            f"→ (connect to {settings.host}:{settings.port}, tls {settings.tls})"
        )
        banner = await self.client.connect()
        self._transcript.append(f"← 220 {printable(banner.message)}")
        await self._hello()
        if settings.tls is Tls.STARTTLS or (
            settings.tls is Tls.OPPORTUNISTIC and self._offers("starttls")
        ):
            await self._start_tls()
        if settings.username is not None:
            await self._login(settings.username)

    async def _hello(self) -> None:
        try:
            await self.client.ehlo()
        except aiosmtplib.SMTPHeloError as error:
            if error.code < 500:
                raise
            await self.client.helo()  # a server from before 1995; it can still take mail
        extensions = " ".join(
            f"{name} {rest}".strip() for name, rest in self.client.esmtp_extensions.items()
        )
        self._transcript.append(f"← 250 {printable(extensions.upper())}")

    async def _start_tls(self) -> None:
        if not self._offers("starttls"):
            raise _NoTls("the server does not offer STARTTLS")
        try:
            await self.client.starttls()
        except (TimeoutError, ssl.SSLError):
            raise
        except (aiosmtplib.SMTPException, OSError) as error:
            raise _NoTls(f"STARTTLS failed: {_words(error)}") from error
        self._transcript.append(f"  ({self.tls_version})")
        await self._hello()

    async def _login(self, username: str) -> None:
        if self._settings.tls is Tls.OPPORTUNISTIC and self.tls_version is None:
            raise _NoTls("the server offers no TLS, and credentials are not sent in clear")
        password = self._settings.password.reveal() if self._settings.password else ""
        try:
            await self.client.login(username, password)
        except (aiosmtplib.SMTPServerDisconnected, TimeoutError, aiosmtplib.SMTPResponseException):
            raise
        except aiosmtplib.SMTPException as error:
            raise _NoLogin(error.message) from error
        self._transcript.append("  (logged in)")

    def _offers(self, extension: str) -> bool:
        return self.client.supports_extension(extension)

    @property
    def tls_version(self) -> str | None:
        """Such as `TLSv1.3`; None without TLS."""
        secured = self.client.get_transport_info("ssl_object")
        if secured is None:
            return None
        version: str | None = secured.version()
        return version

    @property
    def capabilities(self) -> ServerCapabilities:
        size = None
        if self._offers("size"):
            limit = self.client.esmtp_extensions.get("size", "")
            size = int(limit) if limit.isdecimal() else 0
        return ServerCapabilities(
            pipelining=self._offers("pipelining"),
            size=size,
            eight_bit=self._offers("8bitmime"),
            utf8=self._offers("smtputf8"),
        )

    def hand_over(self) -> ReadyConnection:
        """The connection; aiosmtplib no longer owns it."""
        transport = cast("asyncio.Transport", self.client.transport)
        link = ReadyConnection(transport, self.capabilities, "\n".join(self._transcript))
        self.client.transport = None
        self.client.protocol = None
        return link

    def describe(self) -> str:
        """One line for people."""
        settings, offered = self._settings, self.capabilities
        version = self.tls_version or "no TLS"
        parts = [f"{settings.host}:{settings.port}", version.replace("TLSv", "TLS ")]
        if offered.pipelining:
            parts.append("PIPELINING")
        if offered.size:
            parts.append(f"SIZE {offered.size}")
        if offered.eight_bit:
            parts.append("8BITMIME")
        if offered.utf8:
            parts.append("SMTPUTF8")
        if settings.username is not None:
            parts.append(f"logged in as {settings.username}")
        return ", ".join(parts)


class _NoTls(Exception):
    """TLS is required and not available."""


class _NoLogin(Exception):
    """A login is required and not possible."""


def _tls_context(settings: SmtpSettings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if settings.ca_file:
        context.load_verify_locations(cafile=settings.ca_file)
    if settings.tls is Tls.OPPORTUNISTIC:
        # Protects against passive eavesdroppers only; the operator has chosen it.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _drop(client: _Client | None) -> None:
    if client is not None:
        client.close()


def _failure(error: Exception, settings: SmtpSettings, transcript: list[str]) -> HandshakeFailed:
    outcome = _outcome(error, settings)
    if settings.password:
        outcome = replace(
            outcome, text=masked(outcome.text or "", settings.password, settings.username)
        )
    return HandshakeFailed(outcome, "\n".join([*transcript, f"! {outcome.text}"]))


def _outcome(error: Exception, settings: SmtpSettings) -> Outcome:
    """Maps foreign exceptions, here only. Always deferred: no mail caused it."""
    where = f"{settings.host}:{settings.port}"
    tls = _tls_error(error)
    if tls is not None:
        return deferred(Reason.TLS, None, f"{where}: {_words(tls)}")
    if isinstance(error, TimeoutError):
        return deferred(Reason.TIMEOUT, None, f"{where}: no connection within the time allowed")
    if isinstance(error, _NoLogin):
        return deferred(Reason.CREDENTIAL, None, f"{where}: {error}")
    if isinstance(error, aiosmtplib.SMTPResponseException):
        return _answered(error)
    return deferred(Reason.UNAVAILABLE, None, f"{where}: {_words(error)}")


def _answered(error: aiosmtplib.SMTPResponseException) -> Outcome:
    text = printable(" ".join(error.message.split()))
    if error.code < 400:  # aiosmtplib uses -1 for an invalid reply
        return deferred(Reason.PROTOCOL, None, text)
    if isinstance(error, aiosmtplib.SMTPAuthenticationError) and error.code >= 500:
        return deferred(Reason.CREDENTIAL, error.code, text)
    return classify(error.code, text, SmtpStage.CONNECT)


def _tls_error(error: BaseException | None) -> BaseException | None:
    """The TLS error among the causes of an error."""
    while error is not None:
        if isinstance(error, ssl.SSLError | _NoTls):
            return error
        error = error.__cause__
    return None


def _words(error: BaseException) -> str:
    return printable(str(error)) or type(error).__name__
