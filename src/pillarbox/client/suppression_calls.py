"""Suppression lists in the API: what is asked, and how answers are read. Pure, as `calls`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from pillarbox.accept.mail import listed
from pillarbox.client.calls import JSON, ApiCall, HttpRequest, nothing, reading, time_text

PAGE = 200
CSV = {"Content-Type": "text/csv"}


@dataclass(frozen=True, slots=True)
class Suppression:
    """An address that mails are not sent to."""

    address: str
    reason: str
    note: str | None
    message_id: uuid.UUID | None
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class SuppressionPage:
    suppressions: Sequence[Suppression]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class ImportFault:
    """What is wrong with a line of a file; 1 is the first."""

    line: int
    code: str
    field: str
    detail: str


@dataclass(frozen=True, slots=True)
class Suppressed:
    """What became of the addresses given; `refused` and `faults` only of a file, where a part was asked for."""

    added: int
    changed: int
    unchanged: int
    refused: int = 0
    faults: Sequence[ImportFault] = field(default_factory=tuple)


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
