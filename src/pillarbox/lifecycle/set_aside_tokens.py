"""Tokens that were set aside because their mail could not be rendered, for dead-letter listings.

They belong to the lifecycle tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pillarbox.store import lifecycle_schema
from pillarbox.store.lifecycle import SetAsideToken, TokenStore

if TYPE_CHECKING:
    from pillarbox.settings import Settings
    from pillarbox.store.database import Database

# Counting stops there: an exact larger number would help no reader.
MAX_COUNTED = 10_000


async def count(
    database: Database,
    settings: Settings,
    tenant: str | None,
) -> int:
    """The number of set-aside tokens of a tenant, or of all (None); at most MAX_COUNTED."""
    tokens = await _tokens(database, settings, tenant)
    if tokens is None:
        return 0
    return await tokens.count_set_aside(database, MAX_COUNTED)


async def list_tokens(
    database: Database,
    settings: Settings,
    tenant: str | None,
    limit: int,
) -> list[SetAsideToken]:
    """The set-aside tokens, oldest first."""
    tokens = await _tokens(database, settings, tenant)
    if tokens is None:
        return []
    return await tokens.set_aside(database, limit)


async def retry(
    database: Database,
    settings: Settings,
    numbers: Sequence[int] | None,
) -> int:
    """Have these tokens (None: all) collected again at once; return their number."""
    tokens = await _tokens(database, settings, None)
    if tokens is None:
        return 0
    return await tokens.retry_set_aside(database, numbers)


async def _tokens(
    database: Database,
    settings: Settings,
    tenant: str | None,
) -> TokenStore | None:
    """The tokens of this tenant; None if it has none."""
    if tenant not in (None, settings.lifecycle_tenant):
        return None
    if not await lifecycle_schema.is_installed(database, settings.lifecycle_schema):
        return None
    return TokenStore(settings.lifecycle_schema)
