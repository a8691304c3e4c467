"""Verifies messages of SNS. Certificates are fetched only from Amazon's own hosts, and cached.

https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from pillarbox.errors import Forged, NoAnswer

# The signed fields in this order, as far as present; the second list is for confirmations.
SIGNED = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
SIGNED_CONFIRMATION = (
    "Message",
    "MessageId",
    "SubscribeURL",
    "Timestamp",
    "Token",
    "TopicArn",
    "Type",
)
# By the version of the signature.
HASHES: dict[str, type[hashes.HashAlgorithm]] = {"1": hashes.SHA1, "2": hashes.SHA256}

# Bytes of a certificate; Amazon's has about two thousand.
MAX_BYTES = 16 * 1024
# Seconds for one fetch: the sender waits for our answer, fifteen at most.
TIMEOUT = 5.0
# Cached certificates; Amazon uses one per region, and a new one each year.
MAX_CACHED = 16
# Seconds that a certificate is cached.
CACHE_SECONDS = 86400.0
# Seconds until a certificate that could not be fetched is requested again.
RETRY_AFTER = 5.0
# Fetches in a minute: an attacker who knows a topic's name must not make us request ever new
# addresses.
MAX_FETCHES = 10

_HOST = re.compile(r"sns\.([a-z0-9-]{3,30})\.amazonaws\.com(?:\.cn)?").fullmatch
_PATH = re.compile(r"/SimpleNotificationService-[0-9a-f]{32}\.pem").fullmatch
_LOOPBACK = re.compile(
    r"(https?://(?:127\.0\.0\.1|\[::1\]|localhost)(?::[0-9]{1,5})?)(?:/.*)?"
).fullmatch


class CachedKey(NamedTuple):
    """The key of a certificate, and when to fetch it again; None if it could not be fetched."""

    key: rsa.RSAPublicKey | None
    expires_at: float


class SnsCertificates:
    """Public keys by the URL of their certificate.

    `local_url`: where a test service on this machine keeps its certificates.
    """

    def __init__(self, local_url: object = None) -> None:
        self._local_prefix: str | None = None
        found = _LOOPBACK(local_url) if isinstance(local_url, str) else None
        if found:
            self._local_prefix = f"{found[1]}/"
        self._keys: OrderedDict[str, CachedKey] = OrderedDict()
        self._fetched: list[float] = []
        self._lock = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    async def key_of(self, envelope: Mapping[str, Any], now: float) -> rsa.RSAPublicKey:
        """The key that an envelope names; Forged if it cannot be Amazon's."""
        url = str(envelope.get("SigningCertURL") or envelope.get("SigningCertUrl") or "")
        if not self.is_certificate(url, str(envelope.get("TopicArn"))):
            raise Forged("certificate", "the certificate is not at an address of Amazon's")
        cached = self._cached(url, now)
        if cached is None:
            async with self._lock:
                cached = self._cached(url, now) or await self._fetch(url, now)
        if cached.key is None:
            raise Forged("certificate", "the certificate could not be fetched, or is not valid")
        return cached.key

    def _cached(self, url: str, now: float) -> CachedKey | None:
        cached = self._keys.get(url)
        if cached is None or cached.expires_at < now:
            return None
        return cached

    def is_certificate(self, url: str, topic: str) -> bool:
        """Whether a URL is that of a certificate of SNS in the region of a topic."""
        return self._is_local(url) or _is_sns(url, topic, is_certificate=True)

    def is_subscription(self, url: str, topic: str) -> bool:
        """Whether a URL confirms a subscription at SNS in the region of a topic."""
        return self._is_local(url) or _is_sns(url, topic, is_certificate=False)

    def _is_local(self, url: str) -> bool:
        return self._local_prefix is not None and url.startswith(self._local_prefix)

    async def _fetch(self, url: str, now: float) -> CachedKey:
        """Fetch and cache a key; a failure is cached, too, for a while."""
        if not self._was_good(url):  # renewing a good certificate is not limited by the others
            self._count_fetch(now)
        try:
            cached = _read(await self.get(url), now)
        except (NoAnswer, ValueError):
            cached = CachedKey(None, now + RETRY_AFTER)
        self._keys[url] = cached
        self._keys.move_to_end(url)
        if len(self._keys) > MAX_CACHED:
            self._evict()
        return cached

    def _count_fetch(self, now: float) -> None:
        self._fetched = [at for at in self._fetched if now - 60 < at <= now]
        if len(self._fetched) >= MAX_FETCHES:
            raise Forged("certificate", "too many certificates were requested")
        self._fetched.append(now)

    def _evict(self) -> None:
        """Drop a failure first, because anybody can cause one; otherwise the oldest key."""
        failures = [url for url in self._keys if not self._was_good(url)]
        oldest = next(iter(failures or self._keys))
        del self._keys[oldest]

    def _was_good(self, url: str) -> bool:
        return url in self._keys and self._keys[url].key is not None

    async def get(self, url: str) -> bytes:
        """The content of a checked URL; follows no redirect, and reads at most MAX_BYTES."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT)
            self._session = aiohttp.ClientSession(
                timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    raise NoAnswer("SNS sent an unexpected response", response.status)
                content = await _read_some(response.content)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise NoAnswer(f"SNS cannot be reached: {type(error).__name__}") from error
        if len(content) > MAX_BYTES:
            raise NoAnswer("SNS sent more than expected")
        return content

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _read_some(stream: aiohttp.StreamReader) -> bytes:
    """The content, or a little more than MAX_BYTES of it."""
    content = b""
    while len(content) <= MAX_BYTES:
        more = await stream.read(MAX_BYTES + 1)
        if not more:
            break
        content += more
    return content


def _is_sns(url: str, topic: str, *, is_certificate: bool) -> bool:
    try:
        parts = urlsplit(url)
        host = _HOST(parts.netloc)  # a port or a login does not match
    except ValueError:
        return False
    if parts.scheme != "https" or host is None or parts.fragment:
        return False
    topic_parts = topic.split(":")
    if len(topic_parts) < 6 or host[1] != topic_parts[3]:
        return False
    if is_certificate:
        return _PATH(parts.path) is not None and not parts.query
    return parts.path == "/"


def _read(pem: bytes, now: float) -> CachedKey:
    """The key of a certificate; ValueError if it is not valid now."""
    certificate = x509.load_pem_x509_certificate(pem)
    key = certificate.public_key()
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < 2048:
        raise ValueError("not an RSA key of at least 2048 bits")
    today = datetime.fromtimestamp(now, UTC)
    if not certificate.not_valid_before_utc <= today <= certificate.not_valid_after_utc:
        raise ValueError("not valid now")
    expires_at = min(now + CACHE_SECONDS, certificate.not_valid_after_utc.timestamp())
    return CachedKey(key, expires_at)


def check_signature(envelope: Mapping[str, Any], key: rsa.RSAPublicKey) -> None:
    """Raise Forged unless an envelope was signed with this key."""
    algorithm = HASHES.get(str(envelope.get("SignatureVersion")))
    if algorithm is None:
        raise Forged("signature", "the version of the signature is unknown")
    try:
        signature = base64.b64decode(str(envelope.get("Signature")), validate=True)
        key.verify(signature, _to_sign(envelope), padding.PKCS1v15(), algorithm())
    except (binascii.Error, ValueError, InvalidSignature):
        raise Forged("signature", "the signature is wrong") from None


def _to_sign(envelope: Mapping[str, Any]) -> bytes:
    names: tuple[str, ...] = SIGNED_CONFIRMATION
    if envelope.get("Type") == "Notification":
        names = SIGNED
    return "".join(f"{name}\n{envelope[name]}\n" for name in names if name in envelope).encode()


async def confirm(envelope: Mapping[str, Any], certificates: SnsCertificates) -> None:
    """Confirm the subscription of a topic; Forged if its URL is not one of SNS."""
    url = str(envelope.get("SubscribeURL"))
    if not certificates.is_subscription(url, str(envelope.get("TopicArn"))):
        raise Forged("certificate", "the subscription is not at an address of Amazon's")
    await certificates.get(url)
