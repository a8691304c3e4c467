"""What SNS signs, and with which certificate: fetched only from Amazon's own hosts, and kept.

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
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from pillarbox.errors import Forged, NoAnswer

# In this order, each where it is there; the latter for confirmations.
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
# Which one is theirs to choose.
HASHES: dict[str, type[hashes.HashAlgorithm]] = {"1": hashes.SHA1, "2": hashes.SHA256}

# Octets of a certificate; Amazon's has about two thousand.
LARGEST = 16 * 1024
# Seconds for one fetch: the sender waits for our answer, fifteen at most.
TIMEOUT = 5.0
# Certificates kept at a time; Amazon uses one per region, and a new one each year.
MOST_KEPT = 16
# Seconds that a certificate is believed without looking again.
KEPT_FOR = 86400.0
# Seconds after which one that could not be fetched is asked for again.
AGAIN_AFTER = 5.0
# Fetches in a minute: strangers who know a topic's name do not make us ask Amazon for ever new
# addresses.
MOST_FETCHES = 10

_HOST = re.compile(r"sns\.([a-z0-9-]{3,30})\.amazonaws\.com(?:\.cn)?").fullmatch
_PATH = re.compile(r"/SimpleNotificationService-[0-9a-f]{32}\.pem").fullmatch
_LOOPBACK = re.compile(
    r"(https?://(?:127\.0\.0\.1|\[::1\]|localhost)(?::[0-9]{1,5})?)(?:/.*)?"
).fullmatch


class SnsCertificates:
    """Public keys by the address of their certificate. `twin`: a twin's address, honoured on this machine alone."""

    def __init__(self, twin: object = None) -> None:
        found = _LOOPBACK(twin) if isinstance(twin, str) else None
        self._prefix = f"{found[1]}/" if found else None
        self._keys: OrderedDict[str, tuple[rsa.RSAPublicKey | None, float]] = OrderedDict()
        self._fetched: list[float] = []
        self._lock = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    async def key_of(self, envelope: Mapping[str, Any], now: float) -> rsa.RSAPublicKey:
        """The key that an envelope says it was signed with; Forged if it cannot be Amazon's."""
        url = str(envelope.get("SigningCertURL") or envelope.get("SigningCertUrl") or "")
        if not self.is_theirs(url, str(envelope.get("TopicArn")), certificate=True):
            raise Forged("certificate", "the certificate is not at an address of Amazon's")
        known = self._keys.get(url)
        if known is None or known[1] < now:
            async with self._lock:
                known = self._keys.get(url)
                if known is None or known[1] < now:
                    known = await self._fetch(url, now)
        if known[0] is None:
            raise Forged("certificate", "the certificate could not be fetched, or is none")
        return known[0]

    def is_theirs(self, url: str, topic: str, *, certificate: bool = False) -> bool:
        """Whether an address is of SNS in the region of a topic."""
        if self._prefix is not None and url.startswith(self._prefix):
            return True
        try:
            parts = urlsplit(url)
            host = _HOST(parts.netloc)  # with a port or a login it is another
        except ValueError:
            return False
        region = topic.split(":")[3] if topic.count(":") >= 5 else None
        if parts.scheme != "https" or host is None or host[1] != region or parts.fragment:
            return False
        return bool(_PATH(parts.path)) and not parts.query if certificate else parts.path == "/"

    async def _fetch(self, url: str, now: float) -> tuple[rsa.RSAPublicKey | None, float]:
        """Fetch and keep a key; what could not be fetched is not tried again for a while, either."""
        if not self._was_good(
            url
        ):  # one that is only to be looked at again is not for strangers to hold up
            self._fetched = [at for at in self._fetched if now - 60 < at <= now]
            if len(self._fetched) >= MOST_FETCHES:
                raise Forged("certificate", "too many certificates were asked for")
            self._fetched.append(now)
        try:
            key, until = _read(await self.get(url), now)
        except (NoAnswer, ValueError):
            key, until = None, now + AGAIN_AFTER
        self._keys[url] = (key, until)
        self._keys.move_to_end(url)
        if len(self._keys) > MOST_KEPT:  # those that were none go first: any stranger may name some
            none = next((one for one in self._keys if not self._was_good(one)), None)
            del self._keys[none or next(iter(self._keys))]
        return key, until

    def _was_good(self, url: str) -> bool:
        return url in self._keys and self._keys[url][0] is not None

    async def get(self, url: str) -> bytes:
        """What lies at an address that `is_theirs`; follows nothing, and reads no more than a certificate has."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT)
            self._session = aiohttp.ClientSession(
                timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        try:
            async with self._session.get(url, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise NoAnswer("SNS answered otherwise than expected", answer.status)
                content = await answer.content.read(LARGEST + 1)
                while len(content) <= LARGEST and (more := await answer.content.read(LARGEST)):
                    content += more
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise NoAnswer(f"SNS cannot be reached: {type(error).__name__}") from error
        if len(content) > LARGEST:
            raise NoAnswer("SNS answered with more than expected")
        return content

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _read(pem: bytes, now: float) -> tuple[rsa.RSAPublicKey, float]:
    """The key of a certificate, and until when to believe it; ValueError if it is none that is valid now."""
    certificate = x509.load_pem_x509_certificate(pem)
    key, today = certificate.public_key(), datetime.fromtimestamp(now, UTC)
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < 2048:
        raise ValueError("not a key of RSA")
    if not certificate.not_valid_before_utc <= today <= certificate.not_valid_after_utc:
        raise ValueError("not valid now")
    return key, min(now + KEPT_FOR, certificate.not_valid_after_utc.timestamp())


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
    names = SIGNED if envelope.get("Type") == "Notification" else SIGNED_CONFIRMATION
    return "".join(f"{name}\n{envelope[name]}\n" for name in names if name in envelope).encode()


async def confirm(envelope: Mapping[str, Any], certificates: SnsCertificates) -> None:
    """Tell SNS that we want the notifications of a topic; Forged if the address for that is not its own."""
    url = str(envelope.get("SubscribeURL"))
    if not certificates.is_theirs(url, str(envelope.get("TopicArn"))):
        raise Forged("certificate", "the subscription is not at an address of Amazon's")
    await certificates.get(url)
