"""AWS Signature Version 4. Pure: the time comes in, headers come out."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY = hashlib.sha256(b"").hexdigest()


class AwsCredentials(NamedTuple):
    access_key_id: str
    secret_key: str

    def __repr__(self) -> str:
        return f"Credentials({self.access_key_id[:4]}…)"


class SigV4Signer:
    """Signs requests to one service in one region. The signing key is derived once a day."""

    def __init__(self, credentials: AwsCredentials, region: str, service: str) -> None:
        self._credentials = credentials
        self._scope = f"{region}/{service}/aws4_request"
        self._region, self._service = region, service
        self._day = ""
        self._key = b""

    def sign(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        now: datetime,
        query: str = "",
    ) -> dict[str, str]:
        """The headers to add: the time, and the signature over the request with its Host header.

        `path` and `query` are in canonical form: encoded, parameters in order. `now` is in UTC.
        """
        day = f"{now.year:04}{now.month:02}{now.day:02}"  # a tenth of what strftime costs
        at = f"{day}T{now.hour:02}{now.minute:02}{now.second:02}Z"
        signed = {name.lower(): " ".join(value.split()) for name, value in headers.items()} | {
            "x-amz-date": at
        }
        names = sorted(signed)
        listed = ";".join(names)
        fields = "".join([f"{name}:{signed[name]}\n" for name in names])
        digest = hashlib.sha256(body).hexdigest() if body else EMPTY
        canonical = f"{method}\n{path}\n{query}\n{fields}\n{listed}\n{digest}"
        scope = f"{day}/{self._scope}"
        to_sign = f"{ALGORITHM}\n{at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key_of(day), to_sign.encode(), "sha256").hex()
        credential = f"Credential={self._credentials.access_key_id}/{scope}"
        authorization = f"{ALGORITHM} {credential}, SignedHeaders={listed}, Signature={signature}"
        return {"X-Amz-Date": at, "Authorization": authorization}

    def _key_of(self, day: str) -> bytes:
        if day != self._day:
            key = b"AWS4" + self._credentials.secret_key.encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day, self._key = day, key
        return self._key
