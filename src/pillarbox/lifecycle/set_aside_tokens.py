"""Tokens that could not be made mails: dead letters before there was a letter. They belong to the lifecycle tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pillarbox.store import lifecycle_schema
from pillarbox.store.lifecycle import SetAsideToken, TokenStore

if TYPE_CHECKING:
    from pillarbox.settings import Settings
    from pillarbox.store.database import Database

# Counting stops there: beyond it one need not know more than that.
COUNTED = 10_000


async def count(database: Database, settings: Settings, tenant: str | None) -> int:
    """How many are set aside, of a tenant or (None) of all; counted up to COUNTED."""
    tokens = await _tokens(database, settings, tenant)
    return await tokens.count_set_aside(database, COUNTED) if tokens else 0


async def listed(
    database: Database, settings: Settings, tenant: str | None, limit: int
) -> list[SetAsideToken]:
    """Those that are set aside, oldest first."""
    tokens = await _tokens(database, settings, tenant)
    return await tokens.set_aside(database, limit) if tokens else []


async def retry(database: Database, settings: Settings, numbers: Sequence[int] | None) -> int:
    """Let them (None: all) be collected again at once; returns how many."""
    tokens = await _tokens(database, settings, None)
    return await tokens.retry_set_aside(database, numbers) if tokens else 0


async def _tokens(database: Database, settings: Settings, tenant: str | None) -> TokenStore | None:
    """The tokens of this tenant; None where there are none."""
    if tenant not in (None, settings.lifecycle_tenant):
        return None
    installed = await lifecycle_schema.is_installed(database, settings.lifecycle_schema)
    return TokenStore(settings.lifecycle_schema) if installed else None
