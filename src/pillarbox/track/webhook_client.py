"""One call to a customer: signed, guarded, timed, and judged by its answer."""

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

# What is read of an answer: enough for any message of an error, too little to hurt.
LONGEST_ANSWER = 64 * 1024
# What is kept of it.
LONGEST_ERROR = 500
GONE = 410


# OpenSSL's codes of what is wrong with a certificate, in words that a customer can act on.
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


def trusted(ca_file: Path | None = None) -> ssl.SSLContext:
    """Verifies certificates and names by the system's authorities and those in a file; SettingsError if it is none."""
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
    """Makes calls. Redirects are not followed, cookies not kept, proxies of the environment not used."""

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
            auto_decompress=False,  # a small answer must not become a large one
            max_line_size=8190,
            max_field_size=8190,
        )

    async def close(self) -> None:
        await self._session.close()
        self._names.close()

    async def call(self, call: ClaimedCall) -> CallResult:
        """Make one call; never raises for what the other side does."""
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
        told = self._redact(without_secrets(error, call.secrets))[:LONGEST_ERROR]
        again = webhook.delay(call.attempts + 1, random.random())  # noqa: S311 -- jitter, not a secret
        state = CallState.FAILED if again is None else CallState.WAITING
        return CallResult(state, status, told, took, again, status == GONE)

    async def _post(self, call: ClaimedCall) -> tuple[int, str | None]:
        """The status, and what is wrong with it if anything is."""
        if not call.secrets:
            raise RefusedAddress(
                "the signing secret cannot be opened with the keys of this installation"
            )
        url = check_url(call.url, allow_private=self._allow_private)
        content = webhook.body(call.kind, call.at, call.payload)
        headers = webhook.headers(str(call.id), int(time.time()), content, call.secrets)
        async with self._session.post(
            url, data=content, headers=headers, allow_redirects=False
        ) as answer:
            said = await _beginning(answer)
        if 200 <= answer.status < 300:
            return answer.status, None
        if 300 <= answer.status < 400:
            return (
                answer.status,
                f"answered {answer.status}: redirects are not followed; give the URL that it leads to",
            )
        return answer.status, f"answered {answer.status}: {said}".removesuffix(": ")


def without_secrets(text: str, secrets: Sequence[Secret]) -> str:
    """What a receiver said, should it repeat what calls are signed with."""
    for secret in secrets:
        text = masked(masked(text, secret), Secret(secret.reveal().removeprefix(webhook.PREFIX)))
    return text


async def _beginning(answer: aiohttp.ClientResponse) -> str:
    """The first words of an answer, on one line; the connection is closed if there is more than we read."""
    content = b""
    while len(content) < LONGEST_ANSWER:
        some = await answer.content.read(LONGEST_ANSWER - len(content))
        if not some:
            break
        content += some
    else:
        answer.close()
    text = content[: 4 * LONGEST_ERROR].decode("utf-8", "replace")
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def _words(fault: Exception) -> str:
    """What went wrong, without addresses: they are the resolver's business."""
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
    """Seconds that a call is one caller's: its timeout, and time to write down how it ended while the store is away."""
    return timeout + 30.0
