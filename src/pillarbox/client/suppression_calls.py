"""Suppression lists in the API: what is asked, and how answers are read. Pure, as `calls`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from pillarbox.accept.mail import listed
from pillarbox.client.calls import JSON, ApiCall, HttpRequest, nothing, reading, time_text
from pillarbox.wire.suppressions import SuppressionPage, SuppressionsImported

PAGE = 200
CSV = {"Content-Type": "text/csv"}


# The answer to both ways of adding addresses: `refused` and `faults` are of a file only.
Suppressed = SuppressionsImported


def page(
    address: str | None, prefix: str | None, reason: str | None, cursor: str | None
) -> ApiCall[SuppressionPage]:
    """One page; without a cursor, the first."""
    given = {
        "address": address,
        "prefix": prefix,
        "reason": reason,
        "limit": PAGE,
        "cursor": cursor,
    }
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return ApiCall(HttpRequest("GET", f"/suppressions?{query}"), reading(SuppressionPage))


def add(
    addresses: str | Sequence[str], reason: str, note: str | None, expires_at: datetime | None
) -> ApiCall[Suppressed]:
    common: dict[str, Any] = {"reason": reason, "note": note}
    if expires_at is not None:
        common["expires_at"] = time_text(expires_at, "expires_at")
    body = {"suppressions": [{"address": one, **common} for one in listed(addresses)]}
    return ApiCall(
        HttpRequest("POST", "/suppressions", json.dumps(body).encode(), JSON), reading(Suppressed)
    )


def remove(address: str) -> ApiCall[None]:
    # Done twice, the second says that it is not there.
    path = f"/suppressions/{quote(address, safe='@')}"
    return ApiCall(HttpRequest("DELETE", path, repeatable=False), nothing)


def import_(content: bytes | str, partial: bool) -> ApiCall[Suppressed]:
    body = content.encode() if isinstance(content, str) else bytes(content)
    path = "/suppressions/import?partial=true" if partial else "/suppressions/import"
    return ApiCall(HttpRequest("POST", path, body, CSV), reading(Suppressed))


def export(reason: str | None) -> ApiCall[bytes]:
    path = (
        f"/suppressions/export?{urlencode({'reason': reason})}"
        if reason
        else "/suppressions/export"
    )
    return ApiCall(HttpRequest("GET", path, headers={"Accept": "*/*"}), lambda answer: answer.body)
