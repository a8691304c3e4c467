"""`route`: rules that say which providers a mail may leave through, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pillarbox.cli import options, output, route_explain
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.route_options import (
    FLAGS,
    conditions_of,
    given_conditions,
    given_weights,
    providers_of,
    value_of,
    with_conditions,
)
from pillarbox.model.route_settings import CONDITIONS
from pillarbox.model.routing import RuleMatch
from pillarbox.store import routes, tenants

if TYPE_CHECKING:
    from pillarbox.app import App
    from pillarbox.store.routes import Route

Name = Annotated[
    str, typer.Argument(parser=options.name, metavar="NAME", help="Name of the route.")
]
Known = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the route, as in `route list`.")
]
Of = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        help="Tenant of the route; for all tenants unless given.",
        show_default=False,
    ),
]
Before = Annotated[
    str | None,
    typer.Option(
        "--before",
        metavar="NAME",
        help="Place it before this route of the same tenant.",
        show_default=False,
    ),
]
Place = Annotated[
    int | None,
    typer.Option(
        "--place", metavar="N", min=1, help="Place it at this position.", show_default=False
    ),
]
Weights = Annotated[
    list[str] | None,
    typer.Option(
        "--weight",
        metavar="PROVIDER=N",
        help="Choose the first provider by weight; may be repeated.",
    ),
]
_PROVIDER = "A provider, in order of preference; may be repeated."


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Manage routes: which providers a mail may leave through.", no_args_is_help=True
    )
    command(group, "add")(with_conditions(add, clearing=False))
    command(group, "change")(with_conditions(change, clearing=True))
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "move")(move)
    command(group, "enable")(enable)
    command(group, "disable")(disable)
    command(group, "remove")(remove)
    route_explain.register(group)
    root.add_typer(group, name="route")


async def add(
    context: CommandContext,
    name: Name,
    provider: Annotated[list[str], typer.Option("--provider", metavar="NAME", help=_PROVIDER)],
    tenant: Of = None,
    weight: Weights = None,
    before: Before = None,
    place: Place = None,
    **conditions: Any,
) -> None:
    """Add a route: mails that meet all its conditions leave through its providers.

    It is added at the end, unless --before or --place is given. Of several values of one condition,
    one must match. The routes of a tenant come before those for all tenants; the first that matches
    decides, so a route without conditions belongs at the end. With weights the first provider is
    chosen by weight, and the others are used if it fails.

    \b
    Examples:
      pillarbox route add resets --lane urgent --provider ses --provider relay
      pillarbox route add news --tenant shop --class bulk --provider mailgun
      pillarbox route add split --provider ses --provider relay --weight ses=70 --weight relay=30
      pillarbox route add large --min-size 20MB --provider relay --before resets
    """
    changes, weights = given_conditions(conditions), given_weights(weight)
    async with context.app() as app:
        made = await routes.add_route(
            app.database,
            name,
            tenant,
            provider,
            weights=weights,
            before=before,
            place=place,
            **changes,
        )
        earlier = await routes.list_routes(app.database, tenant)
    _show(context, made, f"added route {name}")
    _warn_of_shadow(made, earlier)


async def change(
    context: CommandContext,
    name: Known,
    tenant: Of = None,
    provider: Annotated[
        list[str] | None, typer.Option("--provider", metavar="NAME", help=_PROVIDER)
    ] = None,
    weight: Weights = None,
    no_weight: Annotated[
        bool, typer.Option("--no-weight", help="Clear the weights: use the order.")
    ] = False,
    **conditions: Any,
) -> None:
    """Change the given values of a route; the others stay.

    New providers have only the weights that are given with them.

    \b
    Examples:
      pillarbox route change resets --provider relay --provider ses
      pillarbox route change split --weight ses=50 --weight relay=50
      pillarbox route change news --tenant shop --kind newsletter --no-class
    """
    changes, weights = given_conditions(conditions), given_weights(weight)
    if weights and no_weight:
        raise typer.BadParameter("give --weight or --no-weight, not both")
    if weights or no_weight:
        changes["weights"] = weights
    if provider:
        changes["providers"] = provider
    if not changes:
        raise typer.BadParameter("nothing to change: see `pillarbox route change --help`")
    async with context.app() as app:
        found = await _find(app, name, tenant)
        changed = await routes.change_route(app.database, found.rule.id, **changes)
    _show(context, changed, f"changed route {name}")


async def list_(
    context: CommandContext,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", metavar="NAME", help="Only routes for this tenant.", show_default=False
        ),
    ] = None,
) -> None:
    """List the routes in the order in which they are tried: a tenant's own, then those for all.

    \b
    Examples:
      pillarbox route list
      pillarbox route list --tenant shop
    """
    async with context.app() as app:
        found = await routes.list_routes(app.database, tenant)
    if context.json:
        output.print_json([route.to_json() for route in found])
        return
    rows = []
    for route in found:
        state = Text("off", style="dim")
        if route.rule.enabled:
            state = Text("on", style="green")
        row = (
            route.tenant or "all",
            str(route.rule.position),
            route.rule.name,
            conditions_of(route),
            providers_of(route),
            state,
        )
        rows.append(row)
    empty = "no route: mails leave in the default order (SendGrid, SES, Mailgun, SMTP)"
    output.table(("for", "place#", "name", "mails~", "providers~", ""), rows, empty)


async def show(context: CommandContext, name: Known, tenant: Of = None) -> None:
    """Show one route with its conditions and providers.

    \b
    Example:
      pillarbox route show news --tenant shop
    """
    async with context.app() as app:
        found = await _find(app, name, tenant)
    _show(context, found, None)


async def move(
    context: CommandContext,
    name: Known,
    tenant: Of = None,
    before: Before = None,
    place: Place = None,
) -> None:
    """Move a route before another one, or to a place counted from 1; to the end by default.

    \b
    Examples:
      pillarbox route move resets --place 1
      pillarbox route move large --before resets
    """
    async with context.app() as app:
        found = await _find(app, name, tenant)
        moved = await routes.move_route(app.database, found.rule.id, before=before, place=place)
    _show(context, moved, f"{name} is at place {moved.rule.position}")


async def enable(context: CommandContext, name: Known, tenant: Of = None) -> None:
    """Enable a route.

    \b
    Example:
      pillarbox route enable news --tenant shop
    """
    await _switch(context, name, tenant, True)


async def disable(context: CommandContext, name: Known, tenant: Of = None) -> None:
    """Disable a route: it is skipped until it is enabled again.

    \b
    Example:
      pillarbox route disable news --tenant shop
    """
    await _switch(context, name, tenant, False)


async def _switch(context: CommandContext, name: str, tenant: str | None, enabled: bool) -> None:
    async with context.app() as app:
        found = await _find(app, name, tenant)
        await routes.enable_route(app.database, found.rule.id, enabled)
    if context.json:
        output.print_json({"name": name, "enabled": enabled})
    elif enabled:
        output.say(f"enabled {name}")
    else:
        output.say(f"disabled {name}")


async def remove(
    context: CommandContext, name: Known, tenant: Of = None, yes: options.Yes = False
) -> None:
    """Remove a route. Waiting mails are routed by the other routes.

    \b
    Example:
      pillarbox route remove news --tenant shop --yes
    """
    async with context.app() as app:
        found = await _find(app, name, tenant)
        options.confirm(f"Remove the route {name} of {found.tenant or 'all tenants'}?", yes)
        await routes.remove_route(app.database, found.rule.id)
    if context.json:
        output.print_json({"name": name, "removed": True})
    else:
        output.say(f"removed {name}")


async def _find(app: App, name: str, tenant: str | None) -> Route:
    if tenant is not None:
        await tenants.get_tenant(app.database, tenant)
    return await routes.find_route(app.database, name, tenant)


def _show(context: CommandContext, route: Route, done: str | None) -> None:
    if context.json:
        output.print_json(route.to_json())
        return
    output.say(done or Text(route.rule.name, style="bold"))
    conditions = [(FLAGS[field], value_of(route, field)) for field in CONDITIONS]
    output.pairs(
        [
            ("for", route.tenant or "all tenants"),
            ("place", str(route.rule.position)),
            ("enabled", "yes" if route.rule.enabled else "no"),
            *conditions,
            ("providers", providers_of(route)),
        ]
    )


def _warn_of_shadow(added: Route, known: Sequence[Route]) -> None:
    """Warn if a route before the added one matches every mail."""
    for route in known:
        is_before = route.tenant == added.tenant and route.rule.position < added.rule.position
        if is_before and route.rule.enabled and route.rule.match == RuleMatch():
            tenant = f" --tenant {added.tenant}" if added.tenant else ""
            command = f"route move {added.rule.name}{tenant} --before {route.rule.name}"
            output.note(
                f"{route.rule.name} is before it and matches every mail: move the new route first"
                f" with `pillarbox {command}`"
            )
            return


async def warn_of_removal(app: App, provider: str) -> None:
    """Warn of the routes that use a provider that is about to be removed."""
    found = await routes.routes_through(app.database, provider)
    if found:
        names = [f"{route.rule.name} ({route.tenant or 'all tenants'})" for route in found]
        output.note(f"these routes use {provider}, and will skip it: {', '.join(names)}")
