"""Access control: tenants and their limits, scopes, and principals. Pure.

The SQL function `pillarbox._check_tenant` makes a tenant's checks in the same order with the same
texts; tests/integration/accept/test_check_tenant.py compares the two.
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

# RFC 1035 2.3.4, without the byte of the root.
MAX_DOMAIN_BYTES = 253
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_is_pattern = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*{_LABEL}").fullmatch


class Scope(StrEnum):
    SEND = "send"  # submit mails
    READ = "read"  # read the tenant's messages
    MANAGE = "manage"  # cancel, reschedule, resend; the tenant's own keys and logins
    ADMIN = "admin"  # the installation: tenants, all keys
    METRICS = "metrics"  # read the metrics of the installation


class Order(StrEnum):
    """The order in which mails of one tenant and lane are sent."""

    FIFO = "fifo"  # first attempts start in order of acceptance
    STRICT = "strict"  # one at a time: nothing overtakes until it is settled or held
    PARALLEL = "parallel"  # no order


@dataclass(frozen=True, slots=True)
class Tenant:
    """A customer of this installation. None: the installation's value, or no limit."""

    id: int
    name: str
    created_at: datetime
    default_sender: str | None = None  # of mails without a sender
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
    """An authenticated client: an API key, an SMTP login, or a local client in development."""

    kind: str  # key, login or development
    name: str
    tenant: Tenant | None  # None: a key of the installation, for administrators or for metrics
    scopes: frozenset[Scope]
    sender_domains: tuple[str, ...] = ()  # a further restriction of the key or login; empty: any
    recipient_domains: tuple[str, ...] = ()
    id: int | None = None  # of the key or login; None in development
    # The earliest expiry of the key or login and of its ancestors; None: never.
    expires_at: datetime | None = None


def require(principal: Principal, scope: Scope) -> Tenant:
    """The principal's tenant; NotAllowed without the scope, or without a tenant."""
    _check_scope(principal, scope)
    return _tenant_of(principal)


def require_admin(principal: Principal) -> None:
    """Raise NotAllowed unless the principal may administer the installation."""
    _check_scope(principal, Scope.ADMIN)


def require_metrics(principal: Principal) -> None:
    """Raise NotAllowed unless the principal may read metrics; administrators may."""
    if Scope.ADMIN not in principal.scopes:
        _check_scope(principal, Scope.METRICS)


def _check_scope(principal: Principal, scope: Scope) -> None:
    if scope in principal.scopes:
        return
    hint = f"use one that was made with --scope {scope}"
    if scope is Scope.ADMIN:
        hint = "use a key that was made with --admin"
    raise NotAllowed("scope", principal.kind, f"it lacks the scope {scope}", hint)


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
            f"a mail of this tenant must be at most {tenant.max_message_bytes} bytes",
            "send a link instead",
        )
    if principal.recipient_domains:
        _check_recipients(principal, recipients)


def check_sender(principal: Principal, sender: str | None, field: str = "sender") -> None:
    """Raise NotAllowed if the tenant or the key may not use this sender, or the default one."""
    tenant = _tenant_of(principal)
    mailbox = sender or tenant.default_sender
    if mailbox is None:
        raise InvalidMail("bad_address", field, "an address is missing", "write name@domain")
    # A display name must not show an address in another domain, either.
    domains = {domain_of(mailbox), *map(_normalised, shown_domains(mailbox))}
    restrictions = (("tenant", tenant.sender_domains), (principal.kind, principal.sender_domains))
    for name, allowed in restrictions:
        if allowed and not all(matches(domain, allowed) for domain in domains):
            problem = f"the {name} may not send from this domain"
            raise NotAllowed("sender_domain", field, problem, "send from one of its domains")


def _check_recipients(principal: Principal, recipients: Sequence[str]) -> None:
    allowed = principal.recipient_domains
    if not all(matches(domain_of(mailbox), allowed) for mailbox in recipients):
        raise NotAllowed(
            "recipient_domain",
            "to",
            f"the {principal.kind} may not send to one of these domains",
            "send to its recipient domains only",
        )


def domain_pattern(given: str) -> str:
    """`example.com` or `*.example.com` in lower case and A-labels; ValueError for anything else."""
    domain = given.removeprefix("*.")
    pattern = given[: -len(domain)] + _normalised(domain) if domain else given
    if not _is_pattern(pattern) or len(pattern) > MAX_DOMAIN_BYTES:
        raise ValueError(f"not a domain: {given!r}")
    return pattern


def matches(domain: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern is the domain (`example.com`) or covers it (`*.example.com`)."""
    return any(
        domain == pattern or (pattern.startswith("*.") and domain.endswith(pattern[1:]))
        for pattern in patterns
    )


def domain_of(mailbox: str) -> str:
    """The domain of `a@b` or `Name <a@b>`, normalised for comparison."""
    return _normalised(mailbox.rstrip(">").rpartition("@")[2])


@lru_cache(maxsize=1024)  # few domains send and receive most mails, and IDNA is slow
def _normalised(domain: str) -> str:
    if domain.isascii():
        return domain.lower()
    # Label by label: a label without an A-label (with an underscore) does not affect the others.
    return ".".join(map(ascii_domain, domain.split("."))).lower()
