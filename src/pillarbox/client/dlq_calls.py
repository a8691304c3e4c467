"""Dead letters in the API: what is asked, and how answers are read. Pure, as `calls`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict
from urllib.parse import urlencode

from pillarbox.client.calls import JSON, ApiCall, HttpRequest, checked_filters, reading
from pillarbox.wire.dlq import DeadLetterPage, DeadLetterSummary, Discarded, Reprocessed

PAGE = 100
# What the API changes in one call.
MAX_PER_CALL = 1000


class DeadLetterFilters(TypedDict, total=False):
    """Which dead letters: all that fit. `recipient`, `sender` and `subject` match a part, whatever the case."""

    reason: str
    recipient: str
    sender: str
    subject: str
    tag: str
    kind: str
    class_: str
    provider: str
    since: datetime
    until: datetime


MessageIds = Sequence[uuid.UUID | str]


def page(filters: DeadLetterFilters, cursor: str | None) -> ApiCall[DeadLetterPage]:
    """One page; without a cursor, the first."""
    more = [("limit", str(PAGE)), *([("cursor", cursor)] if cursor else [])]
    path = f"/dlq?{urlencode([*_parameters(filters), *more])}"
    return ApiCall(HttpRequest("GET", path), reading(DeadLetterPage))


def summary(filters: DeadLetterFilters) -> ApiCall[DeadLetterSummary]:
    path = f"/dlq/summary?{urlencode(_parameters(filters))}".rstrip("?")
    return ApiCall(HttpRequest("GET", path), reading(DeadLetterSummary))


def reprocess(
    message_ids: MessageIds | None,
    filters: DeadLetterFilters,
    reset_retry_count: bool,
    via: str | None,
    limit: int,
    dry_run: bool,
) -> ApiCall[Reprocessed]:
    body = _which(message_ids, filters) | {
        "limit": limit,
        "dry_run": dry_run,
        "reset_retry_count": reset_retry_count,
    }
    if via is not None:
        body["provider"] = via
    # Done twice, what failed again in between would be sent once more.
    request = HttpRequest(
        "POST", "/dlq/reprocess", json.dumps(body).encode(), JSON, repeatable=dry_run
    )
    return ApiCall(request, reading(Reprocessed))


def discard(
    message_ids: MessageIds | None, filters: DeadLetterFilters, limit: int, dry_run: bool
) -> ApiCall[Discarded]:
    body = _which(message_ids, filters) | {"limit": limit, "dry_run": dry_run}
    # Done twice, what failed in between would be discarded, too.
    request = HttpRequest(
        "POST", "/dlq/discard", json.dumps(body).encode(), JSON, repeatable=dry_run
    )
    return ApiCall(request, reading(Discarded))


def _which(message_ids: MessageIds | None, filters: DeadLetterFilters) -> dict[str, Any]:
    """The letters of these messages, or all that fit; ValueError for both, or neither."""
    given = dict(_parameters(filters))
    if (message_ids is None) == (not given):
        raise ValueError("give message_ids, or filters")
    if message_ids is None:
        return {"filter": given}
    return {"message_ids": [str(uuid.UUID(str(one))) for one in message_ids]}


def _parameters(filters: DeadLetterFilters) -> list[tuple[str, str]]:
    for name in filters:
        if name not in DeadLetterFilters.__annotations__:
            raise TypeError(f"there is no filter {name!r}")
    reason = [("reason", str(filters["reason"]))] if filters.get("reason") is not None else []
    rest: Any = {name: value for name, value in filters.items() if name != "reason"}
    return reason + checked_filters(rest)
