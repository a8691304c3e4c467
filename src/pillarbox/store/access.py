"""Stored API keys and SMTP logins: hashed, shown once, looked up in batches.

Both secrets are random, with too many bits to guess. SHA-256 is the right hash for them: a slow
hash protects guessable passwords, which these are not, and would delay every request.
"""

from __future__ import annotations

import hmac
import re
import secrets
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pillarbox.errors import NotFound, NotPossible
from pillarbox.model.access import Principal, Scope
from pillarbox.model.access_settings import checked_domains, checked_name, checked_scopes
from pillarbox.model.grants import Grant
from pillarbox.model.secret import Secret
from pillarbox.store import lineage, sql, tenants
from pillarbox.store.lineage import COMMAND, KeyCreator, RevokedCredentials

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database

SQL = sql.load("access")
PREFIX_LENGTH = 10  # 36^10: two keys do not get the same prefix by chance
SECRET_LENGTH = 43  # 62^43 is about 2^256
ALPHABET = string.ascii_letters + string.digits  # a double click selects all of it
_token = re.compile(rf"pbx_([a-z0-9]{{{PREFIX_LENGTH}}})_[A-Za-z0-9]{{{SECRET_LENGTH}}}").fullmatch
_username = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}@[A-Za-z0-9][A-Za-z0-9_.-]{0,62}").fullmatch
_password = re.compile(rf"[A-Za-z0-9]{{{SECRET_LENGTH}}}").fullmatch
# Compared with a guess where there is no such key, so that the answer takes as long.
_NO_HASH = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """An API key without its secret."""

    id: int
    name: str
    tenant: str | None  # None: an administrator's
    prefix: str
    scopes: tuple[Scope, ...]
    sender_domains: tuple[str, ...]
    recipient_domains: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    made_by: str | None = None  # the kind of its KeyCreator; None: unknown
    parent: str | None = None  # the prefix of the key that made it


@dataclass(frozen=True, slots=True)
class SmtpLoginRecord:
    """An SMTP login without its password."""

    id: int
    name: str
    tenant: str
    username: str
    sender_domains: tuple[str, ...]
    recipient_domains: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    made_by: str | None = None
    parent: str | None = None


def prefix_of(token: str) -> str | None:
    """The public beginning of a key, without `pbx_`; None if the token has another form."""
    found = _token(token)
    return found[1] if found else None


def is_username(username: str) -> bool:
    """Whether it has the form of a user name of an SMTP login."""
    return bool(_username(username))


def is_login(username: str, password: str) -> bool:
    """Whether user name and password have the form of an SMTP login."""
    return bool(_username(username) and _password(password))


async def find_keys(database: Database, tokens: Sequence[str]) -> list[Principal | None]:
    """The owners of API keys, with one statement; None for a token that is no valid key."""
    prefixes = [prefix_of(token) or "" for token in tokens]
    rows = await database.fetch(*SQL.find_keys(prefixes=list(set(prefixes))))
    ancestors = await _ancestors(database, rows)
    by_prefix = {row["prefix"]: row for row in rows}
    return [
        _authenticate("key", by_prefix.get(prefix), token, ancestors)
        for prefix, token in zip(prefixes, tokens, strict=True)
    ]


async def find_logins(
    database: Database, logins: Sequence[tuple[str, str]]
) -> list[Principal | None]:
    """The owners of user names and passwords, with one statement; None for no valid login."""
    usernames = {username for username, password in logins if is_login(username, password)}
    rows = await database.fetch(*SQL.find_logins(usernames=list(usernames)))
    ancestors = await _ancestors(database, rows)
    by_name = {row["username"]: row for row in rows}
    return [
        _authenticate("login", by_name.get(username), password, ancestors)
        for username, password in logins
    ]


async def has_login(database: Database, username: str) -> bool:
    """Whether there is or was a login with this user name."""
    return bool(await database.fetchval(*SQL.has_login(username=username)))


async def _ancestors(database: Database, rows: Sequence[asyncpg.Record]) -> dict[int, list[Grant]]:
    """The grants of the parents of these keys or logins; most have no parent."""
    parents = {row["parent_id"] for row in rows} - {None}
    if not parents:
        return {}
    return await lineage.ancestors(database, parents)


