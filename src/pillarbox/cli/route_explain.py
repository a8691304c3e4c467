"""`route explain`: which route a mail takes, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from pillarbox.cli import output
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.route_options import lane as lane_
from pillarbox.cli.route_options import octets
from pillarbox.route import explain_query
from pillarbox.route.explain import CandidateUse, CheckedRule, Explanation, MailFate, Obstacle
from pillarbox.route.explain_json import explanation_json
from pillarbox.store import messages, tenants

if TYPE_CHECKING:
    from pillarbox.app import App

STYLES = {CandidateUse.USED: "green", CandidateUse.NEXT: "", CandidateUse.SKIPPED: "dim"}


def register(group: typer.Typer) -> None:
    command(group, "explain")(explain)


async def explain(
    context: CommandContext,
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A message's id, or its beginning.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="ADDRESS", help="To whom: an address or a domain.")
    ] = None,
    sender: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="ADDRESS", help="From whom; the tenant's default when not given."
        ),
    ] = None,
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="NAME", help="Whose mail it is.")
    ] = "default",
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="May be repeated.")
    ] = None,
    lane: Annotated[
        str, typer.Option("--lane", metavar="LANE", parser=lane_, help="urgent, normal or bulk.")
    ] = "normal",
    class_: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="The tenant's default when not given."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="A label of what the mail is.")
    ] = None,
    size: Annotated[
        int,
        typer.Option(
            "--size", metavar="SIZE", parser=octets, help="How large: 5MB.", show_default=False
        ),
    ] = explain_query.EMPTY,
    raw: Annotated[
        bool, typer.Option("--raw", help="It is a finished mail: by SMTP, or `raw`.")
    ] = False,
) -> None:
    """Tell which route a mail takes now: every rule tried, the providers in order, and why each is skipped.

    Give a message's id, or describe a mail that nobody has sent yet.

    \b
    Examples:
      pillarbox route explain --to ada@mail.example --tenant shop --lane bulk
      pillarbox route explain --to mail.example --size 30MB --raw
      pillarbox route explain 0c2f0c3d7a11 --json
    """
    if (id is None) == (to is None):
        raise typer.BadParameter("give a message's id, or describe a mail with --to")
    async with context.app() as app:
        if id is not None:
            found = await explain_query.explain_message(
                app.database,
                await messages.find_message(app.database, id),
                development=app.settings.is_development,
            )
        else:
            owner = await tenants.get_tenant(app.database, tenant)
            await explain_query.check_class(app.database, class_)
            facts = explain_query.facts_of(
                owner,
                sender,
                to or "",
                lane=lane,
                class_name=class_,
                kind=kind,
                tags=tag or (),
                size=size,
            )
            found = [
                (
                    await explain_query.load_routing_snapshot(
                        app.database, development=app.settings.is_development
                    )
                ).explain(facts, raw=raw)
            ]
        names = await _tenant_names(app)
    if context.json:
        output.print_json(
            [explanation_json(one) | {"tenant": names.get(one.facts.tenant_id)} for one in found]
        )
        return
    for place, one in enumerate(found):
        output.say() if place else None
        _tell(one, names.get(one.facts.tenant_id, ""))


async def _tenant_names(app: App) -> dict[int, str]:
    return {one.id: one.name for one in await tenants.list_tenants(app.database)}


def _tell(one: Explanation, tenant: str) -> None:
    facts = one.facts
    about = [
        facts.lane,
        facts.class_name,
        facts.kind or "",
        ", ".join(facts.tags),
        output.octets(facts.size),
    ]
    words = f": {', '.join(word for word in about if word)}{', raw' if one.raw else ''}"
    numbers = f" (deliveries {', '.join(map(str, one.recipients))})" if one.recipients else ""
    output.say(Text.assemble(
        (output.clean(tenant), "bold"),
        output.clean(f", from {facts.sender_domain or 'anywhere'} to {facts.recipient_domain}{numbers}{words}"),
    ))  # fmt: skip
    output.say()
    if one.tried:
        rows = [
            (tried.rule.name, tenant if tried.rule.tenant_id else "all", _fits(tried))
            for tried in one.tried
        ]
        output.table(("route", "for", "fits~"), rows)
        output.say()
    if one.via is None and one.rule is None:
        output.say(
            "no route fits: the default order holds"
            if one.tried
            else "no routes: the default order holds"
        )
    elif one.via is not None:
        output.say("a person chose the provider: no route was asked")
    _tell_providers(one)
    output.say()
    output.say(_end(one))


def _fits(tried: CheckedRule) -> Text:
    if tried.misses is None:
        return Text("yes", style="green")
    return Text(
        output.clean(f"no: {tried.misses} {tried.wants}; the mail has {tried.has}"), style="dim"
    )


def _tell_providers(one: Explanation) -> None:
    weighted = any(provider.share is not None for provider in one.providers)
    rows = [
        (provider.name, provider.kind, Text(provider.use, style=STYLES[provider.use]),
         *([f"{provider.share or 0:.0%}"] if weighted else []), _notes(provider.notes))
        for provider in one.providers
    ]  # fmt: skip
    heads = ("provider", "kind", "use", *(["share#"] if weighted else []), "why~")
    output.table(heads, rows, "no provider: add one with `pillarbox provider add`")


def _notes(notes: Sequence[Obstacle]) -> str:
    return "; ".join(
        f"{one.said}{f', until {output.when(one.until)}' if one.until else ''}" for one in notes
    )


def _end(one: Explanation) -> Text:
    if one.used is not None:
        return Text.assemble("it leaves through ", (output.clean(one.used.name), "bold green"))
    if one.fate is MailFate.FAILS:
        return Text("it fails: no provider of its route can carry it", style="red")
    return Text("it waits until a provider of its route can be used", style="yellow")
