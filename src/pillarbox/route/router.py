"""Which providers a delivery may leave through, in order: the first rule that fits decides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from pillarbox.model.provider import Provider
from pillarbox.model.provider_kinds import kind_of
from pillarbox.model.routing import MailFacts, RoutingRule


class RouteChoice(NamedTuple):
    """The rule that fits (None: the default order), and the providers in the order in which to try them."""

    rule: RoutingRule | None
    providers: Sequence[int]


class Router:
    """The rules and providers of an installation, ready to be asked."""

    def __init__(
        self, rules: Iterable[RoutingRule], providers: Iterable[Provider], *, captures: bool = False
    ) -> None:
        """`captures`: the default order may capture mails; see `store.providers.captures_by_default`."""
        ordered = sorted(
            (rule for rule in rules if rule.enabled), key=lambda rule: (rule.place, rule.id)
        )
        self._general = [rule for rule in ordered if rule.tenant_id is None]
        own: defaultdict[int, list[RoutingRule]] = defaultdict(list)
        for rule in ordered:
            if rule.tenant_id is not None:
                own[rule.tenant_id].append(rule)
        self._by_tenant = {tenant: [*some, *self._general] for tenant, some in own.items()}
        self.default = RouteChoice(None, _default_order(providers, captures))

    def rules_for(self, tenant_id: int) -> Sequence[RoutingRule]:
        """The rules that hold for a tenant, in the order in which they are tried."""
        return self._by_tenant.get(tenant_id, self._general)

    def choose(self, facts: MailFacts, chance: float) -> RouteChoice:
        """The providers for a delivery; `chance`, in [0, 1), draws among weighted ones."""
        for rule in self.rules_for(facts.tenant_id):
            if rule.match.misses(facts) is None:
                return RouteChoice(rule, _drawn(rule, chance))
        return self.default

    @property
    def simple(self) -> RouteChoice | None:
        """The choice for every mail, when there are no rules at all."""
        return None if self._general or self._by_tenant else self.default


def chance_of(message_id: UUID) -> float:
    """The chance with which a message draws: of its own bits, so that all its attempts and recipients go one way."""
    return (message_id.int & 0xFFFFFF) / 0x1000000


def _default_order(providers: Iterable[Provider], captures: bool) -> list[int]:
    """By kind, then by age. A mail that is captured counts as sent and never arrives: nothing fails over to it."""
    usable = [
        provider
        for provider in providers
        if not provider.release_only and (captures or kind_of(provider.kind).sends_out)
    ]
    usable.sort(key=lambda provider: (kind_of(provider.kind).rank, provider.id))
    return [provider.id for provider in usable]


def _drawn(rule: RoutingRule, chance: float) -> Sequence[int]:
    """Providers in order; with weights, one drawn by them first, then the others from heavy to light."""
    if rule.weights is None:
        return rule.providers
    ranked = sorted(zip(rule.weights, rule.providers, strict=True), key=lambda one: -one[0])
    mark = chance * sum(rule.weights)
    for weight, first in ranked:
        mark -= weight
        if mark < 0:
            return [first, *(provider for _, provider in ranked if provider != first)]
    return [provider for _, provider in ranked]
