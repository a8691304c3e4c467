"""A tenant's messages page by page, newest first. Ids are ordered by time: a page stays as it is while mails come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from pillarbox.model.delivery import LANES, ROLES, Role
from pillarbox.store.masking import masked_values
from pillarbox.store.messages import QUERIES, WAITING, MessageFilter

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database

# Messages that a page with filters looks at: some tens of milliseconds, however long the history
# and rare the hits.
LOOKED_AT = 10_000
# What the query gives of a message's deliveries: arrays side by side, in order of their numbers.
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
    next_attempt_at: datetime | None  # of those that still wait


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
    """Messages that fit, and the id before which the next page begins; None at the end."""

    messages: Sequence[MessageOverview]
    next: UUID | None


async def page(
    database: Database, tenant_id: int, which: MessageFilter, limit: int
) -> MessageOverviewPage:
    """One page of a tenant's messages; with filters it can be short, or empty, before the end."""
    first, before = which.ids
    end = await _end(database, tenant_id, first, before) if _filters(which) else None
    rows = await database.fetch(
        QUERIES["page"], tenant_id, end or first, before, limit + 1, which.class_name, which.kind, which.tag,
        which.sender, which.subject, list(which.states) or None, which.recipient, which.provider,
    )  # fmt: skip
    found = [_summary(row) for row in rows[:limit]]
    return MessageOverviewPage(found, found[-1].id if len(rows) > limit else end)


def _filters(which: MessageFilter) -> bool:
    """Whether a message may be passed over."""
    names = (
        which.class_name,
        which.kind,
        which.tag,
        which.sender,
        which.subject,
        which.recipient,
        which.provider,
    )
    return bool(which.states) or any(one is not None for one in names)


async def _end(database: Database, tenant_id: int, first: UUID, before: UUID) -> UUID | None:
    """Where the look of a page ends; None when that is beyond the last message."""
    found: UUID | None = await database.fetchval(
        QUERIES["page_end"], tenant_id, first, before, LOOKED_AT
    )
    return found


def _summary(row: asyncpg.Record) -> MessageOverview:
    values = masked_values(row)
    columns = zip(*(values.pop(name) for name in COLUMNS), strict=True)
    return MessageOverview(
        class_name=values.pop("class"),
        priority=LANES[values.pop("lane")],
        tags=values.pop("tags") or (),
        deliveries=[_leg(n, *column) for n, column in enumerate(columns)],
        **values,
    )


def _leg(
    n: int,
    recipient: str,
    role: str,
    state: str,
    reason: str | None,
    provider: str | None,
    next_attempt_at: datetime,
) -> DeliveryOverview:
    return DeliveryOverview(
        n,
        recipient,
        ROLES[role],
        state,
        reason,
        provider,
        next_attempt_at if state in WAITING else None,
    )
