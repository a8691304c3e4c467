"""API keys and SMTP logins at rest: hashed, shown once, found many at a time.

Both secrets are made here, of so many random bits that nobody can try them all. One SHA-256 is the
right hash for them: a slow one would protect guessable passwords, which these are not, and stand
before every request.
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

QUERIES = sql.load("access")
PREFIX_LENGTH = 10  # 36^10: no two keys meet by chance
SECRET_LENGTH = 43  # 62^43 is about 2^256
ALPHABET = string.ascii_letters + string.digits  # a double click takes all of it
_token = re.compile(rf"pbx_([a-z0-9]{{{PREFIX_LENGTH}}})_[A-Za-z0-9]{{{SECRET_LENGTH}}}").fullmatch
_username = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}@[A-Za-z0-9][A-Za-z0-9_.-]{0,62}").fullmatch
_password = re.compile(rf"[A-Za-z0-9]{{{SECRET_LENGTH}}}").fullmatch
# What a guess is compared with where there is no such key: the answer takes as long.
_NOBODY = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """A key as it may be shown: without its secret."""

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
    made_by: str | None = None  # a Maker's kind; None: not known
    parent: str | None = None  # the prefix of the key that made it


@dataclass(frozen=True, slots=True)
class SmtpLoginRecord:
    """A login as it may be shown: without its password."""

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
    """The public beginning of a key, without `pbx_`; None if it cannot be one of ours."""
    found = _token(token)
    return found[1] if found else None


def is_username(username: str) -> bool:
    """Whether it has the form of user names that we hand out."""
    return bool(_username(username))


def is_login(username: str, password: str) -> bool:
    """Whether both have the form of what we hand out."""
    return bool(_username(username) and _password(password))


async def find_keys(database: Database, tokens: Sequence[str]) -> list[Principal | None]:
    """Whose keys these are, in one statement; None for what is no key in force."""
    prefixes = [prefix_of(token) or "" for token in tokens]
    rows = await database.fetch(QUERIES["find_keys"], list(set(prefixes)))
    above = await _above(database, rows)
    by_prefix = {row["prefix"]: row for row in rows}
    return [
        _admit("key", by_prefix.get(prefix), token, above) for prefix, token in zip(prefixes, tokens, strict=True)
    ]  # fmt: skip


async def find_logins(
    database: Database, logins: Sequence[tuple[str, str]]
) -> list[Principal | None]:
    """Whose user names and passwords these are, in one statement; None for what is no login in force."""
    usernames = {username for username, password in logins if is_login(username, password)}
    rows = await database.fetch(QUERIES["find_logins"], list(usernames))
    above = await _above(database, rows)
    by_name = {row["username"]: row for row in rows}
    return [
        _admit("login", by_name.get(username), password, above) for username, password in logins
    ]


async def has_login(database: Database, username: str) -> bool:
    """Whether there is or was a login with this user name."""
    return bool(await database.fetchval(QUERIES["has_login"], username))


async def _above(database: Database, rows: Sequence[asyncpg.Record]) -> dict[int, list[Grant]]:
    """What the parents of these keys or logins may do; most have none."""
    parents = {row["parent_id"] for row in rows} - {None}
    return await lineage.ancestors(database, parents) if parents else {}


def _admit(
    kind: str, row: asyncpg.Record | None, secret: str, above: Mapping[int, Sequence[Grant]]
) -> Principal | None:
    kept = row["hash"] if row is not None else _NOBODY
    if not hmac.compare_digest(kept, digest(secret)) or row is None:
        return None
    scopes = frozenset(map(Scope, row["scopes"]))
    senders, recipients = (
        tuple(row["own_sender_domains"] or ()),
        tuple(row["recipient_domains"] or ()),
    )
    grant = Grant(scopes, senders, recipients, row["expires_at"])
    if row["parent_id"] is not None:
        grant = lineage.through(grant, above[row["parent_id"]])
        if grant.expires_at is not None and grant.expires_at <= row["now"]:
            return None
    return Principal(
        kind,
        row["own_name"],
        tenants.tenant_of(row) if row["id"] is not None else None,
        grant.scopes,
        grant.sender_domains,
        grant.recipient_domains,
        row["own_id"],
        grant.expires_at,
    )


def digest(secret: str) -> bytes:
    """What is kept of a key or password."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


async def development_principal(database: Database) -> Principal:
    """Whoever comes through the keyless door: the tenant `default`, with every scope."""
    return Principal(
        "development",
        "development",
        await tenants.get_tenant(database, "default"),
        frozenset(Scope),
    )


async def note_keys(database: Database, ids: Collection[int]) -> None:
    """Note that keys were used now; at most once a minute each."""
    await database.execute(QUERIES["note_keys"], list(ids))


async def note_logins(database: Database, ids: Collection[int]) -> None:
    """Note that logins were used now; at most once a minute each."""
    await database.execute(QUERIES["note_logins"], list(ids))


