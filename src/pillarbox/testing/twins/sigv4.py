"""Checking AWS Signature Version 4 from the published algorithm, apart from any signer."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote, unquote_plus

from pillarbox.testing.twins.wire import Request

# How far a request's clock may be off.
TOLERANCE = 15 * 60
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=([^,/\s]+)/(\d{8})/([^,/\s]+)/([^,/\s]+)/aws4_request,\s*"
    r"SignedHeaders=([^,\s]+),\s*Signature=([0-9a-f]{64})"
)
MISMATCH = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key"
    " and signing method. Consult the service documentation for details."
)


class Refused(Exception):
    """A request that is not signed as it must be: the error's type, and what it says."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error, self.message = error, message


@dataclass(frozen=True, slots=True)
class Account:
    key_id: str
    secret: str
    region: str
    service: str = "ses"


def check(request: Request, account: Account, now: float | None = None) -> None:
    """Raises Refused unless the request was signed by the account, now and for this service."""
    given = request.headers.get("authorization")
    if given is None:
        raise Refused("MissingAuthenticationTokenException", "Missing Authentication Token")
    found = _AUTHORIZATION.fullmatch(given)
    if found is None:
        raise Refused(
            "IncompleteSignatureException",
            "Authorization header requires existence of its parameters.",
        )
    key_id, day, region, service, names, signature = found.groups()
    if key_id != account.key_id:
        raise Refused(
            "UnrecognizedClientException", "The security token included in the request is invalid."
        )
    if (region, service) != (account.region, account.service):
        raise Refused(
            "InvalidSignatureException",
            "Credential should be scoped to a valid region and correct service.",
        )
    at = request.headers.get("x-amz-date", "")
    _check_time(at, day, time.time() if now is None else now)
    signed = names.split(";")
    _check_names(request, signed)
    scope = f"{day}/{region}/{service}/aws4_request"
    canonical = hashlib.sha256(_canonical(request, signed).encode("latin-1")).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{canonical}"
    expected = hmac.new(
        _key(account.secret, day, region, service), text.encode(), hashlib.sha256
    ).hexdigest()
    if not hmac.compare_digest(expected, signature):
        raise Refused("InvalidSignatureException", MISMATCH)


def _check_time(at: str, day: str, now: float) -> None:
    then = _moment(at)
    if then is None:
        raise Refused("IncompleteSignatureException", "Authorization header requires 'X-Amz-Date'.")
    if not at.startswith(day) or abs(now - then) > TOLERANCE:
        raise Refused(
            "InvalidSignatureException", f"Signature expired: {at} is not within 15 minutes of now."
        )


@lru_cache(maxsize=8)
def _moment(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _check_names(request: Request, signed: list[str]) -> None:
    """Host and all x-amz headers must be signed, in order; a given hash must match the body."""
    needed = {"host", *(name for name in request.headers if name.startswith("x-amz-"))}
    if (
        not needed <= set(signed)
        or signed != sorted(signed)
        or not set(signed) <= set(request.headers)
    ):
        raise Refused("InvalidSignatureException", MISMATCH)
    stated = request.headers.get("x-amz-content-sha256")
    if stated is not None and stated != hashlib.sha256(request.body).hexdigest():
        raise Refused(
            "InvalidSignatureException",
            "The provided 'x-amz-content-sha256' does not match the body.",
        )


def _canonical(request: Request, signed: list[str]) -> str:
    headers = "".join([f"{name}:{' '.join(request.headers[name].split())}\n" for name in signed])
    body = hashlib.sha256(request.body).hexdigest()
    return f"{request.method}\n{_place(request.target)}\n{headers}\n{';'.join(signed)}\n{body}"


@lru_cache(maxsize=64)
def _place(target: str) -> str:
    """Path and query. All services but S3 encode the path as it was sent once more."""
    path, _, query = target.partition("?")
    pairs = (part.partition("=") for part in query.split("&") if part)
    encoded = sorted(
        (_encode(unquote_plus(name)), _encode(unquote_plus(value))) for name, _, value in pairs
    )
    words = "&".join(f"{name}={value}" for name, value in encoded)
    return f"{quote(path, safe='/-_.~')}\n{words}"


def _encode(text: str) -> str:
    return quote(text, safe="-_.~")


@lru_cache(maxsize=8)
def _key(secret: str, *scope: str) -> bytes:
    key = b"AWS4" + secret.encode()
    for part in (*scope, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
