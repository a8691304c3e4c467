"""Webhook endpoints of customers, and the calls to be made to them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pillarbox.errors import NotFound, NotPossible, SecretError
from pillarbox.model.secret import Secret
from pillarbox.model.webhook import SECRET_BYTES, TEST, CallState, secret_of
from pillarbox.store import sql

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database
    from pillarbox.store.vault import EncryptionKeyRing

QUERIES = sql.load("webhooks")
CHANNEL = "pillarbox_webhooks"
# Endpoints of one tenant: each is a call for every mail.
MOST_ENDPOINTS = 20
# How long calls are signed with the old secret, too: a working day, wherever that is.
GRACE = timedelta(days=1)
# Counting stops here: beyond it a person only needs to know that it is a lot.
COUNTED = 100_000
BATCH = 5000

Keys = Callable[[], "EncryptionKeyRing"]


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """Where a tenant wants to be told; its secrets are not part of it."""

    id: UUID
    tenant_id: int
    tenant: str
    url: str
    kinds: Sequence[str] | None  # None: all
    enabled: bool
    disabled_at: datetime | None
    disabled_reason: str | None
    failing_since: datetime | None
    created_at: datetime
    old_secret_until: datetime | None
    waiting: int


@dataclass(frozen=True, slots=True)
class ClaimedCall:
    """A call to make, and what it is signed with."""

    id: UUID
    claim: int
    endpoint_id: UUID
    kind: str
    at: datetime
    payload: Mapping[str, Any]
    attempts: int
    url: str
    secrets: Sequence[Secret]  # none: no key at hand opens them


@dataclass(frozen=True, slots=True)
class CallResult:
    """How a try ended; with `delay` it is made again."""

    state: CallState
    status: int | None
    error: str | None
    took: float
    delay: float | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class SettledCall:
    """What came of settling: whether the claim still held, and whether that disabled the endpoint, of which tenant."""

    held: bool
    tenant_id: int | None = None
    disabled: str | None = None


def _context(endpoint_id: UUID) -> str:
    """What a sealed secret is bound to, so that it cannot be moved to another row."""
    return f"webhook:{endpoint_id}"


def _new_secret() -> Secret:
    return secret_of(secrets.token_bytes(SECRET_BYTES))


async def add_endpoint(
    database: Database, keys: Keys, tenant_id: int, url: str, kinds: Sequence[str] | None = None
) -> tuple[WebhookEndpoint, Secret]:
    """Add an endpoint; the secret is told this once. The URL must have been checked."""
    endpoint_id: UUID = await database.fetchval("SELECT pillarbox._new_id()")
    secret = _new_secret()
    sealed = keys().seal(secret.reveal(), _context(endpoint_id))
    given = list(dict.fromkeys(kinds)) if kinds else None
    added = await database.fetchval(
        QUERIES["add_endpoint"], endpoint_id, tenant_id, url, given, sealed, MOST_ENDPOINTS
    )
    if added is None:
        raise NotPossible(f"a tenant has at most {MOST_ENDPOINTS} webhooks: remove one first")
    return await get_endpoint(database, endpoint_id, tenant_id), secret


async def list_endpoints(database: Database, tenant_id: int | None = None) -> list[WebhookEndpoint]:
    rows = await database.fetch(QUERIES["endpoints"], tenant_id, None, COUNTED)
    return [WebhookEndpoint(**dict(row)) for row in rows]


async def get_endpoint(
    database: Database, endpoint_id: UUID, tenant_id: int | None = None
) -> WebhookEndpoint:
    """One endpoint; NotFound if there is none, or none of that tenant."""
    row = await database.fetchrow(QUERIES["endpoints"], tenant_id, endpoint_id, COUNTED)
    if row is None:
        raise _missing(endpoint_id)
    return WebhookEndpoint(**dict(row))


async def find_endpoint(
    database: Database, text: str, tenant_id: int | None = None
) -> WebhookEndpoint:
    """The endpoint whose id begins like this; NotFound when there is none, or more than one."""
    word = text.strip().lower()
    known = word if set(word) <= set("0123456789abcdef-") and len(word) >= 4 else ""
    rows = await database.fetch(QUERIES["find_endpoints"], known, tenant_id) if known else []
    if len(rows) > 1:
        raise NotFound(f"{text} is the beginning of several ids: give more of it")
    if not rows:
        raise _missing(text)
    return await get_endpoint(database, rows[0]["id"], tenant_id)


async def change_endpoint(
    database: Database, endpoint_id: UUID, tenant_id: int, url: str, kinds: Sequence[str] | None
) -> None:
    given = list(dict.fromkeys(kinds)) if kinds else None
    await _must(database, "change_endpoint", endpoint_id, tenant_id, url, given)


async def enable_endpoint(database: Database, endpoint_id: UUID, tenant_id: int) -> None:
    """Make calls again; what waits is due at once."""
    await _must(database, "enable_endpoint", endpoint_id, tenant_id)
    while await database.fetchval(QUERIES["hasten"], endpoint_id, BATCH):
        pass


async def disable_endpoint(database: Database, endpoint_id: UUID, tenant_id: int) -> None:
    await _must(database, "disable_endpoint", endpoint_id, tenant_id)


async def rotate_endpoint(
    database: Database, keys: Keys, endpoint_id: UUID, tenant_id: int
) -> Secret:
    """A new secret, told this once; the old one signs, too, for a day."""
    secret = _new_secret()
    sealed = keys().seal(secret.reveal(), _context(endpoint_id))
    await _must(database, "rotate_endpoint", endpoint_id, tenant_id, sealed, GRACE)
    return secret


async def remove_endpoint(database: Database, endpoint_id: UUID, tenant_id: int) -> None:
    """Forget an endpoint, what waits for it, and its log."""
    await _must(database, "remove_endpoint", endpoint_id, tenant_id)
    while await database.execute(QUERIES["drop_calls"], endpoint_id, BATCH):
        pass


async def _must(database: Database, query: str, endpoint_id: UUID, *values: object) -> None:
    if await database.fetchval(QUERIES[query], endpoint_id, *values) is None:
        raise _missing(endpoint_id)


def _missing(endpoint_id: object) -> NotFound:
    return NotFound(f"there is no webhook {endpoint_id}: see `pillarbox webhook list`")


async def rotate_secrets(database: Database, keys: EncryptionKeyRing) -> tuple[int, int]:
    """Seal every secret with the newest key; returns how many were resealed, and how many there are."""
    resealed = total = 0
    async with database.transaction() as connection:
        for row in await connection.fetch(QUERIES["sealed_secrets"]):
            context = _context(row["id"])
            kept = [row["secret"], row["old_secret"]]
            anew = [
                one and (one if keys.is_current(one) else keys.reseal(one, context)) for one in kept
            ]
            changed = sum(one != old for one, old in zip(anew, kept, strict=True))
            if changed:
                await connection.execute(QUERIES["reseal"], row["id"], *anew)
            resealed, total = resealed + changed, total + sum(one is not None for one in kept)
    return resealed, total


async def claim(
    database: Database,
    keys: Keys,
    lease: float,
    most: int,
    per_endpoint: int,
    in_hand: Mapping[UUID, int],
) -> list[ClaimedCall]:
    """Take due calls; see the query."""
    rows = await database.fetch(
        QUERIES["claim"], lease, most, per_endpoint, list(in_hand.keys()), list(in_hand.values())
    )
    return [_claimed(row, keys) for row in rows]


def _claimed(row: asyncpg.Record, keys: Keys) -> ClaimedCall:
    names = ("id", "claim", "endpoint_id", "kind", "at", "attempts", "url")
    opened = _opened(keys, _context(row["endpoint_id"]), row["secret"], row["old_secret"])
    return ClaimedCall(
        **{name: row[name] for name in names}, payload=json.loads(row["payload"]), secrets=opened
    )


def _opened(keys: Keys, context: str, *sealed: bytes | None) -> list[Secret]:
    """The secrets; none where no key at hand opens them: that is this endpoint's trouble, not the others'."""
    try:
        return [keys().open(one, context) for one in sealed if one]
    except SecretError:
        return []


async def due_in(database: Database) -> float | None:
    """Seconds until the next call is due; None when none waits."""
    seconds: float | None = await database.fetchval(QUERIES["due_in"])
    return seconds


async def settle(
    database: Database, call: ClaimedCall, result: CallResult, disable_after: float
) -> SettledCall:
    """Write how a try ended; repeating it is harmless."""
    row = await database.fetchrow(
        QUERIES["settle_call"], call.id, call.claim, result.state.value, result.delay, result.status, result.error,
        result.took, result.gone, disable_after,
    )  # fmt: skip
    return SettledCall(True, row["tenant_id"], row["disabled"]) if row else SettledCall(False)


async def release(database: Database, call: ClaimedCall) -> None:
    await database.execute(QUERIES["release_call"], call.id, call.claim)


async def add_test(
    database: Database, keys: Keys, endpoint_id: UUID, tenant_id: int
) -> ClaimedCall:
    """A test call, in the hand of whoever asks."""
    call_id = await database.fetchval("SELECT pillarbox._new_id()")
    payload = json.dumps({"webhook_id": str(endpoint_id)})
    row = await database.fetchrow(
        QUERIES["add_test"], call_id, endpoint_id, tenant_id, payload, TEST
    )
    if row is None:
        raise _missing(endpoint_id)
    return _claimed(row, keys)


async def settle_test(database: Database, call: ClaimedCall, result: CallResult) -> None:
    await database.execute(
        QUERIES["settle_test"],
        call.id,
        call.claim,
        result.state.value,
        result.status,
        result.error,
        result.took,
    )


async def count_waiting(database: Database) -> int:
    return int(await database.fetchval(QUERIES["count_waiting"], COUNTED))
