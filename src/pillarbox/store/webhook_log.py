"""The log of calls to webhooks, and making them again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pillarbox.model.webhook import CallState
from pillarbox.store.messages import FIRST_ID, LAST_ID, id_at
from pillarbox.store.webhooks import QUERIES, get_endpoint

if TYPE_CHECKING:
    from pillarbox.store.database import Database

# Calls replayed by one request: it stays well under a second.
MOST_REPLAYED = 10_000


@dataclass(frozen=True, slots=True)
class WebhookCallRecord:
    """One line of the log."""

    id: UUID
    message_id: UUID | None
    n: int | None
    kind: str
    at: datetime
    payload: Mapping[str, Any]
    state: str
    attempts: int
    replays: int
    status: int | None
    error: str | None
    ended_at: datetime | None
    took: float | None
    next_at: datetime | None
    in_hand: bool


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How many calls are made again; and the last looked at, when there may be more."""

    count: int
    last: UUID | None = None


async def list_calls(
    database: Database,
    endpoint_id: UUID,
    tenant_id: int,
    states: Sequence[str] = (),
    before: UUID | None = None,
    limit: int = 50,
) -> list[WebhookCallRecord]:
    """The log, newest first. Continue after the last one with `before`."""
    rows = await database.fetch(
        QUERIES["calls"],
        endpoint_id,
        tenant_id,
        list(dict.fromkeys(states)) or list(CallState),
        before,
        limit,
    )
    return [
        WebhookCallRecord(**dict(row) | {"payload": json.loads(row["payload"])}) for row in rows
    ]


async def replay(
    database: Database,
    endpoint_id: UUID,
    tenant_id: int,
    *,
    calls: Sequence[UUID] | None = None,
    states: Sequence[str] = (CallState.FAILED,),
    since: datetime | None = None,
    until: datetime | None = None,
    after: UUID | None = None,
    most: int = MOST_REPLAYED,
) -> ReplayResult:
    """Make calls again: these, or those in these states made in that time; the oldest first."""
    await get_endpoint(database, endpoint_id, tenant_id)
    if calls is not None:
        return ReplayResult(
            await database.fetchval(QUERIES["replay_these"], endpoint_id, list(calls))
        )
    first, end = id_at(since) if since else FIRST_ID, id_at(until) if until else LAST_ID
    wanted = list(dict.fromkeys(states))
    row = await database.fetchrow(QUERIES["replay"], endpoint_id, wanted, first, end, most, after)
    assert row is not None
    return ReplayResult(row["replayed"], row["last"])
