"""Routes at rest: rules in their order, by tenant and for all."""

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

QUERIES = sql.load("routes")


@dataclass(frozen=True, slots=True)
class Named:
    """A provider of a route, as people know it."""

    id: int
    name: str
    enabled: bool
    removed: bool


@dataclass(frozen=True, slots=True)
class Route:
    """A rule with its names."""

    rule: RoutingRule
    tenant: str | None  # None: for all tenants
    providers: Sequence[Named]
    created_at: datetime

    @property
    def weights(self) -> dict[str, int] | None:
        """By the names of the providers."""
        if self.rule.weights is None:
            return None
        return {
            one.name: weight for one, weight in zip(self.providers, self.rule.weights, strict=True)
        }

    def shown(self) -> dict[str, Any]:
        """As programs see it."""
        rule, weights = self.rule, self.weights or {}
        providers = [
            {
                "name": one.name,
                "enabled": one.enabled,
                "removed": one.removed,
                "weight": weights.get(one.name),
            }
            for one in self.providers
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
    """Every rule, disabled ones, too: a tenant's own before those for all, each in their order."""
    return [_rule(row) for row in await database.fetch(QUERIES["list_rules"])]


async def list_routes(database: Database, tenant: str | None = None) -> list[Route]:
    """Every rule with its names, as list_rules; with a tenant, which must exist, those that hold for it."""
    if tenant is not None:
        await tenants.get_tenant(database, tenant)
    async with database.connection() as connection:
        return [
            one
            for one in await _routes(connection)
            if tenant is None or one.tenant in (tenant, None)
        ]


async def find_route(database: Database, name: str, tenant: str | None) -> Route:
    """The route of that name of a tenant, or without one of those for all; NotFound if there is none."""
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
    """Add a rule of a tenant, or without one for all; last, unless it is put before another or at a place."""
    match = checked_match(conditions)
    tenant_id = (await tenants.get_tenant(database, tenant)).id if tenant is not None else None
    async with database.transaction() as connection:
        await connection.execute(QUERIES["lock_routes"])
        await _check_classes(connection, match)
        ids = checked_providers(providers, await _known(connection))
        drawn = checked_weights(weights, providers)
        values = (tenant_id, checked_name(name), *_kept(match), ids, drawn, enabled)
        route_id = await connection.fetchval(QUERIES["add_rule"], *values)
        if route_id is None:
            raise _taken(name)
        await _put(connection, tenant_id, route_id, before, place)
        return _by_id(await _routes(connection), route_id)


async def change_route(database: Database, route_id: int, **changes: Any) -> Route:
    """Change what is given of a rule, and nothing else: `name`, conditions, `providers`, `weights`, `enabled`; and move
    it, with `before` or `place`.

    Providers without weights take the old ones away.
    """
    async with database.transaction() as connection:
        await connection.execute(QUERIES["lock_routes"])
        routes = await _routes(connection)
        old = _by_id(routes, route_id)
        match = checked_match(
            {one: changes[one] for one in CONDITIONS if one in changes}, old.rule.match
        )
        await _check_classes(connection, match)
        name = checked_name(changes.get("name", old.rule.name))
        if any(
            (one.tenant, one.rule.name) == (old.tenant, name)
            for one in routes
            if one.rule.id != route_id
        ):
            raise _taken(name)
        ids, drawn = await _providers(connection, old, changes)
        enabled = changes.get("enabled", old.rule.enabled)
        await connection.execute(
            QUERIES["change_rule"], route_id, name, *_kept(match), ids, drawn, enabled
        )
        before, place = changes.get("before"), changes.get("place")
        if before is not None or place is not None:
            await _put(connection, old.rule.tenant_id, route_id, before, place)
        return _by_id(await _routes(connection), route_id)


async def move_route(
    database: Database, route_id: int, *, before: str | None = None, place: int | None = None
) -> Route:
    """Put a rule before another of the same tenant, or at a place among them counted from 1; else at the end."""
    async with database.transaction() as connection:
        await connection.execute(QUERIES["lock_routes"])
        found = _by_id(await _routes(connection), route_id)
        await _put(connection, found.rule.tenant_id, route_id, before, place)
        return _by_id(await _routes(connection), route_id)


async def enable_route(database: Database, route_id: int, enabled: bool) -> Route:
    return await change_route(database, route_id, enabled=enabled)


async def remove_route(database: Database, route_id: int) -> None:
    async with database.transaction() as connection:
        await connection.execute(QUERIES["lock_routes"])
        found = _by_id(await _routes(connection), route_id)
        await connection.execute(QUERIES["remove_rule"], route_id)
        rest = await connection.fetch(QUERIES["rules_of"], found.rule.tenant_id)
        await connection.execute(QUERIES["place_rules"], [row["id"] for row in rest])


async def routes_through(database: Database, provider: str) -> list[Route]:
    """The routes that name a provider."""
    return [
        one
        for one in await list_routes(database)
        if any(named.name == provider for named in one.providers)
    ]


async def chosen_providers(database: Database, message_id: UUID) -> dict[int, int]:
    """The providers that people chose for deliveries of a message, by the deliveries' numbers."""
    return {
        row["n"]: row["via"]
        for row in await database.fetch(QUERIES["chosen_providers"], message_id)
    }


async def _routes(connection: asyncpg.Connection) -> list[Route]:
    rows = await connection.fetch(QUERIES["list_rules"])
    named = {row["id"]: Named(*row) for row in await connection.fetch(QUERIES["provider_names"])}
    return [_route(row, named) for row in rows]


def _route(row: asyncpg.Record, named: Mapping[int, Named]) -> Route:
    providers = tuple(
        named.get(one) or Named(one, f"#{one}", False, True) for one in row["providers"]
    )
    return Route(_rule(row), row["tenant"], providers, row["created_at"])


def _rule(row: asyncpg.Record) -> RoutingRule:
    values: dict[str, Any] = {
        name: tuple(row[name]) if isinstance(row[name], list) else row[name] for name in CONDITIONS
    }
    values["lanes"] = row["lanes"] and tuple(LANES[lane] for lane in row["lanes"])
    weights = tuple(row["weights"]) if row["weights"] else None
    return RoutingRule(
        row["id"], row["name"], row["tenant_id"], row["place"], RuleMatch(**values), tuple(row["providers"]), weights,
        row["enabled"],
    )  # fmt: skip


def _kept(match: RuleMatch) -> list[Any]:
    """Conditions as the columns hold them, in their order."""
    values: dict[str, Any] = {name: getattr(match, name) for name in CONDITIONS}
    values["lanes"] = match.lanes and [LANES.index(lane) for lane in match.lanes]
    return list(values.values())


async def _known(connection: asyncpg.Connection) -> dict[str, int]:
    rows = await connection.fetch(QUERIES["provider_names"])
    return {row["name"]: row["id"] for row in rows if not row["removed"]}


async def _providers(
    connection: asyncpg.Connection, old: Route, changes: Mapping[str, Any]
) -> tuple[Sequence[int], Sequence[int] | None]:
    """Providers and weights of a changed rule. Removed ones may stay where providers are not given anew."""
    if "providers" in changes:
        names = changes["providers"]
        ids = checked_providers(names, await _known(connection))
        return ids, checked_weights(changes.get("weights"), names)
    if "weights" in changes:
        return old.rule.providers, checked_weights(
            changes["weights"], [one.name for one in old.providers]
        )
    return old.rule.providers, old.rule.weights


async def _check_classes(connection: asyncpg.Connection, match: RuleMatch) -> None:
    for row in await connection.fetch(QUERIES["classes_missing"], list(match.classes or ())):
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
    """Give the rules of a tenant, or those for all, their places anew, with this one where it is wanted."""
    rows = [
        row
        for row in await connection.fetch(QUERIES["rules_of"], tenant_id)
        if row["id"] != route_id
    ]
    order, names = [row["id"] for row in rows], [row["name"] for row in rows]
    if before is not None and place is not None:
        raise InvalidMail("bad_value", "place", "give a place or a route to stand before, not both")
    if before is not None and before not in names:
        raise UnknownName(
            "unknown_route", "before", f"there is no other route {before!r} of the same tenant"
        )
    if place is not None and not 1 <= place <= len(order) + 1:
        raise InvalidMail("out_of_range", "place", f"must be 1 to {len(order) + 1}")
    index = (
        names.index(before) if before is not None else len(order) if place is None else place - 1
    )
    order.insert(index, route_id)
    await connection.execute(QUERIES["place_rules"], order)


def _named(routes: Sequence[Route], name: str, tenant: str | None) -> Route:
    for one in routes:
        if (one.rule.name, one.tenant) == (name, tenant):
            return one
    others = sorted(one.tenant or "all tenants" for one in routes if one.rule.name == name)
    whose = f"of tenant {tenant!r}" if tenant is not None else "for all tenants"
    hint = (
        f"there is one of {', '.join(others)}: give --tenant"
        if others
        else "see `pillarbox route list`"
    )
    raise NotFound(f"there is no route {name!r} {whose}: {hint}")


def _by_id(routes: Sequence[Route], route_id: int) -> Route:
    for one in routes:
        if one.rule.id == route_id:
            return one
    raise NotFound("there is no such route: see `pillarbox route list`")


def _taken(name: str) -> NotPossible:
    return NotPossible(f"there is a route {name!r} already: change it, or choose another name")
