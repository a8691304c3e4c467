"""Providers and message classes at rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from pillarbox.errors import NotFound, NotPossible
from pillarbox.model.delivery import MessageClass, Unknown
from pillarbox.model.provider import Provider
from pillarbox.model.retry import POLICIES
from pillarbox.model.secret import Secret
from pillarbox.store import sql
from pillarbox.store.database import Database
from pillarbox.store.vault import KeyRing

QUERIES = sql.load("providers")
Keys = Callable[[], KeyRing]


def _context(provider_id: int) -> str:
    """What a sealed secret is bound to, so that it cannot be moved to another row."""
    return f"provider:{provider_id}"


async def list_providers(database: Database, keys: Keys | None = None) -> list[Provider]:
    """Providers in order of preference; their secrets only with `keys`, which is asked only if there are any."""
    rows = await database.fetch(QUERIES["list_providers"])
    ring = keys() if keys and any(row["secret"] for row in rows) else None
    return [
        Provider(
            row["id"],
            row["name"],
            row["kind"],
            json.loads(row["settings"]),
            ring.open(row["secret"], _context(row["id"])) if ring and row["secret"] else None,
            row["enabled"],
            row["retry"],
            row["rate_per_second"],
            row["rate_per_hour"],
            row["rate_per_day"],
        )
        for row in rows
    ]


async def add_provider(
    database: Database,
    keys: Keys,
    name: str,
    kind: str,
    settings: Mapping[str, Any],
    secret: Secret | None = None,
    retry: str | None = None,
) -> int:
    """Add a provider, its secret sealed; NotPossible when the name is taken."""
    provider_id = await database.fetchval(QUERIES["reserve_provider_id"])
    sealed = keys().seal(secret.reveal(), _context(provider_id)) if secret else None
    added = await database.fetchval(
        QUERIES["add_provider"], provider_id, name, kind, json.dumps(dict(settings)), sealed, retry
    )
    if added is None:
        raise NotPossible(f"there is a provider {name!r} already: remove it first, or choose another name")
    return int(added)


async def enable_provider(database: Database, name: str, enabled: bool) -> None:
    if await database.fetchval(QUERIES["enable_provider"], name, enabled) is None:
        raise NotFound(f"there is no provider {name!r}: see `pillarbox provider list`")


async def limit_provider(
    database: Database, name: str, per_second: int | None, per_hour: int | None, per_day: int | None
) -> None:
    """How many mails may leave through a provider in a time; None for no limit."""
    if await database.fetchval(QUERIES["limit_provider"], name, per_second, per_hour, per_day) is None:
        raise NotFound(f"there is no provider {name!r}: see `pillarbox provider list`")


async def remove_provider(database: Database, name: str) -> None:
    if await database.fetchval(QUERIES["remove_provider"], name) is None:
        raise NotFound(f"there is no provider {name!r}: see `pillarbox provider list`")


async def rotate_secrets(database: Database, keys: KeyRing) -> tuple[int, int]:
    """Seal every secret with the newest key; returns how many were resealed, and how many there are."""
    async with database.transaction() as connection:
        rows = await connection.fetch(QUERIES["sealed_secrets"])
        old = [row for row in rows if not keys.is_current(row["secret"])]
        for row in old:
            context = _context(row["id"])
            opened = keys.open(row["secret"], context)
            await connection.execute(QUERIES["reseal"], row["id"], keys.seal(opened.reveal(), context))
    return len(old), len(rows)


async def list_classes(database: Database) -> dict[str, MessageClass]:
    rows = await database.fetch(QUERIES["list_classes"])
    return {
        row["name"]: MessageClass(row["name"], POLICIES.get(row["retry"]), Unknown(row["unknown"]), row["secret"])
        for row in rows
    }


async def redaction_key(database: Database) -> bytes:
    return bytes(await database.fetchval(QUERIES["redaction_key"]))


async def capture(
    database: Database,
    provider_id: int,
    message_id: UUID,
    sender: str,
    recipients: Sequence[str],
    content: bytes,
) -> int:
    """Keep a mail for reading; returns its number."""
    return int(await database.fetchval(QUERIES["capture"], provider_id, message_id, sender, recipients, content))