def _authenticate(
    kind: str, row: asyncpg.Record | None, secret: str, ancestors: Mapping[int, Sequence[Grant]]
) -> Principal | None:
    stored_hash = _NO_HASH if row is None else row["hash"]
    if not hmac.compare_digest(stored_hash, digest(secret)) or row is None:
        return None
    grant = Grant(
        frozenset(map(Scope, row["scopes"])),
        tuple(row["own_sender_domains"] or ()),
        tuple(row["recipient_domains"] or ()),
        row["expires_at"],
    )
    if row["parent_id"] is not None:
        grant = lineage.limited_by(grant, ancestors[row["parent_id"]])
        if grant.expires_at is not None and grant.expires_at <= row["now"]:
            return None
    tenant = None
    if row["id"] is not None:
        tenant = tenants.tenant_of(row)
    return Principal(
        kind,
        row["own_name"],
        tenant,
        grant.scopes,
        grant.sender_domains,
        grant.recipient_domains,
        row["own_id"],
        grant.expires_at,
    )


def digest(secret: str) -> bytes:
    """The stored hash of a key or password."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


async def development_principal(database: Database) -> Principal:
    """The principal of requests without a key: the tenant `default`, with every scope."""
    return Principal(
        "development",
        "development",
        await tenants.get_tenant(database, "default"),
        frozenset(Scope),
    )


async def note_keys(database: Database, ids: Collection[int]) -> None:
    """Record that keys were used now; at most once a minute for each."""
    await database.execute(*SQL.note_keys(ids=list(ids)))


async def note_logins(database: Database, ids: Collection[int]) -> None:
    """Record that logins were used now; at most once a minute for each."""
    await database.execute(*SQL.note_logins(ids=list(ids)))


async def list_keys(
    database: Database,
    tenant: str | None = None,
    *,
    prefix: str | None = None,
    name: str | None = None,
    revoked: bool = False,
) -> list[ApiKeyRecord]:
    """The keys of a tenant; without one, those of all tenants and of the administrators."""
    statement = SQL.list_keys(tenant=tenant, prefix=prefix, name=name, include_revoked=revoked)
    return [_key_record(row) for row in await database.fetch(*statement)]


async def list_logins(
    database: Database,
    tenant: str | None = None,
    *,
    username: str | None = None,
    revoked: bool = False,
) -> list[SmtpLoginRecord]:
    """The logins of a tenant, or of all."""
    statement = SQL.list_logins(tenant=tenant, username=username, include_revoked=revoked)
    return [SmtpLoginRecord(**_with_domains(row)) for row in await database.fetch(*statement)]


def _key_record(row: asyncpg.Record) -> ApiKeyRecord:
    values = _with_domains(row)
    values["scopes"] = tuple(map(Scope, values["scopes"]))
    return ApiKeyRecord(**values)


def _with_domains(row: asyncpg.Record) -> dict[str, Any]:
    """A row's values by name, with its domains as tuples."""
    values: dict[str, Any] = dict(row)
    for name in ("sender_domains", "recipient_domains"):
        values[name] = tuple(values[name] or ())
    return values


async def add_key(
    database: Database,
    tenant: str | None,
    name: str,
    scopes: Collection[Scope],
    *,
    sender_domains: Sequence[str] = (),
    recipient_domains: Sequence[str] = (),
    expires_at: datetime | None = None,
    maker: KeyCreator = COMMAND,
) -> tuple[ApiKeyRecord, Secret]:
    """Add a key of a tenant or of administrators; returns it with its secret, shown once."""
    checked = checked_scopes(scopes, admin=tenant is None)
    senders, recipients = _domains(sender_domains, recipient_domains)
    prefix, token = _new_token()
    tenant_id = None
    if tenant is not None:
        tenant_id = (await tenants.get_tenant(database, tenant)).id
    async with database.transaction() as connection:
        await lineage.lock_parent(connection, maker)
        await connection.execute(*SQL.retire_key(tenant_id=tenant_id, name=name))
        row = await connection.fetchrow(
            *SQL.add_key(
                tenant_id=tenant_id,
                name=checked_name(name),
                prefix=prefix,
                hash=digest(token),
                scopes=checked,
                sender_domains=senders or None,
                recipient_domains=recipients or None,
                expires_at=expires_at,
                parent_id=maker.key_id,
                made_by=maker.kind,
            )
        )
    if row is None:
        raise NotPossible(
            f"there is a key {name!r} already: revoke it first, or choose another name"
        )
    record = ApiKeyRecord(
        id=row["id"],
        name=name,
        tenant=tenant,
        prefix=prefix,
        scopes=checked,
        sender_domains=senders,
        recipient_domains=recipients,
        created_at=row["created_at"],
        expires_at=expires_at,
        revoked_at=None,
        last_used_at=None,
        made_by=maker.kind,
        parent=row["parent"],
    )
    return record, Secret(token)


