"""Stored webhook endpoints of customers, and the calls that are due to them."""

from __future__ import annotations

import json
import re
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

SQL = sql.load("webhooks")
CHANNEL = "pillarbox_webhooks"
# Endpoints of one tenant: each gets a call for every mail.
MAX_ENDPOINTS = 20
# How long calls are also signed with the old secret: a working day in any time zone.
GRACE = timedelta(days=1)
# Counting stops here: a larger number tells a person nothing more.
COUNTED = 100_000
BATCH = 5000
_BEGINNING_OF_ID = re.compile("[0-9a-f-]{4,}")

Keys = Callable[[], "EncryptionKeyRing"]


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """A webhook endpoint of a tenant, without its secrets."""

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
    """A call to make, and the secrets that sign it."""

    id: UUID
    claim: int
    endpoint_id: UUID
    kind: str
    at: datetime
    payload: Mapping[str, Any]
    attempts: int
    url: str
    secrets: Sequence[Secret]  # empty: no key of this installation opens them


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of one try; with `delay` seconds the call is made again."""

    state: CallState
    status: int | None
    error: str | None
    took: float
    delay: float | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class SettledCall:
    """The result of settling: `held` if the claim was valid; `disabled`: why the endpoint is."""

    held: bool
    tenant_id: int | None = None
    disabled: str | None = None


def _context(endpoint_id: UUID) -> str:
    """The context of a sealed secret, so that it cannot be moved to another row."""
    return f"webhook:{endpoint_id}"


def _new_secret() -> Secret:
    return secret_of(secrets.token_bytes(SECRET_BYTES))


async def add_endpoint(
    database: Database, keys: Keys, tenant_id: int, url: str, kinds: Sequence[str] | None = None
) -> tuple[WebhookEndpoint, Secret]:
    """Add an endpoint; returns it with its secret, shown once. The caller has checked the URL."""
    endpoint_id: UUID = await database.fetchval(*SQL.new_id())
    secret = _new_secret()
    added = await database.fetchval(
        *SQL.add_endpoint(
            id=endpoint_id,
            tenant_id=tenant_id,
            url=url,
            kinds=_distinct(kinds),
            secret=keys().seal(secret.reveal(), _context(endpoint_id)),
            max_endpoints=MAX_ENDPOINTS,
        )
    )
    if added is None:
        raise NotPossible(f"a tenant has at most {MAX_ENDPOINTS} webhooks: remove one first")
    return await get_endpoint(database, endpoint_id, tenant_id), secret


def _distinct(kinds: Sequence[str] | None) -> list[str] | None:
    return list(dict.fromkeys(kinds)) if kinds else None


async def list_endpoints(database: Database, tenant_id: int | None = None) -> list[WebhookEndpoint]:
    rows = await database.fetch(*SQL.endpoints(tenant_id=tenant_id, id=None, count_limit=COUNTED))
    return [WebhookEndpoint(**row) for row in rows]


async def get_endpoint(
    database: Database, endpoint_id: UUID, tenant_id: int | None = None
) -> WebhookEndpoint:
    """One endpoint; NotFound if it does not exist or is another tenant's."""
    row = await database.fetchrow(
        *SQL.endpoints(tenant_id=tenant_id, id=endpoint_id, count_limit=COUNTED)
    )
    if row is None:
        raise _missing(endpoint_id)
    return WebhookEndpoint(**row)


async def find_endpoint(
    database: Database, text: str, tenant_id: int | None = None
) -> WebhookEndpoint:
    """The endpoint whose id begins with this text; NotFound if none or several do."""
    beginning = text.strip().lower()
    rows = []
    if _BEGINNING_OF_ID.fullmatch(beginning):
        rows = await database.fetch(*SQL.find_endpoints(beginning=beginning, tenant_id=tenant_id))
    if len(rows) > 1:
        raise NotFound(f"{text} is the beginning of several ids: give more of it")
    if not rows:
        raise _missing(text)
    return await get_endpoint(database, rows[0]["id"], tenant_id)


async def change_endpoint(
    database: Database, endpoint_id: UUID, tenant_id: int, url: str, kinds: Sequence[str] | None
) -> None:
    change = SQL.change_endpoint(
        id=endpoint_id, tenant_id=tenant_id, url=url, kinds=_distinct(kinds)
    )
    await _must_exist(database, endpoint_id, change)


async def enable_endpoint(database: Database, endpoint_id: UUID, tenant_id: int) -> None:
    """Enable an endpoint; its waiting calls are due at once."""
    enable = SQL.enable_endpoint(id=endpoint_id, tenant_id=tenant_id)
    await _must_exist(database, endpoint_id, enable)
    hasten = SQL.hasten(endpoint_id=endpoint_id, limit=BATCH)
    while await database.fetchval(*hasten):
        pass


async def disable_endpoint(database: Database, endpoint_id: UUID, tenant_id: int) -> None:
    disable = SQL.disable_endpoint(id=endpoint_id, tenant_id=tenant_id)
    await _must_exist(database, endpoint_id, disable)


