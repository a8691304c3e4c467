"""Routes in the database: the rules of tenants, and those for all, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pillarbox.errors import InvalidMail, NotFound, NotPossible, UnknownName
from pillarbox.model.access_settings import checked_name
from pillarbox.model.delivery import LANES
from pillarbox.model.route_settings import (
    CONDITIONS,
    checked_match,
    checked_providers,
    checked_weights,
)
from pillarbox.model.routing import RoutingRule, RuleMatch
from pillarbox.store import sql, tenants

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database

SQL = sql.load("routes")


@dataclass(frozen=True, slots=True)
class NamedProvider:
    """A provider of a route, with its name."""

    id: int
    name: str
    enabled: bool
    removed: bool


@dataclass(frozen=True, slots=True)
class Route:
    """A rule with the names of its tenant and providers."""

    rule: RoutingRule
    tenant: str | None  # None: for all tenants
    providers: Sequence[NamedProvider]
    created_at: datetime

    @property
    def weights(self) -> dict[str, int] | None:
        """The weights by provider name."""
        if self.rule.weights is None:
            return None
        weighted = zip(self.providers, self.rule.weights, strict=True)
        return {provider.name: weight for provider, weight in weighted}

    def to_json(self) -> dict[str, Any]:
        rule, weights = self.rule, self.weights or {}
        providers = [
            {
                "name": provider.name,
                "enabled": provider.enabled,
                "removed": provider.removed,
                "weight": weights.get(provider.name),
            }
            for provider in self.providers
        ]
        head = {
            "id": rule.id,
            "name": rule.name,
            "tenant": self.tenant,
            "place": rule.position,
            "enabled": rule.enabled,
        }
        conditions = {name: getattr(rule.match, name) for name in CONDITIONS}
        return head | conditions | {"providers": providers, "created_at": self.created_at}


async def list_rules(database: Database) -> list[RoutingRule]:
    """All rules, disabled ones, too, in order: those of tenants, then those for all."""
    return [_rule(row) for row in await database.fetch(*SQL.list_rules())]


async def list_routes(database: Database, tenant: str | None = None) -> list[Route]:
    """All routes, as in list_rules; with a tenant, those for it. NotFound if it does not exist."""
    if tenant is not None:
        await tenants.get_tenant(database, tenant)
    async with database.connection() as connection:
        routes = await _routes(connection)
    if tenant is None:
        return routes
    return [route for route in routes if route.tenant in (tenant, None)]


async def find_route(database: Database, name: str, tenant: str | None) -> Route:
    """The route of that name, of a tenant or for all tenants; NotFound if it does not exist."""
    return _named(await list_routes(database), name, tenant)


async def get_route(database: Database, route_id: int) -> Route:
    """The route with that id, or NotFound."""
    return _by_id(await list_routes(database), route_id)


async def add_route(
    database: Database,
    name: str,
    tenant: str | None,
    providers: Sequence[str],
    *,
    weights: Mapping[str, int] | None = None,
    before: str | None = None,
    place: int | None = None,
    enabled: bool = True,
    **conditions: Any,
) -> Route:
    """Add a rule, of a tenant or for all; at the end, unless `before` or `place` is given."""
    match = checked_match(conditions)
    tenant_id = (await tenants.get_tenant(database, tenant)).id if tenant is not None else None
    async with database.transaction() as connection:
        await connection.execute(*SQL.lock_routes())
        await _check_classes(connection, match)
        ids = checked_providers(providers, await _known(connection))
        drawn = checked_weights(weights, providers)
        route_id = await connection.fetchval(
            *SQL.add_rule(
                tenant_id=tenant_id,
                name=checked_name(name),
                providers=ids,
                weights=drawn,
                enabled=enabled,
                **_condition_columns(match),
            )
        )
        if route_id is None:
            raise _taken(name)
        await _put(connection, tenant_id, route_id, before, place)
        return _by_id(await _routes(connection), route_id)


async def change_route(database: Database, route_id: int, **changes: Any) -> Route:
    """Change the given values of a rule: name, conditions, `providers`, `weights`, `enabled`.

    `before` or `place` moves it. Providers without weights remove the old weights.
    """
    async with database.transaction() as connection:
        await connection.execute(*SQL.lock_routes())
        routes = await _routes(connection)
        old = _by_id(routes, route_id)
        conditions = {name: changes[name] for name in CONDITIONS if name in changes}
        match = checked_match(conditions, old.rule.match)
        await _check_classes(connection, match)
        name = checked_name(changes.get("name", old.rule.name))
        others = [route for route in routes if route.rule.id != route_id]
        if (old.tenant, name) in {(route.tenant, route.rule.name) for route in others}:
            raise _taken(name)
        ids, drawn = await _providers(connection, old, changes)
        enabled = changes.get("enabled", old.rule.enabled)
        await connection.execute(
            *SQL.change_rule(
                route_id=route_id,
                name=name,
                providers=ids,
                weights=drawn,
                enabled=enabled,
                **_condition_columns(match),
            )
        )
        before, place = changes.get("before"), changes.get("place")
        if before is not None or place is not None:
            await _put(connection, old.rule.tenant_id, route_id, before, place)
        return _by_id(await _routes(connection), route_id)


async def move_route(
    database: Database, route_id: int, *, before: str | None = None, place: int | None = None
) -> Route:
    """Move a rule before another of its tenant, or to a place counted from 1; else to the end."""
    async with database.transaction() as connection:
        await connection.execute(*SQL.lock_routes())
        found = _by_id(await _routes(connection), route_id)
        await _put(connection, found.rule.tenant_id, route_id, before, place)
        return _by_id(await _routes(connection), route_id)


async def enable_route(database: Database, route_id: int, enabled: bool) -> Route:
    return await change_route(database, route_id, enabled=enabled)


async def remove_route(database: Database, route_id: int) -> None:
    async with database.transaction() as connection:
        await connection.execute(*SQL.lock_routes())
        found = _by_id(await _routes(connection), route_id)
        await connection.execute(*SQL.remove_rule(route_id=route_id))
        rest = await connection.fetch(*SQL.rules_of(tenant_id=found.rule.tenant_id))
        await connection.execute(*SQL.place_rules(route_ids=[row["id"] for row in rest]))


async def routes_through(database: Database, provider: str) -> list[Route]:
    """The routes that use a provider."""
    routes = await list_routes(database)
    return [route for route in routes if provider in {known.name for known in route.providers}]


async def chosen_providers(database: Database, message_id: UUID) -> dict[int, int]:
    """The providers that people chose for deliveries of a message, by recipient number."""
    rows = await database.fetch(*SQL.chosen_providers(message_id=message_id))
    return {row["n"]: row["via"] for row in rows}


async def _routes(connection: asyncpg.Connection) -> list[Route]:
    rows = await connection.fetch(*SQL.list_rules())
    providers = {
        row["id"]: NamedProvider(**dict(row))
        for row in await connection.fetch(*SQL.provider_names())
    }
    return [_route(row, providers) for row in rows]


def _route(row: asyncpg.Record, known: Mapping[int, NamedProvider]) -> Route:
    providers = []
    for provider_id in row["providers"]:
        unknown = NamedProvider(provider_id, f"#{provider_id}", enabled=False, removed=True)
        providers.append(known.get(provider_id, unknown))
    return Route(_rule(row), row["tenant"], providers, row["created_at"])


def _rule(row: asyncpg.Record) -> RoutingRule:
    conditions: dict[str, Any] = {}
    for name in CONDITIONS:
        value = row[name]
        conditions[name] = tuple(value) if isinstance(value, list) else value
    if row["lanes"]:
        conditions["lanes"] = tuple(LANES[lane] for lane in row["lanes"])
    return RoutingRule(
        row["id"],
        row["name"],
        row["tenant_id"],
        row["place"],
        RuleMatch(**conditions),
        tuple(row["providers"]),
        tuple(row["weights"] or ()) or None,
        row["enabled"],
    )


def _condition_columns(match: RuleMatch) -> dict[str, Any]:
    """The conditions as the columns store them."""
    values: dict[str, Any] = {name: getattr(match, name) for name in CONDITIONS}
    values["lanes"] = match.lanes and [LANES.index(lane) for lane in match.lanes]
    return values


async def _known(connection: asyncpg.Connection) -> dict[str, int]:
    rows = await connection.fetch(*SQL.provider_names())
    return {row["name"]: row["id"] for row in rows if not row["removed"]}


async def _providers(
    connection: asyncpg.Connection, old: Route, changes: Mapping[str, Any]
) -> tuple[Sequence[int], Sequence[int] | None]:
    """Providers and weights of a changed rule. Removed providers stay unless new ones are given."""
    if "providers" in changes:
        names = changes["providers"]
        ids = checked_providers(names, await _known(connection))
        return ids, checked_weights(changes.get("weights"), names)
    if "weights" in changes:
        names = [provider.name for provider in old.providers]
        return old.rule.providers, checked_weights(changes["weights"], names)
    return old.rule.providers, old.rule.weights


async def _check_classes(connection: asyncpg.Connection, match: RuleMatch) -> None:
    missing = SQL.classes_missing(names=list(match.classes or ()))
    for row in await connection.fetch(*missing):
        raise UnknownName(
            "unknown_class",
            "classes",
            f"there is no class {row['name']!r}",
            "see: pillarbox class list",
        )


async def _put(
    connection: asyncpg.Connection,
    tenant_id: int | None,
    route_id: int,
    before: str | None,
    place: int | None,
) -> None:
    """Number the rules of a tenant, or those for all, with this one where it is to be."""
    rows = await connection.fetch(*SQL.rules_of(tenant_id=tenant_id))
    others = [row for row in rows if row["id"] != route_id]
    order, names = [row["id"] for row in others], [row["name"] for row in others]
    if before is not None and place is not None:
        raise InvalidMail("bad_value", "place", "give `before` or `place`, not both")
    if before is not None and before not in names:
        raise UnknownName(
            "unknown_route", "before", f"there is no other route {before!r} of the same tenant"
        )
    if place is not None and not 1 <= place <= len(order) + 1:
        raise InvalidMail("out_of_range", "place", f"must be 1 to {len(order) + 1}")
    if before is not None:
        order.insert(names.index(before), route_id)
    elif place is not None:
        order.insert(place - 1, route_id)
    else:
        order.append(route_id)
    await connection.execute(*SQL.place_rules(route_ids=order))


def _named(routes: Sequence[Route], name: str, tenant: str | None) -> Route:
    same_name = [route for route in routes if route.rule.name == name]
    for route in same_name:
        if route.tenant == tenant:
            return route
    hint = "see `pillarbox route list`"
    if same_name:
        owners = sorted(route.tenant or "all tenants" for route in same_name)
        hint = f"there is one of {', '.join(owners)}: give --tenant"
    owner = f"of tenant {tenant!r}" if tenant is not None else "for all tenants"
    raise NotFound(f"there is no route {name!r} {owner}: {hint}")


def _by_id(routes: Sequence[Route], route_id: int) -> Route:
    for route in routes:
        if route.rule.id == route_id:
            return route
    raise NotFound(f"there is no route with the id {route_id}: see `pillarbox route list`")


def _taken(name: str) -> NotPossible:
    return NotPossible(f"there is a route {name!r} already: change it, or choose another name")
