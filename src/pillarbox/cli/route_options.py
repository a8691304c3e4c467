"""A route's conditions as options, and a route in words."""

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
    """A size such as 5MB; 0 is one, too."""
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
    """An option that gives one condition of a rule."""

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
FLAGS = {one.field: one.flag[2:] for one in OPTIONS}


def with_conditions(function: Callable[..., Any], *, clearing: bool) -> Callable[..., Any]:
    """Give a command an option for each condition, and one to clear it."""
    return options.with_options(function, "conditions", _options(clearing))


def _options(clearing: bool) -> Iterator[tuple[str, Any, Any]]:
    for one in OPTIONS:
        help = one.help if one.kind is int else f"{one.help[:-1]}; may be repeated."
        told = typer.Option(
            one.flag, metavar=one.metavar, help=help, parser=one.parser, show_default=False,
            rich_help_panel="Conditions",
        )  # fmt: skip
        yield one.field, Annotated[one.kind | None, told], None
        if clearing:
            told = typer.Option(
                f"--no-{one.flag[2:]}", help=f"Clear {one.flag}.", rich_help_panel="Clearing"
            )
            yield f"no_{one.field}", Annotated[bool, told], False


def given_conditions(conditions: dict[str, Any]) -> dict[str, Any]:
    """The conditions that were given or cleared."""
    changes = {}
    for one in OPTIONS:
        value, clear = conditions[one.field], conditions.get(f"no_{one.field}", False)
        given = value not in (None, [])
        if given and clear:
            raise typer.BadParameter(f"give {one.flag} or --no-{one.flag[2:]}, not both")
        if given or clear:
            changes[one.field] = None if clear else value
    return changes


def given_weights(given: list[str] | None) -> dict[str, int] | None:
    weights: dict[str, int] = {}
    for one in given or ():
        name, _, number = one.rpartition("=")
        if not name or not number.isdecimal():
            raise typer.BadParameter(f"{one!r}: write PROVIDER=N, such as relay=70")
        if name in weights:
            raise typer.BadParameter(f"{name!r} has two weights")
        weights[name] = int(number)
    return weights or None


def value_of(route: Route, field: str) -> str | None:
    value = getattr(route.rule.match, field)
    if isinstance(value, int):
        return show_size(value)
    return ", ".join(value) if value else None


def conditions_of(route: Route) -> str:
    """What a mail must be like, in one line."""
    told = ((FLAGS[field], value_of(route, field)) for field in CONDITIONS)
    return "; ".join(f"{name} {value}" for name, value in told if value is not None) or "every mail"


def providers_of(route: Route) -> str:
    """The providers in their order, with what is special about them."""
    weights = route.weights
    words = []
    for one in route.providers:
        state = " (removed)" if one.removed else "" if one.enabled else " (disabled)"
        words.append(f"{one.name}{f' {weights[one.name]}' if weights else ''}{state}")
    return (", " if weights else " → ").join(words)
