"""The log of webhook calls, and replaying them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pillarbox.model.webhook import CallState
from pillarbox.store.messages import FIRST_ID, LAST_ID, id_at
from pillarbox.store.webhooks import SQL, get_endpoint

if TYPE_CHECKING:
    from pillarbox.store.database import Database

# Calls that one request replays: it takes well under a second.
MAX_REPLAYED = 10_000


@dataclass(frozen=True, slots=True)
class WebhookCallRecord:
    """One webhook call in the log."""

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
    """How many calls are replayed, and the last one read if there may be more."""

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
    """The log, newest first; `before` continues after the last one."""
    rows = await database.fetch(
        *SQL.calls(
            endpoint_id=endpoint_id,
            tenant_id=tenant_id,
            states=list(dict.fromkeys(states)) or list(CallState),
            before=before,
            limit=limit,
        )
    )
    return [WebhookCallRecord(**{**row, "payload": json.loads(row["payload"])}) for row in rows]


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
    limit: int = MAX_REPLAYED,
) -> ReplayResult:
    """Replay the given calls, or those in these states and that time, oldest first."""
    await get_endpoint(database, endpoint_id, tenant_id)
    if calls is not None:
        replayed = await database.fetchval(
            *SQL.replay_these(endpoint_id=endpoint_id, ids=list(calls))
        )
        return ReplayResult(replayed)
    row = await database.fetchrow(
        *SQL.replay(
            endpoint_id=endpoint_id,
            states=list(dict.fromkeys(states)),
            first_id=id_at(since) if since else FIRST_ID,
            end_id=id_at(until) if until else LAST_ID,
            limit=limit,
            after=after,
        )
    )
    assert row is not None
    return ReplayResult(row["replayed"], row["last"])
