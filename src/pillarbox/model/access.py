"""Who may do what: tenants and their limits, scopes, and the principals that ask. Pure.

`pillarbox._check_tenant` in store/migrations/0005_access.sql makes a tenant's checks in the same order with the same
words; tests/integration/accept/test_check_tenant.py holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache

from pillarbox.errors import InvalidMail, NotAllowed
from pillarbox.model.address import ascii_domain
from pillarbox.model.shown_domains import shown_domains

# RFC 1035 2.3.4, less the root's own octet.
MAX_DOMAIN_BYTES = 253
_pattern = re.compile(
    r"(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
)


class Scope(StrEnum):
    SEND = "send"  # hand mails over
    READ = "read"  # see the tenant's messages
    MANAGE = "manage"  # cancel, reschedule, resend; the tenant's own keys and logins
    ADMIN = "admin"  # the installation: tenants, all keys
    METRICS = "metrics"  # read the metrics of the installation


class Order(StrEnum):
    """How the mails of one tenant and lane follow each other."""

    FIFO = "fifo"  # first attempts start in order of acceptance
    STRICT = "strict"  # one at a time: nothing overtakes until it is settled or held
    PARALLEL = "parallel"  # no order


@dataclass(frozen=True, slots=True)
class Tenant:
    """A customer of this installation. None means: the installation's, or no limit."""

    id: int
    name: str
    created_at: datetime
    default_sender: str | None = None  # of mails that name none
    default_class: str = "transactional"
    order: Order = Order.FIFO
    max_message_bytes: int | None = None
    max_recipients: int | None = None
    sender_domains: tuple[str, ...] = ()  # empty: any
    rate_per_second: int | None = None  # how fast mails leave; more are accepted, and wait
    rate_per_hour: int | None = None
    rate_per_day: int | None = None
    content_retention: timedelta | None = None
    finished_retention: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: an API key, an SMTP login, or the keyless door of development."""

    kind: str  # key, login or development
    name: str
    tenant: (
        Tenant | None
    )  # None: a key of the whole installation, for administrators or for metrics
    scopes: frozenset[Scope]
    sender_domains: tuple[str, ...] = ()  # a further restriction by the key or login; empty: any
    recipient_domains: tuple[str, ...] = ()
    id: int | None = None  # the key's or login's own; None in development
    expires_at: datetime | None = (
        None  # the end of the key or login, or of one above it; None: it does not end
    )


def require(principal: Principal, scope: Scope) -> Tenant:
    """The tenant for which this may be done; NotAllowed when the scope is missing, or belongs to no tenant."""
    _check_scope(principal, scope)
    return _tenant_of(principal)


def require_admin(principal: Principal) -> None:
    """Raise NotAllowed unless the principal may change the installation."""
    _check_scope(principal, Scope.ADMIN)


def require_metrics(principal: Principal) -> None:
    """Raise NotAllowed unless the principal may read the installation's metrics, as administrators may."""
    if Scope.ADMIN not in principal.scopes:
        _check_scope(principal, Scope.METRICS)


def _check_scope(principal: Principal, scope: Scope) -> None:
    if scope not in principal.scopes:
        raise NotAllowed(
            "scope", principal.kind, f"it lacks the scope {scope}", f"use one that was made with --scope {scope}"
            if scope is not Scope.ADMIN else "use a key that was made with --admin",
        )  # fmt: skip


def _tenant_of(principal: Principal) -> Tenant:
    if principal.tenant is None:
        raise NotAllowed(
            "no_tenant", principal.kind, "this key belongs to no tenant", "use a key of the tenant"
        )
    return principal.tenant


def check_allowed(
    principal: Principal, sender: str | None, recipients: Sequence[str], size: int
) -> None:
    """Raise NotAllowed or InvalidMail if the tenant's or the key's limits forbid this mail."""
    tenant = _tenant_of(principal)
    if tenant.sender_domains or principal.sender_domains:
        check_sender(principal, sender)
    if tenant.max_recipients is not None and len(recipients) > tenant.max_recipients:
        raise InvalidMail(
            "recipient_count",
            "to",
            f"a mail of this tenant has at most {tenant.max_recipients} recipients",
            "send several mails",
        )
    if tenant.max_message_bytes is not None and size > tenant.max_message_bytes:
        raise InvalidMail(
            "too_large",
            "message",
            f"a mail of this tenant may have {tenant.max_message_bytes} octets",
            "send a link instead",
        )
    if principal.recipient_domains:
        _check_recipients(principal, recipients)


def check_sender(principal: Principal, sender: str | None, field: str = "sender") -> None:
    """Raise NotAllowed if the tenant or the key may not send from there; without a sender, the tenant's default."""
    tenant = _tenant_of(principal)
    mailbox = sender or tenant.default_sender
    if mailbox is None:
        raise InvalidMail("bad_address", field, "an address is missing", "write name@domain")
    # A display name must not show readers an address in another domain, either.
    domains = {domain_of(mailbox), *map(_compared, shown_domains(mailbox))}
    if tenant.sender_domains and not all(
        matches(domain, tenant.sender_domains) for domain in domains
    ):
        raise NotAllowed(
            "sender_domain",
            field,
            "the tenant may not send from this domain",
            "send from one of its domains",
        )
    if principal.sender_domains and not all(
        matches(domain, principal.sender_domains) for domain in domains
    ):
        raise NotAllowed(
            "sender_domain",
            field,
            f"the {principal.kind} may not send from this domain",
            "send from one of its domains",
        )


def _check_recipients(principal: Principal, recipients: Sequence[str]) -> None:
    if not all(matches(domain_of(one), principal.recipient_domains) for one in recipients):
        raise NotAllowed(
            "recipient_domain",
            "to",
            f"the {principal.kind} may not send to one of these domains",
            "send to its recipient domains only",
        )


def domain_pattern(given: str) -> str:
    """`example.com` or `*.example.com` as it is compared: lower case, in A-labels; ValueError if it is neither."""
    star, rest = ("*.", given[2:]) if given.startswith("*.") else ("", given)
    pattern = star + _compared(rest)
    if not _pattern.fullmatch(pattern) or len(pattern) > MAX_DOMAIN_BYTES:
        raise ValueError(f"not a domain: {given!r}")
    return pattern


def matches(domain: str, patterns: Iterable[str]) -> bool:
    """Whether the domain is one of the patterns' (`example.com`), or a subdomain of one (`*.example.com`)."""
    return any(
        domain == one or (one.startswith("*.") and domain.endswith(one[1:])) for one in patterns
    )


def domain_of(mailbox: str) -> str:
    """The domain of `a@b` or `Name <a@b>` as it is compared."""
    return _compared(mailbox.rstrip(">").rpartition("@")[2])


@lru_cache(maxsize=1024)  # few domains send and receive most mails, and IDNA is slow
def _compared(domain: str) -> str:
    if domain.isascii():
        return domain.lower()
    # Label by label: one that has no such form (with an underscore, say) does not hide the others.
    return ".".join(map(ascii_domain, domain.split("."))).lower()
