"""`provider limit`: the rates, the budget and the reserves of a provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer

from pillarbox.cli import output
from pillarbox.cli.command import CommandContext
from pillarbox.model.access_settings import MAX_INTEGER
from pillarbox.model.provider import Provider
from pillarbox.store import providers

RATES = ("rate_per_second", "rate_per_hour", "rate_per_day")
MONEY = ("price_per_thousand", "budget_per_month")
RESERVES = ("reserve_urgent", "reserve_normal")
# The limit and the decimal places of the table's columns.
PRECISION = {
    "price_per_thousand": (Decimal(10) ** 8, 4),
    "budget_per_month": (Decimal(10) ** 12, 2),
}


def limits(provider: Provider) -> dict[str, Any]:
    """A provider's limits by name."""
    return {name: getattr(provider, name) for name in (*RATES, *MONEY, *RESERVES)}


def shown(provider: Provider) -> dict[str, Any]:
    """A provider's limits as JSON: money as numbers."""
    values = limits(provider)
    for name in MONEY:
        if values[name] is not None:
            values[name] = float(values[name])
    return values


def _money(name: str) -> Any:
    limit, places = PRECISION[name]

    def read(value: str) -> Decimal:
        try:
            amount = Decimal(value)
        except InvalidOperation:
            raise typer.BadParameter(f"{value!r}: give a number such as 0.85") from None
        in_range = amount.is_finite() and 0 <= amount < limit
        if not in_range or amount != round(amount, places):
            raise typer.BadParameter(
                f"{value!r}: must be 0 or more, with at most {places} decimal places"
            )
        return amount

    return read


Rate = typer.Option(metavar="N", min=1, max=MAX_INTEGER, show_default=False)


def _share(help: str) -> Any:
    return typer.Option(metavar="PERCENT", min=0, max=100, show_default=False, help=help)


def _cost(name: str, help: str) -> Any:
    return typer.Option(metavar="MONEY", parser=_money(name), show_default=False, help=help)


async def limit(
    context: CommandContext,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in `provider list`.")],
    rate_per_second: Annotated[int | None, Rate] = None,
    rate_per_hour: Annotated[int | None, Rate] = None,
    rate_per_day: Annotated[int | None, Rate] = None,
    price_per_thousand: Annotated[
        Decimal | None, _cost("price_per_thousand", "What a thousand mails cost, in your currency.")
    ] = None,
    budget_per_month: Annotated[
        Decimal | None, _cost("budget_per_month", "What a month (UTC) may cost; needs a price.")
    ] = None,
    reserve_urgent: Annotated[
        int | None,
        _share("Of the day's rate and the month's budget, what is kept for urgent mails (10)."),
    ] = None,
    reserve_normal: Annotated[
        int | None,
        _share("What is kept, beside that, for normal and urgent mails: bulk cannot have it (20)."),
    ] = None,
    none: Annotated[
        bool, typer.Option("--none", help="Lift the limits that are not given.")
    ] = False,
) -> None:
    """Limit how many mails leave through a provider, and what they cost; other mails wait.

    Limits that are not given stay. The reserves keep a part of the day's rate and of the month's
    budget for important mails: password resets are still sent when a newsletter has used the rest.

    \b
    Examples:
      pillarbox provider limit relay --rate-per-second 14 --rate-per-day 50000
      pillarbox provider limit ses --price-per-thousand 0.10 --budget-per-month 200
      pillarbox provider limit relay --none
    """
    given = {
        "rate_per_second": rate_per_second,
        "rate_per_hour": rate_per_hour,
        "rate_per_day": rate_per_day,
        "price_per_thousand": price_per_thousand,
        "budget_per_month": budget_per_month,
        "reserve_urgent": reserve_urgent,
        "reserve_normal": reserve_normal,
    }
    if not none and all(value is None for value in given.values()):
        raise typer.BadParameter("give a limit, or --none to lift them all")
    async with context.app() as app:
        provider = await providers.get_provider(app.database, name)
        changed = _changed(limits(provider), given, none)
        rates = [changed[column] for column in RATES]
        budget = [changed[column] for column in (*MONEY, *RESERVES)]
        await providers.limit_provider(app.database, name, *rates)
        await providers.price_provider(app.database, name, *budget)
        provider = await providers.get_provider(app.database, name)
    if context.json:
        output.print_json({"name": name, **shown(provider)})
    else:
        output.say(f"{name}: {_described(provider)}")


def _changed(before: Mapping[str, Any], given: Mapping[str, Any], none: bool) -> dict[str, Any]:
    """The limits after the change; wrong ones are refused before anything changes."""
    after = dict(before)
    if none:
        after = {field.name: field.default for field in fields(Provider) if field.name in before}
    after |= {name: value for name, value in given.items() if value is not None}
    if after["budget_per_month"] is not None and not after["price_per_thousand"]:
        raise typer.BadParameter("a budget needs a --price-per-thousand above 0")
    if after["reserve_urgent"] + after["reserve_normal"] > 100:
        raise typer.BadParameter(
            "--reserve-urgent and --reserve-normal make more than 100 percent together"
        )
    return after


def _described(provider: Provider) -> str:
    words = []
    for name in RATES:
        rate = getattr(provider, name)
        if rate:
            words.append(f"{rate:,} {name.removeprefix('rate_').replace('_', ' ')}")
    if provider.price_per_thousand is not None:
        words.append(f"{provider.price_per_thousand.normalize():f} per thousand")
    if provider.budget_per_month is not None:
        words.append(f"{provider.budget_per_month:,} per month")
    if not words:
        return "no limit"
    urgent, normal = provider.reserve_urgent, provider.reserve_normal
    return f"{', '.join(words)}; {urgent} % kept for urgent mails, {normal} % from bulk"