async def rotate_endpoint(
    database: Database, keys: Keys, endpoint_id: UUID, tenant_id: int
) -> Secret:
    """Create a new secret, shown once; the old one signs, too, for a day."""
    secret = _new_secret()
    rotate = SQL.rotate_endpoint(
        id=endpoint_id,
        tenant_id=tenant_id,
        secret=keys().seal(secret.reveal(), _context(endpoint_id)),
        grace=GRACE,
    )
    await _must_exist(database, endpoint_id, rotate)
    return secret


async def remove_endpoint(database: Database, endpoint_id: UUID, tenant_id: int) -> None:
    """Delete an endpoint, its waiting calls and its log."""
    remove = SQL.remove_endpoint(id=endpoint_id, tenant_id=tenant_id)
    await _must_exist(database, endpoint_id, remove)
    drop = SQL.drop_calls(endpoint_id=endpoint_id, limit=BATCH)
    while await database.execute(*drop):
        pass


async def _must_exist(database: Database, endpoint_id: UUID, statement: tuple[Any, ...]) -> None:
    if await database.fetchval(*statement) is None:
        raise _missing(endpoint_id)


def _missing(endpoint_id: object) -> NotFound:
    return NotFound(f"there is no webhook {endpoint_id}: see `pillarbox webhook list`")


async def rotate_secrets(database: Database, keys: EncryptionKeyRing) -> tuple[int, int]:
    """Seal every secret with the newest key; returns how many were resealed, and how many exist."""
    resealed = total = 0
    async with database.transaction() as connection:
        for row in await connection.fetch(*SQL.sealed_secrets()):
            stored = {name: row[name] for name in ("secret", "old_secret") if row[name]}
            old = {name: value for name, value in stored.items() if not keys.is_current(value)}
            total += len(stored)
            resealed += len(old)
            if old:
                context = _context(row["id"])
                new = {name: keys.reseal(value, context) for name, value in old.items()}
                current = {"secret": row["secret"], "old_secret": row["old_secret"], **new}
                await connection.execute(*SQL.reseal(id=row["id"], **current))
    return resealed, total


async def claim(
    database: Database,
    keys: Keys,
    lease: float,
    limit: int,
    per_endpoint: int,
    in_hand: Mapping[UUID, int],
) -> list[ClaimedCall]:
    """Claim due calls for `lease` seconds; `in_hand` counts the caller's calls per endpoint."""
    rows = await database.fetch(
        *SQL.claim(
            lease=lease,
            limit=limit,
            per_endpoint=per_endpoint,
            busy_endpoints=list(in_hand.keys()),
            busy_counts=list(in_hand.values()),
        )
    )
    return [_claimed(row, keys) for row in rows]


def _claimed(row: asyncpg.Record, keys: Keys) -> ClaimedCall:
    return ClaimedCall(
        id=row["id"],
        claim=row["claim"],
        endpoint_id=row["endpoint_id"],
        kind=row["kind"],
        at=row["at"],
        payload=json.loads(row["payload"]),
        attempts=row["attempts"],
        url=row["url"],
        secrets=_opened(keys, _context(row["endpoint_id"]), row["secret"], row["old_secret"]),
    )


def _opened(keys: Keys, context: str, *sealed: bytes | None) -> list[Secret]:
    """The secrets; empty if no key opens them: then only this endpoint fails, not the others."""
    try:
        return [keys().open(secret, context) for secret in sealed if secret]
    except SecretError:
        return []


async def due_in(database: Database) -> float | None:
    """Seconds until the next call is due; None if no call waits."""
    seconds: float | None = await database.fetchval(*SQL.due_in())
    return seconds


async def settle(
    database: Database, call: ClaimedCall, result: CallResult, disable_after: float
) -> SettledCall:
    """Store the result of a try; repeating this is harmless."""
    row = await database.fetchrow(
        *SQL.settle_call(
            id=call.id,
            claim=call.claim,
            state=result.state.value,
            delay=result.delay,
            status=result.status,
            error=result.error,
            took=result.took,
            gone=result.gone,
            disable_after=disable_after,
        )
    )
    if row is None:
        return SettledCall(held=False)
    return SettledCall(True, row["tenant_id"], row["disabled"])


async def release(database: Database, call: ClaimedCall) -> None:
    await database.execute(*SQL.release_call(id=call.id, claim=call.claim))


async def add_test(
    database: Database, keys: Keys, endpoint_id: UUID, tenant_id: int
) -> ClaimedCall:
    """Store a test call, claimed by the caller."""
    row = await database.fetchrow(
        *SQL.add_test(
            id=await database.fetchval(*SQL.new_id()),
            endpoint_id=endpoint_id,
            tenant_id=tenant_id,
            payload=json.dumps({"webhook_id": str(endpoint_id)}),
            kind=TEST,
        )
    )
    if row is None:
        raise _missing(endpoint_id)
    return _claimed(row, keys)


async def settle_test(database: Database, call: ClaimedCall, result: CallResult) -> None:
    """Store the result of a test call."""
    await database.execute(
        *SQL.settle_test(
            id=call.id,
            claim=call.claim,
            state=result.state.value,
            status=result.status,
            error=result.error,
            took=result.took,
        )
    )


async def count_waiting(database: Database) -> int:
    """Waiting calls of enabled endpoints, counted up to COUNTED."""
    return int(await database.fetchval(*SQL.count_waiting(limit=COUNTED)))
