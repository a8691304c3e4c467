"""What may be said about a route when it is made or changed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pillarbox.errors import InvalidMail, UnknownName
from pillarbox.model.access_settings import MAX_INTEGER, checked_domains
from pillarbox.model.delivery import LANES
from pillarbox.model.routing import RuleMatch

# Every mail is compared with all of them.
MAX_WORDS = 100
# Longer ones fit no mail that we accept.
LONGEST_WORD = 998
# A mail goes from one to the next in one claim: more would be tried for minutes.
MAX_PROVIDERS = 20
# Beyond a million a weight says nothing that a smaller one does not.
HEAVIEST = 1_000_000


def checked_match(given: Mapping[str, Any], before: RuleMatch | None = None) -> RuleMatch:
    """Conditions as they are kept, over those that held before; InvalidMail says which is wrong."""
    checked = {field: _CHECKS[field](field, value) for field, value in given.items()}
    match = replace(before or RuleMatch(), **checked)
    if (
        match.min_size is not None
        and match.max_size is not None
        and match.min_size > match.max_size
    ):
        _refuse(
            "out_of_range",
            "min_size",
            "is more than max_size: no mail would fit",
            "change one of them",
        )
    return match


def checked_providers(names: Sequence[str], known: Mapping[str, int]) -> tuple[int, ...]:
    """The ids of the providers of a route, in order; `known` are the ids of those that are there."""
    if not names:
        _refuse(
            "missing",
            "providers",
            "a route needs a provider or more",
            "see: pillarbox provider list",
        )
    if len(names) > MAX_PROVIDERS:
        _refuse("too_many", "providers", f"at most {MAX_PROVIDERS} providers")
    for place, name in enumerate(names):
        if name not in known:
            raise UnknownName(
                "unknown_provider",
                "providers",
                f"there is no provider {name!r}",
                "see: pillarbox provider list",
            )
        if name in names[:place]:
            _refuse("duplicate", "providers", f"{name!r} is named twice")
    return tuple(known[name] for name in names)


def checked_weights(
    weights: Mapping[str, int] | None, providers: Sequence[str]
) -> tuple[int, ...] | None:
    """The weights in the order of the providers; one that is given none has 0: it takes over, and is never drawn."""
    if not weights:
        return None
    for name, weight in weights.items():
        if name not in providers:
            _refuse(
                "unknown_provider",
                "weights",
                f"{name!r} is no provider of this route",
                "name it there, too",
            )
        if not 0 <= weight <= HEAVIEST:
            _refuse("out_of_range", "weights", f"a weight is 0 to {HEAVIEST}")
    if sum(weights.values()) <= 0:
        _refuse(
            "out_of_range",
            "weights",
            "one of the weights must be more than 0",
            "leave them out for an order",
        )
    return tuple(weights.get(name, 0) for name in providers)


def _domains(field: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    return checked_domains(field, given or ()) or None


def _words(field: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    if given and len(given) > MAX_WORDS:
        _refuse("too_many", field, f"at most {MAX_WORDS}")
    for one in given or ():
        if not one or len(one) > LONGEST_WORD or "\0" in one:
            _refuse("bad_value", field, f"must have 1 to {LONGEST_WORD} characters, and no NUL")
    return tuple(dict.fromkeys(given or ())) or None


def _lanes(field: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    for one in given or ():
        if one not in LANES:
            raise UnknownName("unknown_lane", field, f"must be one or more of {', '.join(LANES)}")
    return tuple(lane for lane in LANES if lane in (given or ())) or None


def _size(field: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= MAX_INTEGER:
        _refuse(
            "out_of_range", field, f"must be 0 to {MAX_INTEGER} octets", "leave it out for any size"
        )
    return value


def _refuse(code: str, field: str, message: str, hint: str | None = None) -> None:
    raise InvalidMail(code, field, message, hint)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "sender_domains": _domains,
    "recipient_domains": _domains,
    "tags": _words,
    "lanes": _lanes,
    "classes": _words,
    "kinds": _words,
    "min_size": _size,
    "max_size": _size,
}
CONDITIONS = tuple(_CHECKS)
