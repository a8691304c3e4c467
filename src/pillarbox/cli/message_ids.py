"""Message ids in lists: short on a terminal, complete for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from pillarbox.cli import output
from pillarbox.store.messages import oldest_recent, short_id

if TYPE_CHECKING:
    from pillarbox.store.database import Database


async def shown_ids(database: Database, ids: Sequence[UUID]) -> dict[UUID, str]:
    """The text of each id. Only ids that commands find by their end are shortened."""
    shown = {id: str(id) for id in ids}
    if not ids or not output.is_terminal():
        return shown
    oldest = await oldest_recent(database)
    for id in ids:
        if id >= oldest:
            shown[id] = short_id(id)
    return shown
