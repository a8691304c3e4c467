"""The hierarchy of keys and logins: a grant is limited by the grants of the keys above it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

SQL = sql.load("lineage")


@dataclass(frozen=True, slots=True)
class KeyCreator:
    """Who creates a key or login; `key_id` if another key does."""

    kind: str = "command"  # key, session, development, or the command line
    key_id: int | None = None


COMMAND = KeyCreator()


@dataclass(frozen=True, slots=True)
class ExcessiveGrant:
    """A key or login that exceeds its parent; not `certain` if the parent is not recorded."""

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
    """A key or login, with the fields that decide which keys may be its parents."""

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
    """The grants of these keys and of all keys above them, by id."""
    rows = await database.fetch(*SQL.ancestors(ids=list(set(ids))))
    found: dict[int, list[Grant]] = {}
    for row in rows:
        found.setdefault(row["start"], []).append(grant_of(row))
    return found


def grant_of(row: asyncpg.Record) -> Grant:
    """The grant of a key or login, without the limits of its parents."""
    return Grant(
        frozenset(map(Scope, row["scopes"])),
        tuple(row["sender_domains"] or ()),
        tuple(row["recipient_domains"] or ()),
        row["expires_at"],
    )


def limited_by(own: Grant, above: Sequence[Grant]) -> Grant:
    """A grant limited by all grants above it."""
    for grant in above:
        own = narrowed(own, grant)
    return own


async def lock_parent(connection: asyncpg.Connection, maker: KeyCreator) -> None:
    """Lock the creating key against revocation until COMMIT; NotAllowed if it is revoked."""
    if maker.key_id is None:
        return
    if await connection.fetchval(*SQL.lock_parent(id=maker.key_id)) is None:
        raise NotAllowed("revoked", "key", "the key that asks was revoked", "use another one")


async def descendants(database: Database, key_id: int) -> RevokedCredentials:
    """How many valid keys and logins would be revoked with a key."""
    row = await database.fetchrow(*SQL.descendants(id=key_id))
    assert row is not None
    return RevokedCredentials(row["keys"], row["logins"])


async def find_excessive(database: Database) -> list[ExcessiveGrant]:
    """The valid keys and logins that exceed their parent, or a possible parent if none is recorded.

    Version 0.1.0 did not record parents. There a parent may be any key of the same tenant with the
    scope `manage`, or an administrator's, that was valid when the key or login was created.
    """
    credentials = [_credential(row) for row in await database.fetch(*SQL.credentials())]
    keys = {credential.id: credential for credential in credentials if credential.kind == "key"}
    now = datetime.now(UTC)
    found = []
    for credential in credentials:
        if credential.is_in_force(now):
            excessive = _excess_over_parents(credential, keys)
            if excessive is not None:
                found.append(excessive)
    return found


def _excess_over_parents(
    credential: _Credential, keys: Mapping[int, _Credential]
) -> ExcessiveGrant | None:
    """How a credential exceeds its parent; of several possible parents, the one exceeded most."""
    parents: list[_Credential] = []
    if credential.parent_id is not None:
        parents = [keys[credential.parent_id]]
    elif credential.made_by is None:
        parents = [key for key in keys.values() if _may_have_made(key, credential)]
    excesses = [(excess(credential.grant, parent.grant), parent) for parent in parents]
    fields, parent = max(excesses, key=lambda pair: len(pair[0]), default=((), None))
    if parent is None or not fields:
        return None
    return ExcessiveGrant(
        credential.kind,
        credential.label,
        credential.name,
        credential.tenant,
        parent.label,
        parent.name,
        tuple(fields),
        certain=credential.parent_id is not None,
    )


def _may_have_made(key: _Credential, credential: _Credential) -> bool:
    is_older = credential.kind != "key" or key.id < credential.id
    is_manager = key.tenant == credential.tenant and Scope.MANAGE in key.grant.scopes
    is_admin = Scope.ADMIN in key.grant.scopes
    return is_older and (is_manager or is_admin) and key.is_in_force(credential.created_at)


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
