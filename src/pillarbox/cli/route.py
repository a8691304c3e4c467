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

Name = Annotated[str, typer.Argument(parser=options.name, metavar="NAME", help="What to call it.")]
Known = Annotated[str, typer.Argument(metavar="NAME", help="Its name in `route list`.")]
Of = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        help="Whose it is; for all tenants when not given.",
        show_default=False,
    ),
]
Before = Annotated[
    str | None,
    typer.Option(
        "--before",
        metavar="NAME",
        help="Put it before this route of the same tenant.",
        show_default=False,
    ),
]
Place = Annotated[
    int | None,
    typer.Option("--place", metavar="N", min=1, help="Put it at this place.", show_default=False),
]
Weights = Annotated[
    list[str] | None,
    typer.Option(
        "--weight", metavar="PROVIDER=N", help="Draw the first by weights; may be repeated."
    ),
]
_PROVIDER = "A provider; the first that can is used. May be repeated."


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Routes: which providers a mail may leave through.", no_args_is_help=True
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

    It stands last, or where it is put. Of several values of one condition, one must fit. A tenant's
    own routes come before those for all tenants; the first that fits decides, so one without
    conditions belongs last. With weights the first provider is drawn by them, and the others stand
    by.

    \b
    Examples:
      pillarbox route add resets --lane urgent --provider ses --provider relay
      pillarbox route add news --tenant shop --class bulk --provider mailgun
      pillarbox route add split --tag receipt --provider ses --provider relay --weight ses=70 --weight relay=30
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
    _tell(context, made, f"added route {name}")
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
        bool, typer.Option("--no-weight", help="Clear the weights: an order.")
    ] = False,
    **conditions: Any,
) -> None:
    """Change what is given of a route; the rest stays.

    Providers given again have only the weights given with them.

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
    _tell(context, changed, f"changed route {name}")


async def list_(
    context: CommandContext,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", metavar="NAME", help="Those that hold for this tenant.", show_default=False
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
        output.print_json([one.shown() for one in found])
        return
    rows = [
        (one.tenant or "all", str(one.rule.position), one.rule.name, conditions_of(one), providers_of(one),
         Text("on", style="green") if one.rule.enabled else Text("off", style="dim"))
        for one in found
    ]  # fmt: skip
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
    _tell(context, found, None)


async def move(
    context: CommandContext,
    name: Known,
    tenant: Of = None,
    before: Before = None,
    place: Place = None,
) -> None:
    """Move a route before another, or to a place counted from 1; to the end when neither is given.

    \b
    Examples:
      pillarbox route move resets --place 1
      pillarbox route move large --before resets
    """
    async with context.app() as app:
        found = await _find(app, name, tenant)
        moved = await routes.move_route(app.database, found.rule.id, before=before, place=place)
    _tell(context, moved, f"{name} stands at place {moved.rule.position}")


async def enable(context: CommandContext, name: Known, tenant: Of = None) -> None:
    """Ask a route again.

    \b
    Example:
      pillarbox route enable news --tenant shop
    """
    await _switch(context, name, tenant, True)


async def disable(context: CommandContext, name: Known, tenant: Of = None) -> None:
    """Pass a route over until it is enabled again.

    \b
    Example:
      pillarbox route disable news --tenant shop
    """
    await _switch(context, name, tenant, False)


async def _switch(context: CommandContext, name: str, tenant: str | None, enabled: bool) -> None:
    async with context.app() as app:
        found = await _find(app, name, tenant)
        await routes.enable_route(app.database, found.rule.id, enabled)
    word = "enabled" if enabled else "disabled"
    output.print_json({"name": name, "enabled": enabled}) if context.json else output.say(
        f"{word} {name}"
    )


async def remove(
    context: CommandContext, name: Known, tenant: Of = None, yes: options.Yes = False
) -> None:
    """Remove a route. Mails that wait are routed by what is left.

    \b
    Example:
      pillarbox route remove news --tenant shop --yes
    """
    async with context.app() as app:
        found = await _find(app, name, tenant)
        options.confirm(f"Remove the route {name} of {found.tenant or 'all tenants'}?", yes)
        await routes.remove_route(app.database, found.rule.id)
    output.print_json({"name": name, "removed": True}) if context.json else output.say(
        f"removed {name}"
    )


async def _find(app: App, name: str, tenant: str | None) -> Route:
    if tenant is not None:
        await tenants.get_tenant(app.database, tenant)
    return await routes.find_route(app.database, name, tenant)


def _tell(context: CommandContext, route: Route, done: str | None) -> None:
    if context.json:
        output.print_json(route.shown())
        return
    output.say(done if done else Text(route.rule.name, style="bold"))
    conditions = [(FLAGS[field], value_of(route, field)) for field in CONDITIONS]
    output.pairs([
        ("for", route.tenant or "all tenants"), ("place", str(route.rule.position)),
        ("enabled", "yes" if route.rule.enabled else "no"), *conditions, ("providers", providers_of(route)),
    ])  # fmt: skip


def _warn_of_shadow(made: Route, known: Sequence[Route]) -> None:
    """Say so if a route before it takes every mail: the new one would never be asked."""
    for one in known:
        before = one.tenant == made.tenant and one.rule.position < made.rule.position
        if before and one.rule.enabled and one.rule.match == RuleMatch():
            output.note(f"{one.rule.name} stands before it and takes every mail: put it first with "
                        f"`pillarbox route move {made.rule.name}{f' --tenant {made.tenant}' if made.tenant else ''} "
                        f"--before {one.rule.name}`")  # fmt: skip
            return


async def warn_of_removal(app: App, provider: str) -> None:
    """Say which routes name a provider that is about to be removed."""
    named = await routes.routes_through(app.database, provider)
    if named:
        some = ", ".join(f"{one.rule.name} ({one.tenant or 'all tenants'})" for one in named)
        output.note(f"routes name {provider}, and will pass it over: {some}")
