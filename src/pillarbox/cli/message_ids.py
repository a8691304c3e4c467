"""Ids of messages in lists: short on a terminal, where people copy them, whole for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from pillarbox.cli import output
from pillarbox.store.messages import oldest_recent, short_id

if TYPE_CHECKING:
    from pillarbox.store.database import Database


async def shown_ids(database: Database, ids: Sequence[UUID]) -> dict[UUID, str]:
    """Each id as it is printed. Only ids that commands find by their end are shortened."""
    if not ids or not output.is_terminal():
        return {one: str(one) for one in ids}
    oldest = await oldest_recent(database)
    return {one: short_id(one) if one >= oldest else str(one) for one in ids}
