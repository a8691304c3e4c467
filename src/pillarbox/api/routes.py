"""Routes, explanations of routing decisions, and the health of providers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from fastapi import Path, Query
from starlette.responses import Response

from pillarbox.api.fields import NAME
from pillarbox.api.key_management import setting_problems
from pillarbox.api.openapi import BODY, needs, problems
from pillarbox.api.route_models import (
    AnyMailToExplain,
    Explanations,
    MailToExplain,
    NewRoute,
    ProviderEventDetails,
    ProviderEventList,
    ProviderHealthList,
    RouteChange,
    RouteDetails,
    RouteList,
    explained,
    provider_health_details,
    route_details,
)
from pillarbox.api.routing import Context, json_response, router
from pillarbox.errors import NotFound
from pillarbox.model.access import Scope, Tenant
from pillarbox.route import explain_query as asking
from pillarbox.store import health, tenants
from pillarbox.store import routes as store
from pillarbox.store.health import HealthRow

if TYPE_CHECKING:
    from pillarbox.app import App
    from pillarbox.route.explain import Explanation
    from pillarbox.store.database import Database

routes = router()
ADMIN = needs(Scope.ADMIN)
RouteId = Annotated[int, Path(ge=1, le=2**31 - 1, description="The route's id.")]
Tenant_ = Annotated[
    str | None,
    Query(
        pattern=NAME,
        description="Only routes that apply to this tenant: its own, and those for all tenants.",
    ),
]
Provider = Annotated[str | None, Query(pattern=NAME, description="Only events of this provider.")]
Limit = Annotated[int, Query(ge=1, le=200)]
Before = Annotated[
    int | None, Query(ge=1, le=2**63 - 1, description="Only events before the one with this id.")
]
MAIL = "Give `message_id`, or describe a mail. The decision is the one that would be made now."


@routes.post(
    "/routes/explain",
    operation_id="explain_route",
    summary="Explain the route of a mail",
    description=f"{MAIL} Names the rules of the tenant and those for all tenants, and the"
    " providers.",
    response_model=Explanations,
    responses=problems("not-found", "invalid-setting", *BODY),
    openapi_extra=needs(Scope.READ),
    tags=["routes"],
)
async def explain_route(context: Context, mail: MailToExplain) -> Response:
    tenant = context.tenant
    found = await _explain(context.app, mail, tenant, tenant.id)
    return json_response(explained(found, foreign=False))


@routes.post(
    "/admin/routes/explain",
    operation_id="admin_explain_route",
    summary="Explain the route of any mail",
    description=MAIL,
    response_model=Explanations,
    responses=problems("not-found", "invalid-setting", *BODY),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def admin_explain_route(context: Context, mail: AnyMailToExplain) -> Response:
    tenant = await tenants.get_tenant(context.app.database, mail.tenant)
    return json_response(explained(await _explain(context.app, mail, tenant, None), foreign=True))


async def _explain(
    app: App, mail: MailToExplain, tenant: Tenant, only_of: int | None
) -> list[Explanation]:
    database, development = app.database, app.settings.is_development
    if mail.message_id is not None:
        return await asking.explain_message(
            database, mail.message_id, only_of, development=development
        )
    with setting_problems():
        await asking.check_class(database, mail.class_)
        facts = asking.facts_of(
            tenant,
            mail.from_,
            mail.to or "",
            lane=mail.lane,
            class_name=mail.class_,
            kind=mail.kind,
            tags=mail.tags,
            size=mail.size,
        )
    return [
        (await asking.load_routing_snapshot(database, development=development)).explain(
            facts, raw=mail.raw
        )
    ]


@routes.get(
    "/admin/routes",
    operation_id="admin_list_routes",
    summary="List routes",
    description="In the order of comparison: routes of tenants, then routes for all tenants.",
    response_model=RouteList,
    responses=problems("not-found", "invalid-request"),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def list_routes(context: Context, tenant: Tenant_ = None) -> Response:
    found = await store.list_routes(context.app.database, tenant)
    return json_response(RouteList(routes=[route_details(route) for route in found]))


@routes.post(
    "/admin/routes",
    operation_id="admin_add_route",
    summary="Add a route",
    description="Workers use it within seconds.",
    status_code=201,
    response_model=RouteDetails,
    responses=problems("not-found", "taken", "invalid-setting", *BODY),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def add_route(context: Context, new: NewRoute) -> Response:
    with setting_problems():
        added = await store.add_route(context.app.database, **{"tenant": None} | new.given())
    return json_response(route_details(added), 201)


@routes.get(
    "/admin/routes/{route_id}",
    operation_id="admin_get_route",
    summary="Show a route",
    response_model=RouteDetails,
    responses=problems("not-found"),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def get_route(context: Context, route_id: RouteId) -> Response:
    return json_response(route_details(await store.get_route(context.app.database, route_id)))


@routes.patch(
    "/admin/routes/{route_id}",
    operation_id="admin_change_route",
    summary="Change or move a route",
    description="Omitted settings are not changed. Workers use the change within seconds.",
    response_model=RouteDetails,
    responses=problems("not-found", "taken", "invalid-setting", *BODY),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def change_route(context: Context, route_id: RouteId, change: RouteChange) -> Response:
    with setting_problems():
        changed = await store.change_route(context.app.database, route_id, **change.given())
    return json_response(route_details(changed))


@routes.delete(
    "/admin/routes/{route_id}",
    operation_id="admin_remove_route",
    summary="Remove a route",
    description="Waiting mails are routed by the remaining routes.",
    status_code=204,
    responses=problems("not-found"),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def remove_route(context: Context, route_id: RouteId) -> Response:
    await store.remove_route(context.app.database, route_id)
    return Response(status_code=204)


@routes.get(
    "/admin/providers/health",
    operation_id="admin_provider_health",
    summary="Show the health of the providers",
    description="Circuit breakers, checks, pauses, and the spent part of the budgets of this"
    " month.",
    response_model=ProviderHealthList,
    responses=problems(),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def provider_health(context: Context) -> Response:
    usage = await health.list_usage(context.app.database)
    rows = await health.list_health(context.app.database)
    shown = [
        provider_health_details(provider, rows.get(provider.id, HealthRow()))
        for provider in usage.values()
        if not provider.removed
    ]
    return json_response(ProviderHealthList(providers=shown))


@routes.get(
    "/admin/providers/events",
    operation_id="admin_provider_events",
    summary="List events of providers",
    description="Opened and closed circuit breakers, pauses and failed checks; newest first.",
    response_model=ProviderEventList,
    responses=problems("not-found", "invalid-request"),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def provider_events(
    context: Context, provider: Provider = None, limit: Limit = 50, before: Before = None
) -> Response:
    database = context.app.database
    provider_id = None if provider is None else await _provider_id(database, provider)
    found = await health.list_events(database, provider_id, limit, before)
    return json_response(
        ProviderEventList(events=[ProviderEventDetails(**asdict(event)) for event in found])
    )


async def _provider_id(database: Database, name: str) -> int:
    """The id of the provider with this name: the present one rather than a removed one."""
    usage = await health.list_usage(database)
    found = [each for each in usage.values() if each.name == name]
    if not found:
        raise NotFound("there is no provider with this name")
    newest = max(found, key=lambda each: (not each.removed, each.id))
    return newest.id
