"""Providers and message classes at rest."""

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

QUERIES = sql.load("providers")
Keys = Callable[[], EncryptionKeyRing]
SECRETS = ("secret", "webhook_secret")


# What a provider's row says of it in so many words.
_PLAIN = (
    "id", "name", "kind", "enabled", "retry", "rate_per_second", "rate_per_hour", "rate_per_day",
    "price_per_thousand", "budget_per_month", "reserve_urgent", "reserve_normal", "release_only",
)  # fmt: skip


def _context(provider_id: int, column: str) -> str:
    """What a sealed secret is bound to, so that it cannot be moved to another row or column."""
    return f"provider:{provider_id}" if column == SECRETS[0] else f"provider:{provider_id}:{column}"


async def list_providers(database: Database, keys: Keys | None = None) -> list[Provider]:
    """List the providers; those that keep mails come last.

    Secrets are opened only with `keys`, which is called only if there are any.
    """
    rows = await database.fetch(QUERIES["list_providers"])
    ring = keys() if keys and any(row["secret"] or row["webhook_secret"] for row in rows) else None
    found = [
        Provider(
            settings=json.loads(row["settings"]),
            secret=_opened(ring, row, "secret"),
            webhook_secret=_opened(ring, row, "webhook_secret"),
            **{name: row[name] for name in _PLAIN},
        )
        for row in rows
    ]
    return sorted(found, key=lambda provider: not kind_of(provider.kind).sends_out)


def _opened(ring: EncryptionKeyRing | None, row: Any, column: str) -> Secret | None:
    sealed = row[column]
    return ring.open(sealed, _context(row["id"], column)) if ring and sealed else None


def _sealed(keys: Keys, secret: Secret | None, context: str) -> bytes | None:
    return keys().seal(secret.reveal(), context) if secret else None


async def get_provider(database: Database, name: str, keys: Keys | None = None) -> Provider:
    """The provider of that name, as `list_providers` has it; NotFound if there is none."""
    for one in await list_providers(database, keys):
        if one.name == name:
            return one
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
    """Add a provider, its secrets sealed; NotPossible when the name is taken.

    One of a `demo` leads to this machine: it does not end the time in which mails are captured by
    default.
    """
    provider_id = await database.fetchval(QUERIES["reserve_provider_id"])
    sealed = _sealed(keys, secret, _context(provider_id, "secret"))
    webhook = _sealed(keys, webhook_secret, _context(provider_id, "webhook_secret"))
    added = await database.fetchval(
        QUERIES["add_provider"], provider_id, name, kind, json.dumps(dict(settings)), sealed, retry, webhook,
        release_only, kind_of(kind).sends_out and not release_only and not demo,
    )  # fmt: skip
    if added is None:
        raise NotPossible(
            f"there is a provider {name!r} already: remove it first, or choose another name"
        )
    return int(added)


async def enable_provider(database: Database, name: str, enabled: bool) -> None:
    if await database.fetchval(QUERIES["enable_provider"], name, enabled) is None:
        raise _missing(name)


async def set_release_only(database: Database, name: str, release_only: bool) -> None:
    """Keep a provider out of the default route, or let it in."""
    changed = await database.fetchval(
        QUERIES["release_only"], name, release_only, kinds_that_keep()
    )
    if changed is None:
        raise _missing(name)


async def captures_by_default(database: Database, *, development: bool) -> bool:
    """Whether the default route captures: in development, while nothing else was ever configured for it."""
    return development and not await database.fetchval(QUERIES["sends_out"])


async def limit_provider(
    database: Database, name: str, per_second: int | None, per_hour: int | None, per_day: int | None
) -> None:
    """How many mails may leave through a provider in a time; None for no limit."""
    if (
        await database.fetchval(QUERIES["limit_provider"], name, per_second, per_hour, per_day)
        is None
    ):
        raise _missing(name)


async def price_provider(
    database: Database,
    name: str,
    price: Decimal | None,
    budget: Decimal | None,
    urgent: int,
    normal: int,
) -> None:
    """What mails through a provider cost and may cost in a month, and what is kept for whom, in percent."""
    if (
        await database.fetchval(QUERIES["price_provider"], name, price, budget, urgent, normal)
        is None
    ):
        raise _missing(name)


async def set_feedback(
    database: Database,
    keys: Keys,
    provider: Provider,
    settings: Mapping[str, Any],
    secret: Secret | None,
) -> None:
    """Change what a provider's feedback is checked with: some of its settings, its webhook secret; None leaves it."""
    sealed = _sealed(keys, secret, _context(provider.id, "webhook_secret"))
    changed = json.dumps(dict(settings))
    if await database.fetchval(QUERIES["set_feedback"], provider.id, changed, sealed) is None:
        raise NotFound(f"there is no provider {provider.name!r} any more")


async def remove_provider(database: Database, name: str) -> None:
    if await database.fetchval(QUERIES["remove_provider"], name) is None:
        raise _missing(name)


async def rotate_secrets(database: Database, keys: EncryptionKeyRing) -> tuple[int, int]:
    """Seal every secret with the newest key; returns how many were resealed, and how many there are."""
    async with database.transaction() as connection:
        rows = await connection.fetch(QUERIES["sealed_secrets"])
        found = [(row, name) for row in rows for name in SECRETS if row[name]]
        old = [(row, name) for row, name in found if not keys.is_current(row[name])]
        for row, name in old:
            sealed = keys.reseal(row[name], _context(row["id"], name))
            await connection.execute(QUERIES[f"reseal_{name}"], row["id"], sealed)
    return len(old), len(found)


async def list_classes(database: Database) -> dict[str, MessageClass]:
    rows = await database.fetch(QUERIES["list_classes"])
    return {
        row["name"]: MessageClass(
            row["name"], POLICIES.get(row["retry"]), Unknown(row["unknown"]), row["secret"]
        )
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
    return int(
        await database.fetchval(
            QUERIES["capture"], provider_id, message_id, sender, recipients, content
        )
    )