async def list_keys(
    database: Database,
    tenant: str | None = None,
    *,
    prefix: str | None = None,
    name: str | None = None,
    revoked: bool = False,
) -> list[ApiKeyRecord]:
    """The keys of a tenant, or of all and of the administrators."""
    rows = await database.fetch(QUERIES["list_keys"], tenant, prefix, name, revoked)
    return [ApiKeyRecord(**_shown(row)) for row in rows]


async def list_logins(
    database: Database,
    tenant: str | None = None,
    *,
    username: str | None = None,
    revoked: bool = False,
) -> list[SmtpLoginRecord]:
    """The logins of a tenant, or of all."""
    rows = await database.fetch(QUERIES["list_logins"], tenant, username, revoked)
    return [SmtpLoginRecord(**_shown(row)) for row in rows]


def _shown(row: asyncpg.Record) -> dict[str, Any]:
    """A row's values by name, with tuples for arrays."""
    values = {name: tuple(one) if isinstance(one, list) else one for name, one in row.items()}
    values |= {name: values[name] or () for name in ("sender_domains", "recipient_domains")}
    return values | ({"scopes": tuple(map(Scope, values["scopes"]))} if "scopes" in values else {})


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
    """Make a key of a tenant, or without one an administrator's; returns it with its secret, which is kept nowhere."""
    kept = checked_scopes(scopes, admin=tenant is None)
    senders, recipients = _domains(sender_domains, recipient_domains)
    prefix, token = _new_token()
    tenant_id = (await tenants.get_tenant(database, tenant)).id if tenant is not None else None
    async with database.transaction() as connection:
        await lineage.hold_parent(connection, maker)
        await connection.execute(QUERIES["retire_key"], tenant_id, name)
        row = await connection.fetchrow(
            QUERIES["add_key"], tenant_id, checked_name(name), prefix, digest(token), kept, senders or None,
            recipients or None, expires_at, maker.key_id, maker.kind,
        )  # fmt: skip
    if row is None:
        raise NotPossible(
            f"there is a key {name!r} already: revoke it first, or choose another name"
        )
    facts = ApiKeyRecord(
        row["id"], name, tenant, prefix, kept, senders, recipients, row["created_at"], expires_at, None, None,
        maker.kind, row["parent"],
    )  # fmt: skip
    return facts, Secret(token)


def _domains(
    senders: Sequence[str], recipients: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return checked_domains("sender_domains", senders), checked_domains(
        "recipient_domains", recipients
    )


def _new_token() -> tuple[str, str]:
    prefix = _random(string.ascii_lowercase + string.digits, PREFIX_LENGTH)
    return prefix, f"pbx_{prefix}_{new_secret()}"


def new_secret() -> str:
    """256 random bits, as we hand them out."""
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
    """Make a login of a tenant; returns it with its password, which is kept nowhere."""
    username, password = f"{checked_name(name)}@{tenant}", new_secret()
    senders, recipients = _domains(sender_domains, recipient_domains)
    tenant_id = (await tenants.get_tenant(database, tenant)).id
    async with database.transaction() as connection:
        await lineage.hold_parent(connection, maker)
        await connection.execute(QUERIES["retire_login"], username)
        row = await connection.fetchrow(
            QUERIES["add_login"], tenant_id, name, username, digest(password), senders or None, recipients or None,
            expires_at, maker.key_id, maker.kind,
        )  # fmt: skip
    if row is None:
        raise NotPossible(
            f"there is a login {username!r} already: revoke it first, or choose another name"
        )
    facts = SmtpLoginRecord(
        row["id"], name, tenant, username, senders, recipients, row["created_at"], expires_at, None, None,
        maker.kind, row["parent"],
    )  # fmt: skip
    return facts, Secret(password)


async def revoke_key(
    database: Database, key_id: int, tenant: str | None = None, *, keep_descendants: bool = False
) -> RevokedCredentials:
    """Take a key out of force, at once, with all that it and its descendants made, unless those are to be kept.

    NotFound if no key in force has this id, or none of this tenant.
    """
    async with database.transaction() as connection:
        if await connection.fetchval(lineage.QUERIES["revoke_key"], key_id, tenant) is None:
            raise NotFound("there is no such key in force: see `pillarbox key list`")
        keys = logins = 0
        parents = [] if keep_descendants else [key_id]
        while parents:
            # Waits for whoever makes a key by one of these at this moment: the next round then
            # finds it.
            rows = await connection.fetch(lineage.QUERIES["revoke_children"], parents)
            keys += sum(row["revoked"] for row in rows)
            logins += int(
                (await connection.execute(lineage.QUERIES["revoke_logins_of"], parents)).rpartition(
                    " "
                )[2]
            )
            parents = [row["id"] for row in rows]
    return RevokedCredentials(keys, logins)


async def revoke_login(database: Database, login_id: int, tenant: str | None = None) -> None:
    """Take a login out of force, at once; NotFound if none in force has this id, or not of this tenant."""
    if await database.fetchval(QUERIES["revoke_login"], login_id, tenant) is None:
        raise NotFound("there is no such login in force: see `pillarbox smtp-login list`")
