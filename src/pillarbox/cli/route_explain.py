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
        str | None,
        typer.Option("--to", metavar="ADDRESS", help="Recipient: an address or a domain."),
    ] = None,
    sender: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="ADDRESS", help="Sender; the tenant's default unless given."
        ),
    ] = None,
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="NAME", help="Tenant of the mail.")
    ] = "default",
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="May be repeated.")
    ] = None,
    lane: Annotated[
        str, typer.Option("--lane", metavar="LANE", parser=lane_, help="urgent, normal or bulk.")
    ] = "normal",
    class_: Annotated[
        str | None,
        typer.Option(
            "--class", metavar="NAME", help="Message class; the tenant's default unless given."
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="A label of what the mail is.")
    ] = None,
    size: Annotated[
        int,
        typer.Option(
            "--size",
            metavar="SIZE",
            parser=octets,
            help="Size of the mail: 5MB.",
            show_default=False,
        ),
    ] = explain_query.EMPTY,
    raw: Annotated[
        bool, typer.Option("--raw", help="The mail is finished: submitted by SMTP, or with `raw`.")
    ] = False,
) -> None:
    """Show which route a mail takes now: rules, providers in order, and why some are skipped.

    Give the id of a message, or describe a mail.

    \b
    Examples:
      pillarbox route explain --to ada@mail.example --tenant shop --lane bulk
      pillarbox route explain --to mail.example --size 30MB --raw
      pillarbox route explain 0c2f0c3d7a11 --json
    """
    if (id is None) == (to is None):
        raise typer.BadParameter("give a message's id, or describe a mail with --to")
    async with context.app() as app:
        development = app.settings.is_development
        if id is not None:
            message_id = await messages.find_message(app.database, id)
            explanations = await explain_query.explain_message(
                app.database, message_id, development=development
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
            snapshot = await explain_query.load_routing_snapshot(
                app.database, development=development
            )
            explanations = [snapshot.explain(facts, raw=raw)]
        names = await _tenant_names(app)
    if context.json:
        output.print_json(
            [
                explanation_json(explanation) | {"tenant": names.get(explanation.facts.tenant_id)}
                for explanation in explanations
            ]
        )
        return
    for index, explanation in enumerate(explanations):
        if index:
            output.say()
        _show(explanation, names.get(explanation.facts.tenant_id, ""))


async def _tenant_names(app: App) -> dict[int, str]:
    return {tenant.id: tenant.name for tenant in await tenants.list_tenants(app.database)}


def _show(explanation: Explanation, tenant: str) -> None:
    output.say(Text.assemble((output.clean(tenant), "bold"), output.clean(_title(explanation))))
    output.say()
    if explanation.rules:
        rows = [
            (checked.rule.name, tenant if checked.rule.tenant_id else "all", _matches(checked))
            for checked in explanation.rules
        ]
        output.table(("route", "for", "fits~"), rows)
        output.say()
    if explanation.via is not None:
        output.say("a person chose the provider: no route was asked")
    elif explanation.rule is None and explanation.rules:
        output.say("no route fits: the default order holds")
    elif explanation.rule is None:
        output.say("no routes: the default order holds")
    _show_providers(explanation)
    output.say()
    output.say(_fate(explanation))


def _title(explanation: Explanation) -> str:
    facts = explanation.facts
    sender = facts.sender_domain or "anywhere"
    numbers = ""
    if explanation.recipients:
        numbers = f" (deliveries {', '.join(map(str, explanation.recipients))})"
    details = [facts.lane, facts.class_name]
    if facts.kind:
        details.append(facts.kind)
    details += facts.tags
    details.append(output.size(facts.size))
    if explanation.raw:
        details.append("raw")
    return f", from {sender} to {facts.recipient_domain}{numbers}: {', '.join(details)}"


def _matches(checked: CheckedRule) -> Text:
    if checked.misses is None:
        return Text("yes", style="green")
    text = f"no: {checked.misses} {checked.wants}; the mail has {checked.has}"
    return Text(output.clean(text), style="dim")


def _show_providers(explanation: Explanation) -> None:
    weighted = any(candidate.share is not None for candidate in explanation.providers)
    heads = ["provider", "kind", "use", "why~"]
    if weighted:
        heads.insert(3, "share#")
    rows = []
    for candidate in explanation.providers:
        use = Text(candidate.use, style=STYLES[candidate.use])
        row = [candidate.name, candidate.kind, use, _reasons(candidate.obstacles)]
        if weighted:
            row.insert(3, f"{candidate.share or 0:.0%}")
        rows.append(row)
    output.table(heads, rows, "no provider: add one with `pillarbox provider add`")


def _reasons(obstacles: Sequence[Obstacle]) -> str:
    reasons = []
    for obstacle in obstacles:
        text = obstacle.text
        if obstacle.until:
            text += f", until {output.when(obstacle.until)}"
        reasons.append(text)
    return "; ".join(reasons)


def _fate(explanation: Explanation) -> Text:
    if explanation.used is not None:
        name = output.clean(explanation.used.name)
        return Text.assemble("it leaves through ", (name, "bold green"))
    if explanation.fate is MailFate.FAILS:
        return Text("it fails: no provider of its route can carry it", style="red")
    return Text("it waits until a provider of its route can be used", style="yellow")
