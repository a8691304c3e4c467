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
        bool, typer.Option("--events", help="What became of it lately, instead.")
    ] = False,
    limit: options.Limit = 50,
) -> None:
    """Show how the providers are: breaker, last check, pause, and how much of the month's budget is used.

    \b
    Examples:
      pillarbox provider health
      pillarbox provider health ses --events
      pillarbox provider health --json
    """
    async with context.app() as app:
        usage = [one for one in (await health.list_usage(app.database)).values() if not one.removed]
        found = [one for one in usage if name in (None, one.name)]
        if name is not None and not found:
            raise NotFound(f"there is no provider {name!r}: see `pillarbox provider list`")
        if events:
            told = await health.list_events(
                app.database, found[0].id if name is not None else None, limit
            )
            _tell_events(context, told)
            return
        rows = await health.list_health(app.database)
    shown = [(one, rows.get(one.id, HealthRow())) for one in found]
    if context.json:
        output.print_json([public(*one) for one in shown])
    elif name is not None:
        _tell(*shown[0])
    else:
        heads = ("name", "kind", "breaker", "since", "reason", "retry", "last check~", "budget~")
        output.table(
            heads,
            [_row(*one) for one in shown],
            "no provider: add one with `pillarbox provider add`",
        )


def public(use: ProviderUse, row: HealthRow) -> dict[str, Any]:
    """A provider's health as programs see it."""
    head = {
        "id": use.id,
        "name": use.name,
        "kind": use.kind,
        "enabled": use.enabled,
        "release_only": use.release_only,
    }
    told: dict[str, Any] = output.plain(head | output.plain(row) | {"budget": use.money})
    return told


def _row(use: ProviderUse, row: HealthRow) -> tuple[object, ...]:
    retry = output.ahead(row.retry_at) if row.state == "open" and row.retry_at else ""
    since = output.age(row.since) if row.since and row.state != "closed" else ""
    state = Text(row.state.replace("_", " "), style=STYLES[row.state])
    return (
        use.name, use.kind, state if use.enabled else Text("disabled", style="dim"), since, _reason(use, row), retry,
        _check(row), _budget(use),
    )  # fmt: skip


def _reason(use: ProviderUse, row: HealthRow) -> str | None:
    if row.held_until and row.held_until > use.at:
        return f"{row.reason or ''} paused until {output.when(row.held_until)}".strip()
    return row.reason if row.state != "closed" else None


def _check(row: HealthRow) -> Text:
    if row.check_ok is None or row.checked_at is None:
        return Text("")
    word = Text.assemble(("ok " if row.check_ok else "failed ", "green" if row.check_ok else "red"))
    return word.append(
        f"{output.ahead(row.checked_at)}{'' if row.check_ok else output.clean(f': {row.check_said}')}"
    )


def _budget(use: ProviderUse) -> Text:
    """Used money with a bar; what is near its end stands out."""
    if use.price_per_thousand is None:
        return Text("")
    if use.share is None:
        return Text(f"{use.spent:.2f}, no budget")
    full = min(BAR, round(use.share * BAR))
    style = "red" if use.share >= 1 else "yellow" if use.share >= NEAR_BUDGET else "green"
    bar = ("█" * full + "░" * (BAR - full), style)
    return Text.assemble(bar, f" {use.share:.0%} ({use.spent:.2f} of {use.budget_per_month})")


def _tell(use: ProviderUse, row: HealthRow) -> None:
    output.say(Text.assemble((output.clean(use.name), "bold"), (f" ({use.kind})", "dim")))
    limits = ", ".join(f"{one.limit:,} per {one.period}" for one in use.rates)
    output.pairs([
        ("enabled", "yes" if use.enabled else "no"),
        ("release only", "yes" if use.release_only else None),
        ("breaker", Text(row.state.replace("_", " "), style=STYLES[row.state])),
        ("since", output.when(row.since)), ("reason", row.reason),
        ("retry at", output.when(row.retry_at) if row.state == "open" else None),
        ("paused until", output.when(row.held_until) if row.held_until and row.held_until > use.at else None),
        ("opened", f"{output.counted(row.opened, 'time')} lately" if row.opened else None), ("last check", _check(row)),
        ("rates", limits), ("budget", _budget(use)),
        ("kept", f"{use.reserve_urgent} % for urgent mails, {use.reserve_normal} % from bulk ones"
         if use.budget_per_month is not None or any(one.period == "day" for one in use.rates) else None),
    ])  # fmt: skip


def _tell_events(context: CommandContext, found: list[ProviderEvent]) -> None:
    if context.json:
        output.print_json(found)
        return
    rows = [
        (output.when(one.at), one.provider, one.kind.replace("_", " "),
         " ".join(f"{key}={value}" for key, value in one.data.items()))
        for one in found
    ]  # fmt: skip
    output.table(("at", "provider", "what", "~"), rows, "nothing: no provider had trouble")
