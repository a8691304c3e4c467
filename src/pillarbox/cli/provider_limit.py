"""`provider limit`: how fast mails leave through a provider, what they may cost, and what is kept for whom."""

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
# Of the table: twelve digits, four of them behind the point; fourteen, two.
PLACES = {"price_per_thousand": (Decimal(10) ** 8, 4), "budget_per_month": (Decimal(10) ** 12, 2)}


def limits(provider: Provider) -> dict[str, Any]:
    """A provider's limits by name."""
    return {name: getattr(provider, name) for name in (*RATES, *MONEY, *RESERVES)}


def shown(provider: Provider) -> dict[str, Any]:
    """As programs read them: money as numbers."""
    return {
        name: float(one) if isinstance(one, Decimal) else one
        for name, one in limits(provider).items()
    }


def _money(name: str) -> Any:
    most, places = PLACES[name]

    def read(value: str) -> Decimal:
        try:
            found = Decimal(value)
        except InvalidOperation:
            raise typer.BadParameter(f"{value!r}: give a number such as 0.85") from None
        if not (found.is_finite() and 0 <= found < most) or found != round(found, places):
            raise typer.BadParameter(
                f"{value!r}: must be from 0, with at most {places} places behind the point"
            )
        return found

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
    """Limit how many mails leave through a provider, and what they cost; more wait, and say so.

    What is not given stays. The reserves keep a part of the day's rate and of the month's budget
    for mails that matter: password resets still leave when a newsletter has eaten the rest.

    \b
    Examples:
      pillarbox provider limit relay --rate-per-second 14 --rate-per-day 50000
      pillarbox provider limit ses --price-per-thousand 0.10 --budget-per-month 200
      pillarbox provider limit relay --none
    """
    wanted = {
        "rate_per_second": rate_per_second, "rate_per_hour": rate_per_hour, "rate_per_day": rate_per_day,
        "price_per_thousand": price_per_thousand, "budget_per_month": budget_per_month,
        "reserve_urgent": reserve_urgent, "reserve_normal": reserve_normal,
    }  # fmt: skip
    if not none and all(one is None for one in wanted.values()):
        raise typer.BadParameter("give a limit, or --none to lift them all")
    async with context.app() as app:
        provider = await providers.get_provider(app.database, name)
        changed = _changed(limits(provider), wanted, none)
        await providers.limit_provider(app.database, name, *(changed[one] for one in RATES))
        await providers.price_provider(
            app.database, name, *(changed[one] for one in (*MONEY, *RESERVES))
        )
        provider = await providers.get_provider(app.database, name)
    output.print_json({"name": name, **shown(provider)}) if context.json else output.say(
        f"{name}: {_told(provider)}"
    )


def _changed(before: Mapping[str, Any], wanted: Mapping[str, Any], none: bool) -> dict[str, Any]:
    """What the limits become; wrong ones are refused before anything changes."""
    defaults: dict[str, Any] = {field.name: field.default for field in fields(Provider)}
    lifted = defaults if none else before
    after = {name: lifted[name] if wanted[name] is None else wanted[name] for name in before}
    if after["budget_per_month"] is not None and not after["price_per_thousand"]:
        raise typer.BadParameter("a budget needs a --price-per-thousand above 0")
    if after["reserve_urgent"] + after["reserve_normal"] > 100:
        raise typer.BadParameter(
            "--reserve-urgent and --reserve-normal make more than 100 percent together"
        )
    return after


def _told(provider: Provider) -> str:
    said = [
        f"{rate:,} {name.removeprefix('rate_').replace('_', ' ')}"
        for name in RATES
        if (rate := getattr(provider, name))
    ]
    if provider.price_per_thousand is not None:
        said.append(f"{provider.price_per_thousand.normalize():f} per thousand")
    if provider.budget_per_month is not None:
        said.append(f"{provider.budget_per_month:,} per month")
    kept = (
        f"{provider.reserve_urgent} % kept for urgent mails, {provider.reserve_normal} % from bulk"
    )
    return f"{', '.join(said)}; {kept}" if said else "no limit"
