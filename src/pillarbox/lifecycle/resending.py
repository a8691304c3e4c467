"""Sends a failed lifecycle mail again, rendered from its token: its body was dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from pillarbox.store import lifecycle_schema, messages, operations
from pillarbox.store.lifecycle import ResentToken, TokenStore

if TYPE_CHECKING:
    from pillarbox.settings import Settings
    from pillarbox.store.database import Database


async def token_of(
    database: Database,
    settings: Settings,
    message_id: UUID,
) -> int | None:
    """The token of a failed mail whose body was dropped; None for any other mail."""
    if not await lifecycle_schema.is_installed(database, settings.lifecycle_schema):
        return None
    return await TokenStore(settings.lifecycle_schema).mail_token(database, message_id)


async def resend(
    database: Database,
    settings: Settings,
    message_id: UUID,
    token: int,
) -> ResentToken:
    """Have the collector mail the token again, and cancel the failed deliveries of the old mail.

    All in one transaction. An expired token is replaced by a new one. NotPossible: the token was
    used or superseded.
    """
    async with database.transaction() as connection:
        resent = await TokenStore(settings.lifecycle_schema).resend(connection, token)
        keys = [
            (message_id, delivery.n)
            for delivery in await messages.deliveries_of(connection, message_id)
            if delivery.state in operations.RESEND.takes
        ]
        event_data = {**operations.PERSON, "token": str(resent.token)}
        await operations.apply(
            connection,
            operations.RESEND,
            keys,
            event_data,
        )
    return resent
