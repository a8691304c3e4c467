"""A tenant's messages page by page, newest first.

Ids are ordered by time, so a page does not change while mails are accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from pillarbox.model.delivery import LANES, ROLES, Role
from pillarbox.store.masking import masked_values
from pillarbox.store.messages import SQL, WAITING, MessageFilter

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database

# Messages that a page with filters reads: some tens of milliseconds, however long the history and
# rare the matches.
LOOKED_AT = 10_000
# The columns that are arrays, with one element per delivery in the order of their numbers.
COLUMNS = ("recipients", "roles", "states", "reasons", "providers", "next_attempts")


@dataclass(frozen=True, slots=True)
class DeliveryOverview:
    """One delivery in a listing."""

    n: int
    recipient: str
    role: Role
    state: str
    reason: str | None
    provider: str | None
    next_attempt_at: datetime | None  # None: it does not wait


@dataclass(frozen=True, slots=True)
class MessageOverview:
    """One message in a listing."""

    id: UUID
    created_at: datetime
    class_name: str
    secret: bool
    kind: str | None
    priority: str
    sender: str
    subject: str
    tags: Sequence[str]
    deliveries: Sequence[DeliveryOverview]


@dataclass(frozen=True, slots=True)
class MessageOverviewPage:
    """Matching messages, and the id before which the next page begins; None at the end."""

    messages: Sequence[MessageOverview]
    next: UUID | None


async def page(
    database: Database, tenant_id: int, which: MessageFilter, limit: int
) -> MessageOverviewPage:
    """One page of a tenant's messages; with filters it may be short before the end."""
    first, before = which.ids
    end = None
    if which.states or which.has_text_filters:
        end = await _end(database, tenant_id, first, before)
    rows = await database.fetch(
        *SQL.page(
            tenant_id=tenant_id,
            first_id=end or first,
            end_id=before,
            limit=limit + 1,
            class_name=which.class_name,
            kind=which.kind,
            tag=which.tag,
            sender=which.sender,
            subject=which.subject,
            states=list(which.states) or None,
            recipient=which.recipient,
            provider=which.provider,
        )
    )
    found = [_overview(row) for row in rows[:limit]]
    return MessageOverviewPage(found, found[-1].id if len(rows) > limit else end)


async def _end(database: Database, tenant_id: int, first: UUID, before: UUID) -> UUID | None:
    """The message at which reading for a page ends; None if there are fewer messages."""
    found: UUID | None = await database.fetchval(
        *SQL.page_end(tenant_id=tenant_id, first_id=first, end_id=before, position=LOOKED_AT)
    )
    return found


def _overview(row: asyncpg.Record) -> MessageOverview:
    values = masked_values(row)
    arrays = [values.pop(name) for name in COLUMNS]
    deliveries = []
    for number, (recipient, role, state, reason, provider, next_attempt_at) in enumerate(
        zip(*arrays, strict=True)
    ):
        if state not in WAITING:
            next_attempt_at = None
        deliveries.append(
            DeliveryOverview(
                number, recipient, ROLES[role], state, reason, provider, next_attempt_at
            )
        )
    return MessageOverview(
        class_name=values.pop("class"),
        priority=LANES[values.pop("lane")],
        tags=values.pop("tags") or (),
        deliveries=deliveries,
        **values,
    )
