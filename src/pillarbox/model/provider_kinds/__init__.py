"""The kinds of providers: each module here declares one, as `KIND`. Adding a module adds a kind."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

from pillarbox.model.provider_kind import ProviderKind


def _declared() -> list[ProviderKind]:
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    return sorted((module.KIND for module in modules), key=lambda kind: kind.rank)


# By name, in the order of the default route.
KINDS: dict[str, ProviderKind] = {kind.name: kind for kind in _declared()}


@dataclass(frozen=True, slots=True)
class _NoSettings:
    """The settings of an unknown kind are not read."""


# A newer Pillarbox may have stored a kind that this one does not know: it is used last, if at all.
UNKNOWN = ProviderKind("unknown", "", _NoSettings, transport="", rank=1_000)


def kind_of(name: str) -> ProviderKind:
    """The record of a kind; that of an unknown kind when there is none of this name."""
    return KINDS.get(name, UNKNOWN)


def kinds_that_keep() -> list[str]:
    """The names of the kinds that keep mails instead of sending them out."""
    return [kind.name for kind in KINDS.values() if not kind.sends_out]
