"""The calls of the API for dead letters, without I/O."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

from pillarbox.client import api_call
from pillarbox.client.api_call import ApiCall
from pillarbox.client.calls import checked_filters
from pillarbox.wire.dlq import DeadLetterPage, DeadLetterSummary, Discarded, Reprocessed

PAGE = 100
# The limit of the API for deliveries changed in one call.
MAX_PER_CALL = 1000


class DeadLetterFilters(TypedDict, total=False):
    """Filters of dead letters, which must match all of them.

    `recipient`, `sender` and `subject` match a substring, ignoring case.
    """

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
    parameters = [*_parameters(filters), ("limit", PAGE), ("cursor", cursor)]
    return api_call.get("/dlq", DeadLetterPage, parameters)


def summary(filters: DeadLetterFilters) -> ApiCall[DeadLetterSummary]:
    return api_call.get("/dlq/summary", DeadLetterSummary, _parameters(filters))


def reprocess(
    message_ids: MessageIds | None,
    filters: DeadLetterFilters,
    reset_retry_count: bool,
    via: str | None,
    limit: int,
    dry_run: bool,
) -> ApiCall[Reprocessed]:
    body = _selection(message_ids, filters)
    body |= {"limit": limit, "dry_run": dry_run, "reset_retry_count": reset_retry_count}
    if via is not None:
        body["provider"] = via
    # Not repeatable: a delivery that failed again in between would be sent once more.
    return api_call.send_json("POST", "/dlq/reprocess", body, Reprocessed, repeatable=dry_run)


def discard(
    message_ids: MessageIds | None, filters: DeadLetterFilters, limit: int, dry_run: bool
) -> ApiCall[Discarded]:
    body = _selection(message_ids, filters)
    body |= {"limit": limit, "dry_run": dry_run}
    # Not repeatable: a delivery that failed in between would be discarded, too.
    return api_call.send_json("POST", "/dlq/discard", body, Discarded, repeatable=dry_run)


def _selection(message_ids: MessageIds | None, filters: DeadLetterFilters) -> dict[str, Any]:
    """Dead letters by message ids or by filters; ValueError for both, or neither."""
    parameters = dict(_parameters(filters))
    if (message_ids is None) == (not parameters):
        raise ValueError("give either message_ids or filters")
    if message_ids is None:
        return {"filter": parameters}
    return {"message_ids": [str(uuid.UUID(str(each))) for each in message_ids]}


def _parameters(filters: DeadLetterFilters) -> list[tuple[str, str]]:
    for name in filters:
        if name not in DeadLetterFilters.__annotations__:
            raise TypeError(f"there is no filter {name!r}")
    others: Any = {name: value for name, value in filters.items() if name != "reason"}
    parameters = checked_filters(others)
    if filters.get("reason") is not None:
        parameters.insert(0, ("reason", str(filters["reason"])))
    return parameters
