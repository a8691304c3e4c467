"""Delegation: a key or login created by a key never outlives or exceeds that key. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pillarbox.model.access import Scope, matches

# A domain that no address has: the result where two restrictions have no domain in common.
NO_DOMAIN = "nowhere.invalid"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a key or login may do, and until when. No domains: any. No expiry: never expires."""

    scopes: frozenset[Scope]
    sender_domains: tuple[str, ...] = ()
    recipient_domains: tuple[str, ...] = ()
    expires_at: datetime | None = None


def narrowed(own: Grant, parent: Grant) -> Grant:
    """The grant, reduced to what its parent permits."""
    return replace(
        own,
        scopes=frozenset(scope for scope in own.scopes if covers(parent.scopes, [scope])),
        sender_domains=common_domains(own.sender_domains, parent.sender_domains),
        recipient_domains=common_domains(own.recipient_domains, parent.recipient_domains),
        expires_at=earlier(own.expires_at, parent.expires_at),
    )


def excess(own: Grant, parent: Grant) -> list[str]:
    """The fields in which a grant exceeds its parent's."""
    fields = []
    if not covers(parent.scopes, own.scopes):
        fields.append("scopes")
    if not within(own.sender_domains, parent.sender_domains):
        fields.append("sender_domains")
    if not within(own.recipient_domains, parent.recipient_domains):
        fields.append("recipient_domains")
    if earlier(own.expires_at, parent.expires_at) != own.expires_at:
        fields.append("expires_at")
    return fields


def covers(parent: Collection[Scope], scopes: Collection[Scope]) -> bool:
    """Whether a key with the parent's scopes may grant these; an administrator may grant any."""
    return Scope.ADMIN in parent or set(scopes) <= set(parent)


def within(domains: Sequence[str], parent: Sequence[str]) -> bool:
    """Whether domains (none: any) are covered by the parent's."""
    if not parent:
        return True
    return bool(domains) and all(domain in parent or matches(domain, parent) for domain in domains)


def common_domains(own: tuple[str, ...], parent: tuple[str, ...]) -> tuple[str, ...]:
    """The domains that both allow."""
    if not own or not parent:
        return own or parent
    common = [domain for domain in own if domain in parent or matches(domain, parent)]
    for domain in parent:
        if matches(domain, own) and domain not in common and not matches(domain, common):
            common.append(domain)
    return tuple(common) or (NO_DOMAIN,)


def earlier(first: datetime | None, second: datetime | None) -> datetime | None:
    """The earlier of two expiries; None never expires."""
    if first is None or second is None:
        return first or second
    return min(first, second)
