"""`provider health`: circuit breakers, checks, pauses and budgets."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.deliver.health_monitor import NEAR_BUDGET
from pillarbox.errors import NotFound
from pillarbox.store import health
from pillarbox.store.health import HealthRow, ProviderEvent, ProviderUse

STYLES = {"closed": "green", "half_open": "yellow", "open": "red"}
BAR = 10  # cells


def register(group: typer.Typer) -> None:
    command(group, "health")(health_)


async def health_(
    context: CommandContext,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this provider.")
    ] = None,
    events: Annotated[
        bool, typer.Option("--events", help="List the latest events instead.")
    ] = False,
    limit: options.Limit = 50,
) -> None:
    """Show the health of providers: circuit breaker, last check, pause and used budget.

    \b
    Examples:
      pillarbox provider health
      pillarbox provider health ses --events
      pillarbox provider health --json
    """
    async with context.app() as app:
        usage = await health.list_usage(app.database)
        found = [use for use in usage.values() if not use.removed and name in (None, use.name)]
        if name is not None and not found:
            raise NotFound(f"there is no provider {name!r}: see `pillarbox provider list`")
        if events:
            provider_id = None if name is None else found[0].id
            _show_events(context, await health.list_events(app.database, provider_id, limit))
            return
        rows = await health.list_health(app.database)
    shown = [(use, rows.get(use.id, HealthRow())) for use in found]
    if context.json:
        output.print_json([public(use, row) for use, row in shown])
    elif name is not None:
        _show_one(*shown[0])
    else:
        heads = ("name", "kind", "breaker", "since", "reason", "retry", "last check~", "budget~")
        lines = [_line(use, row) for use, row in shown]
        output.table(heads, lines, "no provider: add one with `pillarbox provider add`")


def public(use: ProviderUse, row: HealthRow) -> dict[str, Any]:
    """A provider's health as JSON."""
    head = {
        "id": use.id,
        "name": use.name,
        "kind": use.kind,
        "enabled": use.enabled,
        "release_only": use.release_only,
    }
    values: dict[str, Any] = output.plain(head | output.plain(row) | {"budget": use.money})
    return values


def _line(use: ProviderUse, row: HealthRow) -> tuple[object, ...]:
    since, retry = "", ""
    if row.state != "closed" and row.since:
        since = output.age(row.since)
    if row.state == "open" and row.retry_at:
        retry = output.ahead(row.retry_at)
    breaker = _breaker(row) if use.enabled else Text("disabled", style="dim")
    reason = _reason(use, row)
    return (use.name, use.kind, breaker, since, reason, retry, _check(row), _budget(use))


def _breaker(row: HealthRow) -> Text:
    return Text(row.state.replace("_", " "), style=STYLES[row.state])


def _reason(use: ProviderUse, row: HealthRow) -> str | None:
    pause = _paused_until(use, row)
    if pause:
        return f"{row.reason or ''} paused until {pause}".strip()
    if row.state == "closed":
        return None
    return row.reason


def _paused_until(use: ProviderUse, row: HealthRow) -> str | None:
    if row.held_until and row.held_until > use.at:
        return output.when(row.held_until)
    return None


def _check(row: HealthRow) -> Text:
    if row.check_ok is None or row.checked_at is None:
        return Text("")
    when = output.ahead(row.checked_at)
    if row.check_ok:
        return Text.assemble(("ok ", "green"), when)
    return Text.assemble(("failed ", "red"), when, output.clean(f": {row.check_said}"))


def _budget(use: ProviderUse) -> Text:
    """The used money with a bar; its colour shows how near the end is."""
    if use.price_per_thousand is None:
        return Text("")
    if use.share is None:
        return Text(f"{use.spent:.2f}, no budget")
    style = "green"
    if use.share >= 1:
        style = "red"
    elif use.share >= NEAR_BUDGET:
        style = "yellow"
    full = min(BAR, round(use.share * BAR))
    bar = ("█" * full + "░" * (BAR - full), style)
    return Text.assemble(bar, f" {use.share:.0%} ({use.spent:.2f} of {use.budget_per_month})")


def _show_one(use: ProviderUse, row: HealthRow) -> None:
    output.say(Text.assemble((output.clean(use.name), "bold"), (f" ({use.kind})", "dim")))
    rows: list[tuple[str, object]] = [("enabled", "yes" if use.enabled else "no")]
    if use.release_only:
        rows.append(("release only", "yes"))
    rows += [("breaker", _breaker(row)), ("since", output.when(row.since)), ("reason", row.reason)]
    if row.state == "open":
        rows.append(("retry at", output.when(row.retry_at)))
    rows.append(("paused until", _paused_until(use, row)))
    if row.opened:
        rows.append(("opened", f"{output.counted(row.opened, 'time')} lately"))
    rows.append(("last check", _check(row)))
    rows.append(("rates", ", ".join(f"{rate.limit:,} per {rate.period}" for rate in use.rates)))
    rows.append(("budget", _budget(use)))
    if use.budget_per_month is not None or any(rate.period == "day" for rate in use.rates):
        urgent, normal = use.reserve_urgent, use.reserve_normal
        rows.append(("kept", f"{urgent} % for urgent mails, {normal} % from bulk ones"))
    output.pairs(rows)


def _show_events(context: CommandContext, events: list[ProviderEvent]) -> None:
    if context.json:
        output.print_json(events)
        return
    rows = [
        (output.when(event.at), event.provider, event.kind.replace("_", " "), _data(event))
        for event in events
    ]
    output.table(("at", "provider", "what", "~"), rows, "nothing: no provider had trouble")


def _data(event: ProviderEvent) -> str:
    return " ".join(f"{key}={value}" for key, value in event.data.items())
