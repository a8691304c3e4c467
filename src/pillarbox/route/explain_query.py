"""Why mails leave through which provider, asked by people: what explaining needs is looked up in the store."""

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
from pillarbox.route.quota import Rate, Usage, used_up
from pillarbox.route.router import Router, chance_of
from pillarbox.store import catalog, health, messages, providers, routes, tenants
from pillarbox.store.health import HealthRow, ProviderUse

if TYPE_CHECKING:
    from pillarbox.store.database import Database

# What an empty mail counts.
EMPTY = 1024


@dataclass(frozen=True, slots=True)
class RoutingSnapshot:
    """The rules, the providers and how they stand, all of one moment."""

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
        standings = {one: self._standing(one, facts.lane) for one in self.usage}
        return explain(
            self.router,
            facts,
            standings,
            self.now,
            chance=chance,
            raw=raw,
            via=via,
            recipients=recipients,
        )

    def _standing(self, provider: int, lane: str) -> ProviderStatus:
        use, well = self.usage[provider], self.health.get(provider, HealthRow())
        limits = kind_of(use.kind).limits
        usage = Usage(
            [Rate(one.most, one.seconds, one.used_until, one.period == "day") for one in use.rates],
            use.spent, use.price, use.budget_per_month, use.reserve_urgent, use.reserve_normal,
        )  # fmt: skip
        return ProviderStatus(
            use.id,
            use.name,
            use.kind,
            use.enabled,
            use.removed,
            limits.max_bytes,
            limits.takes_parts,
            CircuitState(well.state),
            well.reason,
            well.retry_at,
            well.held_until,
            used_up(usage, lane, self.now),
        )


async def load_routing_snapshot(
    database: Database, *, development: bool = False
) -> RoutingSnapshot:
    """Everything that decides about routes, as processes see it that are in `development` or not."""
    usage = await health.list_usage(database)
    captures = await providers.captures_by_default(database, development=development)
    known = await providers.list_providers(database)
    router = Router(await routes.list_rules(database), known, captures=captures)
    now = max((one.at for one in usage.values()), default=datetime.fromtimestamp(0).astimezone())
    return RoutingSnapshot(router, await health.list_health(database), usage, now)


async def explain_message(
    database: Database, message_id: UUID, tenant_id: int | None = None, *, development: bool = False
) -> list[Explanation]:
    """Why a message would leave as it would now: once for recipients whose route is the same.

    With a tenant, only if the message is its own; NotFound otherwise.
    """
    envelope = await messages.message_record(database, message_id, tenant_id)
    deliveries = await messages.deliveries_of(database, message_id, tenant_id)
    chosen = await routes.chosen_providers(database, message_id)
    world = await load_routing_snapshot(database, development=development)
    tenant = await tenants.get_tenant(database, envelope.tenant)
    alike: dict[tuple[str, int | None], list[int]] = {}
    for one in deliveries:
        alike.setdefault((domain_of(one.recipient), chosen.get(one.n)), []).append(one.n)
    raw = "raw" in (envelope.content or ())
    return [
        world.explain(
            MailFacts(
                tenant.id, domain_of(envelope.sender), domain, envelope.priority, envelope.class_name, envelope.kind,
                envelope.tags, envelope.size,
            ),
            chance=chance_of(message_id), raw=raw, via=via, recipients=numbers,
        )
        for (domain, via), numbers in alike.items()
    ]  # fmt: skip


async def check_class(database: Database, name: str | None) -> None:
    """UnknownName if a class is named that does not exist: no mail could be of it."""
    if name is not None and all(one.name != name for one in await catalog.list_classes(database)):
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
    """A mail that somebody thinks of; what is not given is the tenant's default. Addresses may be bare domains."""
    given = sender or tenant.default_sender
    return MailFacts(
        tenant.id, _domain("from", given) if given else "", _domain("to", recipient), lane,
        class_name or tenant.default_class, kind, tags, size,
    )  # fmt: skip


def _domain(field: str, given: str) -> str:
    domain = domain_of(given)
    try:
        if domain_pattern(domain).startswith("*"):
            raise ValueError
    except ValueError:
        raise InvalidMail(
            "bad_address", field, "not an address or a domain", "write name@domain, or domain"
        ) from None
    return domain
