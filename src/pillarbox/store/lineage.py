"""Which keys made which keys and logins: what is left of a grant through its parents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pillarbox.errors import NotAllowed
from pillarbox.model.access import Scope
from pillarbox.model.grants import Grant, excess, narrowed
from pillarbox.store import sql

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database

QUERIES = sql.load("lineage")


@dataclass(frozen=True, slots=True)
class KeyCreator:
    """Who makes a key or login; with the id of the key, if it is one."""

    kind: str = "command"  # key, session, development, or the command line
    key_id: int | None = None


COMMAND = KeyCreator()


@dataclass(frozen=True, slots=True)
class ExcessiveGrant:
    """A key or login that exceeds its parent. Not `certain`: no parent is on record, and this one may be it."""

    kind: str  # key or login
    label: str  # its prefix, or user name
    name: str
    tenant: str | None
    parent: str  # a key's prefix
    parent_name: str
    fields: tuple[str, ...]
    certain: bool


@dataclass(frozen=True, slots=True)
class RevokedCredentials:
    """How many keys and logins were revoked with a key."""

    keys: int
    logins: int


@dataclass(frozen=True, slots=True)
class _Credential:
    """A key or login with what decides about its parents."""

    kind: str
    id: int
    parent_id: int | None
    made_by: str | None
    label: str
    name: str
    tenant: str | None
    grant: Grant
    created_at: datetime
    revoked_at: datetime | None

    def is_in_force(self, at: datetime) -> bool:
        ends = [end for end in (self.revoked_at, self.grant.expires_at) if end is not None]
        return self.created_at <= at and all(at < end for end in ends)


async def ancestors(database: Database, ids: Iterable[int]) -> dict[int, list[Grant]]:
    """What these keys and all above them may do, by id."""
    rows = await database.fetch(QUERIES["ancestors"], list(set(ids)))
    found: dict[int, list[Grant]] = {}
    for row in rows:
        found.setdefault(row["start"], []).append(grant_of(row))
    return found


def grant_of(row: asyncpg.Record) -> Grant:
    """What a row of a key or login allows by itself."""
    return Grant(
        frozenset(map(Scope, row["scopes"])),
        tuple(row["sender_domains"] or ()),
        tuple(row["recipient_domains"] or ()),
        row["expires_at"],
    )


def through(own: Grant, above: Sequence[Grant]) -> Grant:
    """What is left of a grant through all above it."""
    for one in above:
        own = narrowed(own, one)
    return own


async def hold_parent(connection: asyncpg.Connection, maker: KeyCreator) -> None:
    """Keep the key that makes another from being revoked until that is committed; NotAllowed if it was already."""
    if (
        maker.key_id is not None
        and await connection.fetchval(QUERIES["hold_parent"], maker.key_id) is None
    ):
        raise NotAllowed("revoked", "key", "the key that asks was revoked", "use another one")


async def descendants(database: Database, key_id: int) -> RevokedCredentials:
    """How many keys and logins in force would be revoked with a key."""
    row = await database.fetchrow(QUERIES["descendants"], key_id)
    assert row is not None
    return RevokedCredentials(row["keys"], row["logins"])


async def exceeding(database: Database) -> list[ExcessiveGrant]:
    """What is in force and exceeds its parent, or one that may be its parent where that is not on record.

    Version 0.1.0 did not record parents. There a parent may be any key of the same tenant with the
    scope `manage`, or an administrator's, that was in force when the key or login was made.
    """
    rows = await database.fetch(QUERIES["credentials"])
    everything = [_credential(row) for row in rows]
    keys = {one.id: one for one in everything if one.kind == "key"}
    now = datetime.now(UTC)
    found = []
    for one in everything:
        if not one.is_in_force(now):
            continue
        certain = one.parent_id is not None
        if one.parent_id is not None:
            parents = [keys[one.parent_id]]
        elif one.made_by is None:
            parents = [key for key in keys.values() if _may_have_made(key, one)]
        else:
            parents = []
        worst = max(parents, key=lambda parent: len(excess(one.grant, parent.grant)), default=None)
        fields = excess(one.grant, worst.grant) if worst is not None else []
        if worst is not None and fields:
            found.append(
                ExcessiveGrant(
                    one.kind, one.label, one.name, one.tenant, worst.label, worst.name, tuple(fields), certain
                )
            )  # fmt: skip
    return found


def _may_have_made(key: _Credential, one: _Credential) -> bool:
    is_itself = one.kind == "key" and key.id >= one.id
    is_manager = key.tenant == one.tenant and Scope.MANAGE in key.grant.scopes
    is_admin = Scope.ADMIN in key.grant.scopes
    return not is_itself and (is_manager or is_admin) and key.is_in_force(one.created_at)


def _credential(row: asyncpg.Record) -> _Credential:
    return _Credential(
        row["kind"],
        row["id"],
        row["parent_id"],
        row["made_by"],
        row["label"],
        row["name"],
        row["tenant"],
        grant_of(row),
        row["created_at"],
        row["revoked_at"],
    )
