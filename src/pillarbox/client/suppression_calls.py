"""The calls of the API for suppression lists, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from pillarbox.accept.mail import listed
from pillarbox.client import api_call
from pillarbox.client.api_call import ApiCall, HttpRequest, reading
from pillarbox.client.calls import time_text
from pillarbox.wire.suppressions import SuppressionPage, SuppressionsImported

PAGE = 200
CSV = {"Content-Type": "text/csv"}
# The result of both ways to add addresses: `refused` and `faults` are those of a file only.
Suppressed = SuppressionsImported


def page(
    address: str | None, prefix: str | None, reason: str | None, cursor: str | None
) -> ApiCall[SuppressionPage]:
    """One page; without a cursor, the first."""
    parameters = [
        ("address", address),
        ("prefix", prefix),
        ("reason", reason),
        ("limit", PAGE),
        ("cursor", cursor),
    ]
    return api_call.get("/suppressions", SuppressionPage, parameters)


def add(
    addresses: str | Sequence[str], reason: str, note: str | None, expires_at: datetime | None
) -> ApiCall[Suppressed]:
    common: dict[str, Any] = {"reason": reason, "note": note}
    if expires_at is not None:
        common["expires_at"] = time_text(expires_at, "expires_at")
    body = {"suppressions": [{"address": each, **common} for each in listed(addresses)]}
    return api_call.send_json("POST", "/suppressions", body, Suppressed)


def remove(address: str) -> ApiCall[None]:
    return api_call.delete(f"/suppressions/{quote(address, safe='@')}")


def import_(content: bytes | str, partial: bool) -> ApiCall[Suppressed]:
    body = content.encode() if isinstance(content, str) else bytes(content)
    path = "/suppressions/import"
    if partial:
        path += "?partial=true"
    return ApiCall(HttpRequest("POST", path, body, CSV), reading(Suppressed))


def export(reason: str | None) -> ApiCall[bytes]:
    path = "/suppressions/export"
    if reason:
        path += "?" + urlencode({"reason": reason})
    return api_call.download(path)