def _domains(
    senders: Sequence[str], recipients: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    checked_senders = checked_domains("sender_domains", senders)
    return checked_senders, checked_domains("recipient_domains", recipients)


def _new_token() -> tuple[str, str]:
    prefix = _random(string.ascii_lowercase + string.digits, PREFIX_LENGTH)
    return prefix, f"pbx_{prefix}_{new_secret()}"


def new_secret() -> str:
    """A secret of 256 random bits."""
    return _random(ALPHABET, SECRET_LENGTH)


def _random(alphabet: str, length: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))


async def add_login(
    database: Database,
    tenant: str,
    name: str,
    *,
    sender_domains: Sequence[str] = (),
    recipient_domains: Sequence[str] = (),
    expires_at: datetime | None = None,
    maker: KeyCreator = COMMAND,
) -> tuple[SmtpLoginRecord, Secret]:
    """Add a login of a tenant; returns it with its password, which is not stored."""
    username, password = f"{checked_name(name)}@{tenant}", new_secret()
    senders, recipients = _domains(sender_domains, recipient_domains)
    tenant_id = (await tenants.get_tenant(database, tenant)).id
    async with database.transaction() as connection:
        await lineage.lock_parent(connection, maker)
        await connection.execute(*SQL.retire_login(username=username))
        row = await connection.fetchrow(
            *SQL.add_login(
                tenant_id=tenant_id,
                name=name,
                username=username,
                hash=digest(password),
                sender_domains=senders or None,
                recipient_domains=recipients or None,
                expires_at=expires_at,
                parent_id=maker.key_id,
                made_by=maker.kind,
            )
        )
    if row is None:
        raise NotPossible(
            f"there is a login {username!r} already: revoke it first, or choose another name"
        )
    record = SmtpLoginRecord(
        id=row["id"],
        name=name,
        tenant=tenant,
        username=username,
        sender_domains=senders,
        recipient_domains=recipients,
        created_at=row["created_at"],
        expires_at=expires_at,
        revoked_at=None,
        last_used_at=None,
        made_by=maker.kind,
        parent=row["parent"],
    )
    return record, Secret(password)


async def revoke_key(
    database: Database, key_id: int, tenant: str | None = None, *, keep_descendants: bool = False
) -> RevokedCredentials:
    """Revoke a key at once, with everything that it and its descendants made unless they are kept.

    NotFound if no valid key of this tenant has this id.
    """
    async with database.transaction() as connection:
        revoke = lineage.SQL.revoke_key(id=key_id, tenant=tenant)
        if await connection.fetchval(*revoke) is None:
            raise NotFound("there is no such key in force: see `pillarbox key list`")
        keys = logins = 0
        parents = [] if keep_descendants else [key_id]
        while parents:
            # Waits for a transaction that makes a key by one of these: the next round finds it.
            children = await connection.fetch(*lineage.SQL.revoke_children(parent_ids=parents))
            revoked_logins = await connection.fetch(
                *lineage.SQL.revoke_logins_of(parent_ids=parents)
            )
            keys += sum(row["revoked"] for row in children)
            logins += len(revoked_logins)
            parents = [row["id"] for row in children]
    return RevokedCredentials(keys, logins)


async def revoke_login(database: Database, login_id: int, tenant: str | None = None) -> None:
    """Revoke a login at once; NotFound if no valid login of this tenant has this id."""
    revoke = SQL.revoke_login(id=login_id, tenant=tenant)
    if await database.fetchval(*revoke) is None:
        raise NotFound("there is no such login in force: see `pillarbox smtp-login list`")
