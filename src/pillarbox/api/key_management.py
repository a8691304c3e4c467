"""Creates and revokes keys and logins, for administrators and for keys of the tenant."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from pillarbox.api.access_models import (
    RETENTIONS,
    KeyList,
    KeyWithSecret,
    LoginList,
    LoginWithPassword,
    NewKey,
    NewLogin,
    key_details,
    login_details,
)
from pillarbox.api.problems import ProblemError
from pillarbox.errors import InvalidMail, NotAllowed, NotFound, NotPossible
from pillarbox.model.access import Principal, Scope
from pillarbox.model.access_settings import checked_domains
from pillarbox.model.grants import covers, earlier, within
from pillarbox.store import access
from pillarbox.store.lineage import KeyCreator

if TYPE_CHECKING:
    from pillarbox.store.database import Database

New = TypeVar("New", bound=NewLogin)


@contextmanager
def setting_problems() -> Iterator[None]:
    """Raise errors of settings as the problem `invalid-setting`, not `invalid-mail`."""
    try:
        yield
    except InvalidMail as error:
        field = f"{error.field}_seconds" if error.field in RETENTIONS else error.field
        raise ProblemError(
            "invalid-setting", error.message, code=error.code, field=field, hint=error.hint
        ) from None
    except NotPossible as error:
        raise ProblemError("taken", str(error), field="name") from None


async def keys_of(database: Database, tenant: str | None) -> KeyList:
    return KeyList(keys=[key_details(key) for key in await access.list_keys(database, tenant)])


async def logins_of(database: Database, tenant: str | None) -> LoginList:
    return LoginList(
        logins=[login_details(login) for login in await access.list_logins(database, tenant)]
    )


def maker_of(principal: Principal) -> KeyCreator:
    """The maker that is recorded with a key or login."""
    return KeyCreator(principal.kind, principal.id if principal.kind == "key" else None)


async def make_key(
    database: Database, tenant: str | None, new: NewKey, principal: Principal
) -> KeyWithSecret:
    """Create a key of a tenant, or (None) of an administrator."""
    _check_expiry(new.expires_at)
    new = narrowed(principal, new, new.scopes)
    with setting_problems():
        facts, secret = await access.add_key(
            database,
            tenant,
            new.name,
            new.scopes,
            sender_domains=new.sender_domains,
            recipient_domains=new.recipient_domains,
            expires_at=new.expires_at,
            maker=maker_of(principal),
        )
    return KeyWithSecret(**key_details(facts).model_dump(), secret=secret.reveal())


async def make_login(
    database: Database, tenant: str, new: NewLogin, principal: Principal
) -> LoginWithPassword:
    """Create an SMTP login of a tenant."""
    _check_expiry(new.expires_at)
    new = narrowed(principal, new, [Scope.SEND])
    with setting_problems():
        facts, secret = await access.add_login(
            database,
            tenant,
            new.name,
            sender_domains=new.sender_domains,
            recipient_domains=new.recipient_domains,
            expires_at=new.expires_at,
            maker=maker_of(principal),
        )
    return LoginWithPassword(**login_details(facts).model_dump(), password=secret.reveal())


def _check_expiry(expires_at: datetime | None) -> None:
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise ProblemError(
            "invalid-setting", "must be in the future", code="out_of_range", field="expires_at"
        )


async def revoke_key(
    database: Database, prefix: str, tenant: str | None, keep_descendants: bool
) -> None:
    """Revoke a key and what it created; NotFound if the tenant has no such key."""
    found = await access.list_keys(database, tenant, prefix=prefix.removeprefix("pbx_"))
    if not found:
        raise NotFound("there is no key with this prefix")
    await access.revoke_key(database, found[0].id, tenant, keep_descendants=keep_descendants)


async def revoke_login(database: Database, username: str, tenant: str | None) -> None:
    """Revoke a login; NotFound if the tenant has no such login."""
    found = await access.list_logins(database, tenant, username=username)
    if not found:
        raise NotFound("there is no login with this user name")
    await access.revoke_login(database, found[0].id, tenant)


def narrowed(principal: Principal, new: New, scopes: Collection[Scope]) -> New:
    """A new key or login within the scopes, domains and lifetime of the principal that creates it.

    The principal's domains and expiry are the defaults; NotAllowed for wider ones.
    """
    wider = sorted(set(scopes) - principal.scopes)
    if wider and not covers(principal.scopes, scopes):
        raise NotAllowed("wider", "scopes", f"the {principal.kind} in use lacks {', '.join(wider)}")
    with setting_problems():
        domains = {
            field: _within(
                field, getattr(principal, field), checked_domains(field, getattr(new, field))
            )
            for field in ("sender_domains", "recipient_domains")
        }
    end = earlier(new.expires_at, principal.expires_at)
    if new.expires_at is not None and end != new.expires_at:
        assert principal.expires_at is not None
        until = principal.expires_at.isoformat(timespec="seconds")
        raise NotAllowed("wider", "expires_at", f"the {principal.kind} in use expires at {until}")
    return new.model_copy(update={**domains, "expires_at": end})


def _within(field: str, own: Sequence[str], domains: Sequence[str]) -> Sequence[str]:
    if domains and not within(domains, own):
        raise NotAllowed(
            "wider", field, "the key in use is not allowed to use all of these domains"
        )
    return domains or own
