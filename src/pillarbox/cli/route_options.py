"""The conditions of a route as options, and a route as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pillarbox.cli import options
from pillarbox.model.delivery import LANES
from pillarbox.model.route_settings import CONDITIONS
from pillarbox.setting_kinds import show_size, size

if TYPE_CHECKING:
    from pillarbox.store.routes import Route


def octets(value: str) -> int:
    """Parse a size such as 5MB, or 0."""
    kind = size(0)
    try:
        return int(kind.read(value))
    except (ValueError, TypeError):
        raise typer.BadParameter(f"{value!r}: must be {kind.allowed}") from None


def lane(value: str) -> str:
    if value not in LANES:
        raise typer.BadParameter(f"{value!r}: must be one of {', '.join(LANES)}")
    return value


class Condition(NamedTuple):
    """An option for one condition of a rule."""

    field: str
    flag: str
    metavar: str
    help: str
    parser: Callable[[str], object] | None = None

    @property
    def kind(self) -> Any:
        return int if self.field.endswith("_size") else list[str]


OPTIONS = (
    Condition(
        "sender_domains",
        "--sender-domain",
        "DOMAIN",
        "Mails from here: example.com, *.example.com.",
    ),
    Condition("recipient_domains", "--recipient-domain", "DOMAIN", "Mails to here."),
    Condition("tags", "--tag", "TAG", "Mails with this tag."),
    Condition("lanes", "--lane", "LANE", "Mails of this lane: urgent, normal or bulk.", lane),
    Condition("classes", "--class", "NAME", "Mails of this class."),
    Condition("kinds", "--kind", "KIND", "Mails of this kind."),
    Condition("min_size", "--min-size", "SIZE", "Mails at least this large: 5MB.", octets),
    Condition("max_size", "--max-size", "SIZE", "Mails at most this large.", octets),
)
FLAGS = {option.field: option.flag[2:] for option in OPTIONS}


def with_conditions(function: Callable[..., Any], *, clearing: bool) -> Callable[..., Any]:
    """Add options for each condition to a command, and options to clear them."""
    return options.with_options(function, "conditions", _options(clearing))


def _options(clearing: bool) -> Iterator[tuple[str, Any, Any]]:
    for condition in OPTIONS:
        help = condition.help
        if condition.kind is not int:
            help = f"{help[:-1]}; may be repeated."
        option = typer.Option(
            condition.flag,
            metavar=condition.metavar,
            help=help,
            parser=condition.parser,
            show_default=False,
            rich_help_panel="Conditions",
        )
        yield condition.field, Annotated[condition.kind | None, option], None
        if clearing:
            clear = typer.Option(
                f"--no-{condition.flag[2:]}",
                help=f"Clear {condition.flag}.",
                rich_help_panel="Clearing",
            )
            yield f"no_{condition.field}", Annotated[bool, clear], False


def given_conditions(conditions: dict[str, Any]) -> dict[str, Any]:
    """The conditions that were given or cleared."""
    changes: dict[str, Any] = {}
    for option in OPTIONS:
        field, value = option.field, conditions[option.field]
        clear = conditions.get(f"no_{field}", False)
        is_given = value not in (None, [])
        if is_given and clear:
            raise typer.BadParameter(f"give {option.flag} or --no-{option.flag[2:]}, not both")
        if clear:
            changes[field] = None
        elif is_given:
            changes[field] = value
    return changes


def given_weights(given: list[str] | None) -> dict[str, int] | None:
    weights: dict[str, int] = {}
    for weight in given or ():
        name, _, number = weight.rpartition("=")
        if not name or not number.isdecimal():
            raise typer.BadParameter(f"{weight!r}: write PROVIDER=N, such as relay=70")
        if name in weights:
            raise typer.BadParameter(f"{name!r} has two weights")
        weights[name] = int(number)
    return weights or None


def value_of(route: Route, field: str) -> str | None:
    value = getattr(route.rule.match, field)
    if isinstance(value, int):
        return show_size(value)
    if not value:
        return None
    return ", ".join(value)


def conditions_of(route: Route) -> str:
    """The conditions of a route in one line."""
    texts = []
    for field in CONDITIONS:
        value = value_of(route, field)
        if value is not None:
            texts.append(f"{FLAGS[field]} {value}")
    return "; ".join(texts) or "every mail"


def providers_of(route: Route) -> str:
    """The providers in order, with their weights, and with a note if they are not usable."""
    weights = route.weights
    texts = []
    for provider in route.providers:
        text = provider.name
        if weights:
            text += f" {weights[provider.name]}"
        if provider.removed:
            text += " (removed)"
        elif not provider.enabled:
            text += " (disabled)"
        texts.append(text)
    return (", " if weights else " → ").join(texts)
