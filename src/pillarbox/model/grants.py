"""What a key may hand on: a key or login made by a key never outlives or exceeds it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pillarbox.model.access import Scope, matches

# A domain that no address has: what is left where two restrictions have no domain in common.
NO_DOMAIN = "nowhere.invalid"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a key or login may do, and until when. No domains: any. No expiry: for good."""

    scopes: frozenset[Scope]
    sender_domains: tuple[str, ...] = ()
    recipient_domains: tuple[str, ...] = ()
    expires_at: datetime | None = None


def narrowed(own: Grant, parent: Grant) -> Grant:
    """What is left of a grant whose parent may do no more than that."""
    return replace(
        own,
        scopes=frozenset(scope for scope in own.scopes if covers(parent.scopes, [scope])),
        sender_domains=common_domains(own.sender_domains, parent.sender_domains),
        recipient_domains=common_domains(own.recipient_domains, parent.recipient_domains),
        expires_at=earlier(own.expires_at, parent.expires_at),
    )


def excess(own: Grant, parent: Grant) -> list[str]:
    """The fields in which a grant exceeds its parent's."""
    found = []
    if not covers(parent.scopes, own.scopes):
        found.append("scopes")
    if not within(own.sender_domains, parent.sender_domains):
        found.append("sender_domains")
    if not within(own.recipient_domains, parent.recipient_domains):
        found.append("recipient_domains")
    if earlier(own.expires_at, parent.expires_at) != own.expires_at:
        found.append("expires_at")
    return found


def covers(parent: Collection[Scope], scopes: Collection[Scope]) -> bool:
    """Whether a key with these scopes may hand the others on; an administrator's may hand on any."""
    return Scope.ADMIN in parent or set(scopes) <= set(parent)


def within(domains: Sequence[str], parent: Sequence[str]) -> bool:
    """Whether domains (none: any) lie within those of the parent."""
    return not parent or (
        bool(domains) and all(one in parent or matches(one, parent) for one in domains)
    )


def common_domains(own: tuple[str, ...], parent: tuple[str, ...]) -> tuple[str, ...]:
    """The domains that both allow."""
    if not own or not parent:
        return own or parent
    kept = [one for one in own if one in parent or matches(one, parent)]
    kept += [
        one for one in parent if matches(one, own) and one not in kept and not matches(one, kept)
    ]
    return tuple(kept) or (NO_DOMAIN,)


def earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    """The earlier of two ends; None never ends."""
    if one is None or other is None:
        return one or other
    return min(one, other)
