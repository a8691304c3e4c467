"""Which providers a delivery may leave through, in order: the first rule that fits decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pillarbox.model.provider import Provider
from pillarbox.model.routing import DEFAULT_ORDER, Facts, Rule


class Chosen(NamedTuple):
    """The rule that fits (None: the default order), and the providers in the order in which to try them."""

    rule: Rule | None
    providers: Sequence[int]


class Router:
    """The rules and providers of an installation, ready to be asked."""

    def __init__(self, rules: Iterable[Rule], providers: Iterable[Provider]) -> None:
        enabled = [rule for rule in rules if rule.enabled]
        own_first = sorted(enabled, key=lambda rule: (rule.tenant_id is None, rule.place, rule.id))
        self._general = [rule for rule in own_first if rule.tenant_id is None]
        tenants = {rule.tenant_id for rule in enabled if rule.tenant_id is not None}
        self._by_tenant = {
            tenant: [rule for rule in own_first if rule.tenant_id in (tenant, None)] for tenant in tenants
        }
        self._default = Chosen(None, [one.id for one in sorted(providers, key=_preference)])

    def rules_for(self, tenant_id: int) -> Sequence[Rule]:
        """The rules that hold for a tenant, in the order in which they are tried."""
        return self._by_tenant.get(tenant_id, self._general)

    def choose(self, facts: Facts, chance: float) -> Chosen:
        """The providers for a delivery; `chance`, in [0, 1), draws among weighted ones."""
        for rule in self.rules_for(facts.tenant_id):
            if rule.match.misses(facts) is None:
                return Chosen(rule, _drawn(rule, chance))
        return self._default

    @property
    def simple(self) -> Chosen | None:
        """The choice for every mail, when there are no rules at all."""
        return None if self._general or self._by_tenant else self._default


def _preference(provider: Provider) -> tuple[int, int]:
    kinds = DEFAULT_ORDER
    return kinds.index(provider.kind) if provider.kind in kinds else len(kinds), provider.id


def _drawn(rule: Rule, chance: float) -> Sequence[int]:
    """Providers in order; with weights, one drawn by them first, then the others from heavy to light."""
    if rule.weights is None:
        return rule.providers
    ranked = sorted(zip(rule.weights, rule.providers, strict=True), key=lambda one: -one[0])
    mark = chance * sum(rule.weights)
    for weight, first in ranked:
        mark -= weight
        if mark < 0:
            return [first, *(provider for weight, provider in ranked if provider != first and weight > 0)]
    return [provider for weight, provider in ranked if weight > 0] or rule.providers
