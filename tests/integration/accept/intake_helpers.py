"""What tests of the front door's way in need: a principal, and what is stored of a mail."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pillarbox import Mail
from pillarbox.model.access import Principal, Scope, Tenant
from pillarbox.store.database import Database

DEFAULT = Tenant(id=1, name="default", created_at=datetime.now(UTC))


def principal(tenant: Tenant = DEFAULT, **fields: Any) -> Principal:
    return replace(Principal("key", "test", tenant, frozenset({Scope.SEND})), **fields)


async def add_tenant(database: Database, name: str) -> Tenant:
    id = await database.fetchval(
        "INSERT INTO pillarbox.tenants (name) VALUES ($1) RETURNING id", name
    )
    return replace(DEFAULT, id=id, name=name)


def mail(number: int = 1, **fields: Any) -> Mail:
    defaults = {
        "sender": "Shop <shop@example.com>",
        "to": f"user{number}@example.net",
        "subject": "Hello",
    }
    return Mail(**(defaults | {"text": "A body"} | fields))


async def rows_of(database: Database, message_id: UUID) -> tuple[Any, ...]:
    """All rows of a message, without what differs each time: its id, place and times (but for how they relate)."""
    message = await database.fetchrow("SELECT * FROM pillarbox.messages WHERE id = $1", message_id)
    content = await database.fetchrow(
        "SELECT * FROM pillarbox.contents WHERE message_id = $1", message_id
    )
    deliveries = await database.fetch(
        "SELECT d.*, next_attempt_at - created_at AS due, send_at, max(seq) OVER () - seq AS of_one"
        " FROM pillarbox.deliveries d JOIN pillarbox.messages m ON m.id = message_id"
        " WHERE message_id = $1 ORDER BY n",
        message_id,
    )
    assert message is not None
    assert content is not None
    return (
        _lasting(message, "id"),
        _lasting(content, "message_id"),
        [_delivery(row) for row in deliveries],
    )


def _lasting(row: Any, *more: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in (*more, "created_at")}


def _delivery(row: Any) -> dict[str, Any]:
    scheduled = row["next_attempt_at"] == row["send_at"]
    due = "send_at" if scheduled else row["due"]
    return _lasting(row, "message_id", "seq", "next_attempt_at") | {"due": due}


async def count(database: Database, table: str = "messages") -> int:
    return int(await database.fetchval(f"SELECT count(*) FROM pillarbox.{table}"))
