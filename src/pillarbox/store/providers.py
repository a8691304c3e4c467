"""Stored providers and message classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from pillarbox.errors import NotFound, NotPossible
from pillarbox.model.delivery import MessageClass, Unknown
from pillarbox.model.provider import Provider
from pillarbox.model.provider_kinds import kind_of, kinds_that_keep
from pillarbox.model.retry import POLICIES
from pillarbox.model.secret import Secret
from pillarbox.store import sql
from pillarbox.store.database import Database
from pillarbox.store.vault import EncryptionKeyRing

SQL = sql.load("providers")
Keys = Callable[[], EncryptionKeyRing]
# The columns of a provider that are fields of `Provider` as they are.
_PLAIN_COLUMNS = (
    "id", "name", "kind", "enabled", "retry", "rate_per_second", "rate_per_hour", "rate_per_day",
    "price_per_thousand", "budget_per_month", "reserve_urgent", "reserve_normal", "release_only",
)  # fmt: skip


def _context(provider_id: int, column: str) -> str:
    """The context of a sealed secret, so that it cannot be moved to another row or column."""
    if column == "secret":
        return f"provider:{provider_id}"
    return f"provider:{provider_id}:{column}"


async def list_providers(database: Database, keys: Keys | None = None) -> list[Provider]:
    """List the providers; those that keep mails come last.

    Secrets are opened only with `keys`, which is called only if there are any.
    """
    rows = await database.fetch(*SQL.list_providers())
    ring = None
    if keys and any(row["secret"] or row["webhook_secret"] for row in rows):
        ring = keys()
    found = [
        Provider(
            settings=json.loads(row["settings"]),
            secret=_opened(ring, row, "secret"),
            webhook_secret=_opened(ring, row, "webhook_secret"),
            **{name: row[name] for name in _PLAIN_COLUMNS},
        )
        for row in rows
    ]
    return sorted(found, key=lambda provider: not kind_of(provider.kind).sends_out)


def _opened(ring: EncryptionKeyRing | None, row: Any, column: str) -> Secret | None:
    if ring is None or not row[column]:
        return None
    return ring.open(row[column], _context(row["id"], column))


def _sealed(keys: Keys, secret: Secret | None, context: str) -> bytes | None:
    return keys().seal(secret.reveal(), context) if secret else None


async def get_provider(database: Database, name: str, keys: Keys | None = None) -> Provider:
    """The provider of that name, as in `list_providers`; NotFound if there is none."""
    for provider in await list_providers(database, keys):
        if provider.name == name:
            return provider
    raise _missing(name)


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no provider {name!r}: see `pillarbox provider list`")


async def add_provider(
    database: Database,
    keys: Keys,
    name: str,
    kind: str,
    settings: Mapping[str, Any],
    secret: Secret | None = None,
    retry: str | None = None,
    webhook_secret: Secret | None = None,
    *,
    release_only: bool = False,
    demo: bool = False,
) -> int:
    """Add a provider with sealed secrets; NotPossible if the name is taken.

    A provider of a `demo` delivers to this machine: mails are still captured by default.
    """
    provider_id = await database.fetchval(*SQL.reserve_provider_id())
    added = await database.fetchval(
        *SQL.add_provider(
            id=provider_id,
            name=name,
            kind=kind,
            settings=json.dumps(dict(settings)),
            secret=_sealed(keys, secret, _context(provider_id, "secret")),
            retry=retry,
            webhook_secret=_sealed(keys, webhook_secret, _context(provider_id, "webhook_secret")),
            release_only=release_only,
            sends_out=kind_of(kind).sends_out and not release_only and not demo,
        )
    )
    if added is None:
        raise NotPossible(
            f"there is a provider {name!r} already: remove it first, or choose another name"
        )
    return int(added)


async def enable_provider(database: Database, name: str, enabled: bool) -> None:
    if await database.fetchval(*SQL.enable_provider(name=name, enabled=enabled)) is None:
        raise _missing(name)


async def set_release_only(database: Database, name: str, release_only: bool) -> None:
    """Exclude a provider from the default route, or include it."""
    change = SQL.release_only(
        name=name, release_only=release_only, kinds_that_keep=kinds_that_keep()
    )
    if await database.fetchval(*change) is None:
        raise _missing(name)


async def captures_by_default(database: Database, *, development: bool) -> bool:
    """Whether the default route captures: in development, until another provider was added."""
    return development and not await database.fetchval(*SQL.sends_out())


async def limit_provider(
    database: Database, name: str, per_second: int | None, per_hour: int | None, per_day: int | None
) -> None:
    """Set how many mails may leave through a provider per period; None for no limit."""
    limit = SQL.limit_provider(name=name, per_second=per_second, per_hour=per_hour, per_day=per_day)
    if await database.fetchval(*limit) is None:
        raise _missing(name)


async def price_provider(
    database: Database,
    name: str,
    price: Decimal | None,
    budget: Decimal | None,
    urgent: int,
    normal: int,
) -> None:
    """Set the price and monthly budget of a provider, and the reserves of lanes in percent."""
    change = SQL.price_provider(
        name=name,
        price_per_thousand=price,
        budget_per_month=budget,
        reserve_urgent=urgent,
        reserve_normal=normal,
    )
    if await database.fetchval(*change) is None:
        raise _missing(name)


async def set_feedback(
    database: Database,
    keys: Keys,
    provider: Provider,
    settings: Mapping[str, Any],
    secret: Secret | None,
) -> None:
    """Change the settings that verify a provider's feedback; None keeps the webhook secret."""
    change = SQL.set_feedback(
        id=provider.id,
        settings=json.dumps(dict(settings)),
        webhook_secret=_sealed(keys, secret, _context(provider.id, "webhook_secret")),
    )
    if await database.fetchval(*change) is None:
        raise NotFound(f"there is no provider {provider.name!r} any more")


async def remove_provider(database: Database, name: str) -> None:
    if await database.fetchval(*SQL.remove_provider(name=name)) is None:
        raise _missing(name)


async def rotate_secrets(database: Database, keys: EncryptionKeyRing) -> tuple[int, int]:
    """Seal every secret with the newest key; returns how many were resealed, and how many exist."""
    resealed = total = 0
    reseal = {"secret": SQL.reseal_secret, "webhook_secret": SQL.reseal_webhook_secret}
    async with database.transaction() as connection:
        for row in await connection.fetch(*SQL.sealed_secrets()):
            for column, statement in reseal.items():
                if row[column] is None:
                    continue
                total += 1
                if not keys.is_current(row[column]):
                    sealed = keys.reseal(row[column], _context(row["id"], column))
                    await connection.execute(*statement(id=row["id"], sealed=sealed))
                    resealed += 1
    return resealed, total


async def list_classes(database: Database) -> dict[str, MessageClass]:
    rows = await database.fetch(*SQL.list_classes())
    return {
        row["name"]: MessageClass(
            row["name"], POLICIES.get(row["retry"]), Unknown(row["unknown"]), row["secret"]
        )
        for row in rows
    }


async def redaction_key(database: Database) -> bytes:
    return bytes(await database.fetchval(*SQL.redaction_key()))


async def capture(
    database: Database,
    provider_id: int,
    message_id: UUID,
    sender: str,
    recipients: Sequence[str],
    content: bytes,
) -> int:
    """Store a captured mail; returns its number."""
    number = await database.fetchval(
        *SQL.capture(
            provider_id=provider_id,
            message_id=message_id,
            sender=sender,
            recipients=recipients,
            content=content,
        )
    )
    return int(number)
