"""Checks the values of a route when it is added or changed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pillarbox.errors import InvalidMail, UnknownName
from pillarbox.model.access_settings import MAX_INTEGER, checked_domains
from pillarbox.model.delivery import LANES
from pillarbox.model.routing import RuleMatch

# Every mail is compared with all of them.
MAX_VALUES = 100
# Longer values match no mail that is accepted.
LONGEST_VALUE = 998
# A mail fails over from one to the next in one claim: more would be tried for minutes.
MAX_PROVIDERS = 20
# Finer proportions than one in a million make no difference.
MAX_WEIGHT = 1_000_000


def checked_match(given: Mapping[str, Any], before: RuleMatch | None = None) -> RuleMatch:
    """The checked conditions, merged into those from before; InvalidMail names the wrong one."""
    checked = {field: _CHECKS[field](field, value) for field, value in given.items()}
    match = replace(before or RuleMatch(), **checked)
    smallest, largest = match.min_size, match.max_size
    if smallest is not None and largest is not None and smallest > largest:
        text = "is more than max_size: no mail would match"
        _refuse("out_of_range", "min_size", text, "change one of them")
    return match


def checked_providers(names: Sequence[str], known: Mapping[str, int]) -> tuple[int, ...]:
    """The ids of the providers of a route, in order; `known` has the ids of all providers."""
    if not names:
        text = "a route needs at least one provider"
        _refuse("missing", "providers", text, "see: pillarbox provider list")
    if len(names) > MAX_PROVIDERS:
        _refuse("too_many", "providers", f"at most {MAX_PROVIDERS} providers")
    for index, name in enumerate(names):
        if name not in known:
            raise UnknownName(
                "unknown_provider",
                "providers",
                f"there is no provider {name!r}",
                "see: pillarbox provider list",
            )
        if name in names[:index]:
            _refuse("duplicate", "providers", f"{name!r} is named twice")
    return tuple(known[name] for name in names)


def checked_weights(
    weights: Mapping[str, int] | None, providers: Sequence[str]
) -> tuple[int, ...] | None:
    """The weights in the order of the providers; 0 for a provider without a weight."""
    if not weights:
        return None
    for name, weight in weights.items():
        if name not in providers:
            text = f"{name!r} is not a provider of this route"
            _refuse("unknown_provider", "weights", text, "add it to the providers")
        if not 0 <= weight <= MAX_WEIGHT:
            _refuse("out_of_range", "weights", f"a weight must be 0 to {MAX_WEIGHT}")
    if sum(weights.values()) <= 0:
        text = "one of the weights must be more than 0"
        _refuse("out_of_range", "weights", text, "leave the weights out for a fixed order")
    return tuple(weights.get(name, 0) for name in providers)


def _domains(field: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    return checked_domains(field, given or ()) or None


def _values(field: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    values = given or ()
    if len(values) > MAX_VALUES:
        _refuse("too_many", field, f"at most {MAX_VALUES}")
    for value in values:
        if not value or len(value) > LONGEST_VALUE or "\0" in value:
            _refuse("bad_value", field, f"must have 1 to {LONGEST_VALUE} characters, and no NUL")
    return tuple(dict.fromkeys(values)) or None


def _lanes(field: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    values = given or ()
    for lane in values:
        if lane not in LANES:
            raise UnknownName("unknown_lane", field, f"must be one or more of {', '.join(LANES)}")
    return tuple(lane for lane in LANES if lane in values) or None


def _size(field: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= MAX_INTEGER:
        text = f"must be 0 to {MAX_INTEGER} bytes"
        _refuse("out_of_range", field, text, "leave it out for any size")
    return value


def _refuse(code: str, field: str, message: str, hint: str | None = None) -> None:
    raise InvalidMail(code, field, message, hint)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "sender_domains": _domains,
    "recipient_domains": _domains,
    "tags": _values,
    "lanes": _lanes,
    "classes": _values,
    "kinds": _values,
    "min_size": _size,
    "max_size": _size,
}
CONDITIONS = tuple(_CHECKS)
