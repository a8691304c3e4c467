"""Explains to people which provider a mail takes: loads from the store what explaining needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from pillarbox.errors import InvalidMail, UnknownName
from pillarbox.model.access import Tenant, domain_of, domain_pattern
from pillarbox.model.provider_kinds import kind_of
from pillarbox.model.routing import MailFacts
from pillarbox.route.circuit_breaker import CircuitState
from pillarbox.route.explain import Explanation, ProviderStatus, explain
from pillarbox.route.quota import QuotaUsage, RateUsage, exhausted_limits
from pillarbox.route.router import Router, chance_of
from pillarbox.store import catalog, health, messages, providers, routes, tenants
from pillarbox.store.health import HealthRow, ProviderUse

if TYPE_CHECKING:
    from pillarbox.store.database import Database

# The size of an empty mail.
EMPTY = 1024


@dataclass(frozen=True, slots=True)
class RoutingSnapshot:
    """The rules, and the providers with their health and usage, at one moment."""

    router: Router
    health: Mapping[int, HealthRow]
    usage: Mapping[int, ProviderUse]
    now: datetime

    def explain(
        self,
        facts: MailFacts,
        *,
        chance: float = 0.0,
        raw: bool = False,
        via: int | None = None,
        recipients: Sequence[int] = (),
    ) -> Explanation:
        statuses = {
            provider_id: self._status(provider_id, facts.lane) for provider_id in self.usage
        }
        return explain(
            self.router,
            facts,
            statuses,
            self.now,
            chance=chance,
            raw=raw,
            via=via,
            recipients=recipients,
        )

    def _status(self, provider_id: int, lane: str) -> ProviderStatus:
        provider = self.usage[provider_id]
        health = self.health.get(provider_id, HealthRow())
        limits = kind_of(provider.kind).limits
        rates = [
            RateUsage(rate.limit, rate.seconds, rate.used_until, rate.period == "day")
            for rate in provider.rates
        ]
        usage = QuotaUsage(
            rates,
            provider.spent,
            provider.price,
            provider.budget_per_month,
            provider.reserve_urgent,
            provider.reserve_normal,
        )
        return ProviderStatus(
            provider.id,
            provider.name,
            provider.kind,
            provider.enabled,
            provider.removed,
            limits.max_bytes,
            limits.takes_parts,
            CircuitState(health.state),
            health.reason,
            health.retry_at,
            health.held_until,
            exhausted_limits(usage, lane, self.now),
        )


async def load_routing_snapshot(
    database: Database, *, development: bool = False
) -> RoutingSnapshot:
    """Load what decides about routes, for processes in `development` or not."""
    usage = await health.list_usage(database)
    captures = await providers.captures_by_default(database, development=development)
    known = await providers.list_providers(database)
    router = Router(await routes.list_rules(database), known, captures=captures)
    long_ago = datetime.fromtimestamp(0).astimezone()
    now = max((provider.at for provider in usage.values()), default=long_ago)
    return RoutingSnapshot(router, await health.list_health(database), usage, now)


async def explain_message(
    database: Database, message_id: UUID, tenant_id: int | None = None, *, development: bool = False
) -> list[Explanation]:
    """Explain how a message would leave now: once for recipients with the same route.

    With a tenant, only its own messages are found; NotFound otherwise.
    """
    envelope = await messages.message_record(database, message_id, tenant_id)
    deliveries = await messages.deliveries_of(database, message_id, tenant_id)
    chosen = await routes.chosen_providers(database, message_id)
    snapshot = await load_routing_snapshot(database, development=development)
    tenant = await tenants.get_tenant(database, envelope.tenant)
    groups: dict[tuple[str, int | None], list[int]] = {}
    for delivery in deliveries:
        route = domain_of(delivery.recipient), chosen.get(delivery.n)
        groups.setdefault(route, []).append(delivery.n)
    explanations = []
    for (domain, via), recipient_numbers in groups.items():
        facts = MailFacts(
            tenant.id,
            domain_of(envelope.sender),
            domain,
            envelope.priority,
            envelope.class_name,
            envelope.kind,
            envelope.tags,
            envelope.size,
        )
        explanation = snapshot.explain(
            facts,
            chance=chance_of(message_id),
            raw="raw" in (envelope.content or ()),
            via=via,
            recipients=recipient_numbers,
        )
        explanations.append(explanation)
    return explanations


async def check_class(database: Database, name: str | None) -> None:
    """Raise UnknownName if the class does not exist."""
    if name is None:
        return
    classes = await catalog.list_classes(database)
    if name not in {known.name for known in classes}:
        raise UnknownName(
            "unknown_class",
            "class",
            f"there is no class {name[:100]!r}",
            "see: pillarbox class list",
        )


def facts_of(
    tenant: Tenant,
    sender: str | None,
    recipient: str,
    *,
    lane: str = "normal",
    class_name: str | None = None,
    kind: str | None = None,
    tags: Sequence[str] = (),
    size: int = EMPTY,
) -> MailFacts:
    """The facts of a described mail, with the tenant's defaults. Addresses may be bare domains."""
    sender = sender or tenant.default_sender
    return MailFacts(
        tenant.id,
        _checked_domain("from", sender) if sender else "",
        _checked_domain("to", recipient),
        lane,
        class_name or tenant.default_class,
        kind,
        tags,
        size,
    )


def _checked_domain(field: str, address: str) -> str:
    domain = domain_of(address)
    try:
        if domain_pattern(domain).startswith("*"):
            raise ValueError
    except ValueError:
        raise InvalidMail(
            "bad_address", field, "not an address or a domain", "write name@domain, or domain"
        ) from None
    return domain
