"""Sends a failed mail of an account again: rendered anew from its token, since its body was dropped once settled."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from pillarbox.store import lifecycle_schema, messages, operations
from pillarbox.store.lifecycle import ResentToken, TokenStore

if TYPE_CHECKING:
    from pillarbox.settings import Settings
    from pillarbox.store.database import Database


async def token_of(database: Database, settings: Settings, message_id: UUID) -> int | None:
    """The token of a failed mail that cannot be sent again as it is; None for any other mail."""
    if not await lifecycle_schema.is_installed(database, settings.lifecycle_schema):
        return None
    return await TokenStore(settings.lifecycle_schema).mail_token(database, message_id)


async def resend(
    database: Database, settings: Settings, message_id: UUID, token: int
) -> ResentToken:
    """Let the collector mail the token again; what failed of the old mail becomes cancelled, all in one transaction.

    A token that has expired is issued anew. NotPossible: it was used, or a newer one took its
    place.
    """
    async with database.transaction() as connection:
        resent = await TokenStore(settings.lifecycle_schema).resend(connection, token)
        deliveries = await messages.deliveries_of(connection, message_id)
        keys = [(message_id, one.n) for one in deliveries if one.state in operations.RESEND.takes]
        told = {**operations.PERSON, "token": str(resent.token)}
        await operations.apply(connection, operations.RESEND, keys, told)
    return resent
