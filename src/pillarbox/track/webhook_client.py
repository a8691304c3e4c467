"""Makes one webhook call: signs it, checks its address, limits its time, reads the response."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

from pillarbox.errors import RefusedAddress, SettingsError
from pillarbox.model import webhook
from pillarbox.model.secret import Secret, masked
from pillarbox.model.webhook import CallState
from pillarbox.store.webhooks import CallResult, ClaimedCall
from pillarbox.track.address_guard import (
    GuardedResolver,
    ThreadedResolver,
    check_url,
    guarded_connector,
)

# Bytes that are read of a response: enough for any error message.
MAX_RESPONSE = 64 * 1024
# Characters of it that are stored.
MAX_ERROR = 500
GONE = 410


# OpenSSL's verification codes, as texts that a customer can act on.
CERTIFICATE_FAULTS = {
    9: "the certificate is not yet valid",
    10: "the certificate has expired",
    18: "the certificate is self-signed",
    19: "the certificate was issued by an unknown authority",
    20: "the certificate was issued by an unknown authority",
    21: "the certificate was issued by an unknown authority",
    62: "the certificate is for another name",
    64: "the certificate is for another address",
}


def tls_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """A TLS context with the system's authorities and those in a file; else SettingsError."""
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"webhook_ca_file: {ca_file} cannot be used: {error.strerror or error}"
            ) from None
    return context


class WebhookClient:
    """Makes calls, without redirects, cookies or the proxies of the environment."""

    def __init__(
        self,
        timeout: float,
        connections: int,
        redact: Callable[[str], str],
        version: str,
        allow_private: bool,
        tls: ssl.SSLContext | bool = True,
    ) -> None:
        self._redact = redact
        self._allow_private = allow_private
        self._names = ThreadedResolver(connections)
        resolver = GuardedResolver(allow_private, self._names)
        self._session = aiohttp.ClientSession(
            connector=guarded_connector(resolver, connections, tls),
            timeout=aiohttp.ClientTimeout(total=timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={
                "User-Agent": f"pillarbox-webhooks/{version}",
                "Content-Type": "application/json",
            },
            auto_decompress=False,  # a small response must not become a large one
            max_line_size=8190,
            max_field_size=8190,
        )

    async def close(self) -> None:
        await self._session.close()
        self._names.close()

    async def call(self, call: ClaimedCall) -> CallResult:
        """Make one call; never raises for anything that the receiver does."""
        started = time.monotonic()
        status: int | None = None
        try:
            status, error = await self._post(call)
        except RefusedAddress as refused:
            error = f"not called: {refused}"
        except TimeoutError:
            error = "no answer in time"
        except (aiohttp.ClientError, OSError, ValueError) as fault:
            error = _words(fault)
        took = time.monotonic() - started
        if error is None:
            return CallResult(CallState.DELIVERED, status, None, took)
        redacted = self._redact(without_secrets(error, call.secrets))[:MAX_ERROR]
        jitter = random.random()  # noqa: S311 -- not a secret
        delay = webhook.delay(call.attempts + 1, jitter)
        state = CallState.FAILED if delay is None else CallState.WAITING
        return CallResult(state, status, redacted, took, delay, gone=status == GONE)

    async def _post(self, call: ClaimedCall) -> tuple[int, str | None]:
        """The status of the response, and an error unless it is a success."""
        if not call.secrets:
            raise RefusedAddress(
                "the signing secret cannot be opened with the keys of this installation"
            )
        url = check_url(call.url, allow_private=self._allow_private)
        content = webhook.body(call.kind, call.at, call.payload)
        headers = webhook.headers(str(call.id), int(time.time()), content, call.secrets)
        async with self._session.post(
            url, data=content, headers=headers, allow_redirects=False
        ) as response:
            text = await _beginning(response)
        status = response.status
        if 200 <= status < 300:
            return status, None
        if 300 <= status < 400:
            return (
                status,
                f"answered {status}: redirects are not followed; give the URL that it leads to",
            )
        return status, f"answered {status}: {text}".removesuffix(": ")


def without_secrets(text: str, secrets: Sequence[Secret]) -> str:
    """A text of the receiver without the secrets that sign calls."""
    for secret in secrets:
        text = masked(masked(text, secret), Secret(secret.reveal().removeprefix(webhook.PREFIX)))
    return text


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """The beginning of a response on one line; the connection is closed if there is more."""
    content = b""
    while len(content) < MAX_RESPONSE:
        part = await response.content.read(MAX_RESPONSE - len(content))
        if not part:
            break
        content += part
    else:
        response.close()
    text = content[: 4 * MAX_ERROR].decode("utf-8", "replace")
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())


def _words(fault: Exception) -> str:
    """The error in words, without IP addresses, which are internal."""
    match fault:
        case aiohttp.ClientConnectorDNSError():
            return "the name does not resolve"
        case aiohttp.ClientConnectorCertificateError():
            code = getattr(fault.certificate_error, "verify_code", 0)
            return f"TLS failed: {CERTIFICATE_FAULTS.get(code, 'the certificate is not valid')}"
        case aiohttp.ClientConnectorSSLError() | aiohttp.ClientSSLError():
            return "TLS failed: no common version or cipher, or the server does not speak TLS"
        case aiohttp.ClientConnectorError():
            return "no connection"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
            return "the connection was lost before an answer came"
        case aiohttp.ClientPayloadError():
            return "the answer broke off"
    return f"the answer is not HTTP: {type(fault).__name__}"


def lease_of(timeout: float) -> float:
    """The seconds of a claim: the timeout, and time to store the result during an outage."""
    return timeout + 30.0
