"""Chooses the providers for a delivery, in order: the first rule that matches decides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from pillarbox.model.provider import Provider
from pillarbox.model.provider_kinds import kind_of
from pillarbox.model.routing import MailFacts, RoutingRule


class RouteChoice(NamedTuple):
    """The rule that matches (None: the default order), and its providers in order."""

    rule: RoutingRule | None
    providers: Sequence[int]


class Router:
    """Chooses by the rules and providers of an installation."""

    def __init__(
        self, rules: Iterable[RoutingRule], providers: Iterable[Provider], *, captures: bool = False
    ) -> None:
        """`captures`: mails may be captured by default; see `captures_by_default` in the store."""
        enabled = [rule for rule in rules if rule.enabled]
        enabled.sort(key=lambda rule: (rule.position, rule.id))
        self._general = [rule for rule in enabled if rule.tenant_id is None]
        own: defaultdict[int, list[RoutingRule]] = defaultdict(list)
        for rule in enabled:
            if rule.tenant_id is not None:
                own[rule.tenant_id].append(rule)
        self._by_tenant = {
            tenant_id: tenant_rules + self._general for tenant_id, tenant_rules in own.items()
        }
        self.default = RouteChoice(None, _default_order(providers, captures))

    def rules_for(self, tenant_id: int) -> Sequence[RoutingRule]:
        """The rules for a tenant in order: its own, then those for all tenants."""
        return self._by_tenant.get(tenant_id, self._general)

    def choose(self, facts: MailFacts, chance: float) -> RouteChoice:
        """The providers for a delivery; `chance`, in [0, 1), draws one by weight."""
        for rule in self.rules_for(facts.tenant_id):
            if rule.match.misses(facts) is None:
                return RouteChoice(rule, _draw(rule, chance))
        return self.default

    @property
    def simple(self) -> RouteChoice | None:
        """The choice for every mail, if there are no rules at all."""
        if self._general or self._by_tenant:
            return None
        return self.default


def chance_of(message_id: UUID) -> float:
    """A number in [0, 1) from the id: all attempts and recipients of a message draw the same."""
    return (message_id.int & 0xFFFFFF) / 0x1000000


def _default_order(providers: Iterable[Provider], captures: bool) -> list[int]:
    """By rank of the kind, then by age. Captured mails never arrive: nothing fails over to that."""
    usable = [
        provider
        for provider in providers
        if not provider.release_only and (captures or kind_of(provider.kind).sends_out)
    ]
    usable.sort(key=lambda provider: (kind_of(provider.kind).rank, provider.id))
    return [provider.id for provider in usable]


def _draw(rule: RoutingRule, chance: float) -> Sequence[int]:
    """The providers in order; with weights, a drawn one first, then the others, heaviest first."""
    if rule.weights is None:
        return rule.providers
    weighted = sorted(zip(rule.weights, rule.providers, strict=True), key=_heaviest_first)
    providers = [provider_id for _, provider_id in weighted]
    rest = chance * sum(rule.weights)
    for weight, drawn in weighted:
        rest -= weight
        if rest < 0:
            providers.remove(drawn)
            return [drawn, *providers]
    return providers


def _heaviest_first(weighted: tuple[int, int]) -> int:
    weight, _ = weighted
    return -weight
