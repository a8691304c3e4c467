"""Checks of tenants, keys and logins when they are created or changed. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from pillarbox.errors import InvalidMail
from pillarbox.model.access import Order, Scope, Tenant, domain_of, domain_pattern, matches
from pillarbox.model.address import split_mailbox

# Every mail is compared with all of them.
MAX_DOMAINS = 100
# An empty mail counts as 1,024 bytes: with a lower limit hardly any mail would pass.
MIN_MESSAGE_BYTES = 2048
# The largest integer of the database.
MAX_INTEGER = 2**31 - 1
SHORTEST_RETENTION = timedelta(seconds=1)
LONGEST_RETENTION = timedelta(days=36500)  # beyond a century clocks and intervals overflow

_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}").fullmatch


def checked_name(name: str) -> str:
    """The name of a tenant, key or login; InvalidMail if it is not valid."""
    if not _name(name):
        _refuse(
            "bad_name", "name", "a name is 1 to 63 letters, digits, dots, dashes and underscores"
        )
    return name


def checked_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a tenant as they are stored; InvalidMail names an invalid one."""
    return {field: _CHECKS[field](field, value) for field, value in given.items()}


def check_together(tenant: Tenant) -> None:
    """Raise InvalidMail if valid fields contradict each other."""
    sender, domains = tenant.default_sender, tenant.sender_domains
    if sender and domains and not matches(domain_of(sender), domains):
        _refuse(
            "sender_domain",
            "default_sender",
            "is not in one of the sender domains",
            "change one of them",
        )


def checked_domains(field: str, given: Sequence[str]) -> tuple[str, ...]:
    """Domain patterns, normalised for comparison, without duplicates."""
    if len(given) > MAX_DOMAINS:
        _refuse("too_many", field, f"at most {MAX_DOMAINS} domains")
    try:
        return tuple(dict.fromkeys(map(domain_pattern, given)))
    except ValueError as error:
        _refuse(
            "bad_domain",
            field,
            str(error),
            "write example.com, or *.example.com for its subdomains",
        )
        raise


def checked_scopes(scopes: Collection[Scope], *, admin: bool) -> tuple[Scope, ...]:
    """The scopes of a key in the usual order; without a tenant (`admin`) only admin or metrics."""
    kept = tuple(scope for scope in Scope if scope in scopes)
    if admin and kept not in ((Scope.ADMIN,), (Scope.METRICS,)):
        _refuse(
            "bad_scope",
            "scope",
            "a key of no tenant has the scope admin alone, or the scope metrics alone",
        )
    if not admin and (not kept or {Scope.ADMIN, Scope.METRICS} & set(kept)):
        _refuse("bad_scope", "scope", "a tenant's key has one or more of send, read and manage")
    return kept


def _sender(field: str, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        split_mailbox(value)
    except ValueError:
        _refuse("bad_address", field, "not a legal e-mail address", "write name@domain")
    return value


def _order(field: str, value: str) -> Order:
    if value not in set(Order):
        _refuse("unknown_order", field, f"must be one of {', '.join(Order)}")
    return Order(value)


def _number(low: int) -> Callable[[str, int | None], int | None]:
    def check(field: str, value: int | None) -> int | None:
        if value is not None and not low <= value <= MAX_INTEGER:
            _refuse(
                "out_of_range",
                field,
                f"must be {low} to {MAX_INTEGER}",
                "leave it out for no limit",
            )
        return value

    return check


def _age(field: str, value: timedelta | None) -> timedelta | None:
    if value is not None and not SHORTEST_RETENTION <= value <= LONGEST_RETENTION:
        _refuse(
            "out_of_range",
            field,
            "must be a second to a century",
            "leave it out for the installation's",
        )
    return value


def _refuse(code: str, field: str, message: str, hint: str | None = None) -> None:
    raise InvalidMail(code, field, message, hint)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "default_sender": _sender,
    "default_class": lambda _, value: value,
    "order": _order,
    "max_message_bytes": _number(MIN_MESSAGE_BYTES),
    "max_recipients": _number(1),
    "sender_domains": checked_domains,
    "rate_per_second": _number(1),
    "rate_per_hour": _number(1),
    "rate_per_day": _number(1),
    "content_retention": _age,
    "finished_retention": _age,
}
SETTINGS = tuple(_CHECKS)
