"""Portals: whose name, colours and words a mail carries (portal.toml in each portal's folder)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LANGUAGE = "[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*"  # BCP 47, as far as anybody writes it
# How an address begins that may stand in a link: any other might run something.
WEB = ("https://", "http://", "mailto:")
_language = re.compile(LANGUAGE).fullmatch
_colour = re.compile(r"#([0-9A-Fa-f]{3}|[0-9A-Fa-f]{6})").fullmatch
COLOURS = {"accent": "#1f4fd8", "accent_text": "#ffffff", "background": "#f1f3f7", "ink": "#1c2330"}
_KEYS = {"name", "sender", "initials", "address", "support", "colours", "tagline", "links"}

Links = list[tuple[str, str]]


class PortalError(Exception):
    """A portal.toml is wrong; the text says what."""


@dataclass(frozen=True, slots=True)
class Portal:
    """What mails and pages of one portal share."""

    key: str  # its folder
    name: str
    initials: str
    sender: str | None = None
    address: str | None = None  # the postal one
    support: str | None = None
    colours: Mapping[str, str] = field(default_factory=lambda: dict(COLOURS))
    tagline: Mapping[str, str] = field(default_factory=dict)  # by language, as links are
    links: Mapping[str, Links] = field(default_factory=dict)

    def seen_in(self, locale: str, default: str = "en") -> dict[str, Any]:
        """The portal as templates see it in a language."""
        return {
            "key": self.key,
            "name": self.name,
            "initials": self.initials,
            "address": self.address,
            "support": self.support,
            "colours": dict(self.colours),
            "tagline": _of(self.tagline, locale, default),
            "links": _of(self.links, locale, default) or [],
        }

    def css_variables(self) -> dict[str, str]:
        """The colours as style sheets name them: `var(--accent-text)`."""
        return {name.replace("_", "-"): value for name, value in self.colours.items()}


def _of(values: Mapping[str, Any], locale: str, default: str) -> Any:
    """The value for a language, or for the nearest one that there is; None without any."""
    found = nearest(locale, default, values)
    return next(iter(values.values()), None) if found is None else values[found]


def nearest(locale: str, default: str, offered: Mapping[str, Any]) -> str | None:
    """The language on offer that fits best: de-AT, then de, then the default; None if there is none of them."""
    names = {name.lower(): name for name in offered}
    return next((names[one] for one in _widening(locale, default) if one in names), None)


def _widening(*locales: str) -> Iterator[str]:
    """Languages to look for, each without its last part in turn (BCP 47, RFC 4647 "lookup")."""
    for locale in locales:
        parts = locale.replace("_", "-").lower().split("-")
        yield from ("-".join(parts[:count]) for count in range(len(parts), 0, -1))


def is_language(name: str) -> bool:
    return _language(name) is not None


def is_colour(text: str) -> bool:
    """Colours are put into styles as they are, so nothing else may pass for one."""
    return _colour(text) is not None


def read_portal(key: str, text: str) -> Portal:
    """A portal.toml; PortalError if it cannot be understood."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PortalError(f"is not TOML: {error}") from None
    if unknown := sorted(given.keys() - _KEYS):
        raise PortalError(f"{unknown[0]} is not known; known are {', '.join(sorted(_KEYS))}")
    name = _text(given, "name") or key
    return Portal(
        key, name, _text(given, "initials") or name[:1].upper(), _text(given, "sender"), _text(given, "address"),
        _text(given, "support"), _colours(given.get("colours", {})), _taglines(given.get("tagline", {})),
        _links(given.get("links", {})),
    )  # fmt: skip


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not (isinstance(value, str) and value.isprintable()):
        raise PortalError(f"{name} must be a text of one line")
    return value


def _colours(given: object) -> dict[str, str]:
    colours = dict(COLOURS)
    for name, value in _table(given, "colours").items():
        if re.fullmatch("[a-z][a-z_]*", name) is None:
            raise PortalError(f"colours.{name}: names are small letters and _")
        if not (isinstance(value, str) and is_colour(value)):
            raise PortalError(f"colours.{name} must be a colour such as #1f4fd8")
        colours[name] = value
    return colours


def _taglines(given: object) -> dict[str, str]:
    return {
        locale: _text({"tagline": one}, "tagline") or ""
        for locale, one in _by_language(given, "tagline")
    }


def _links(given: object) -> dict[str, Links]:
    return {
        locale: [_link(one, locale) for one in _list(all_, locale)]
        for locale, all_ in _by_language(given, "links")
    }


def _list(value: object, locale: str) -> list[object]:
    if not isinstance(value, list):
        raise PortalError(
            f'links.{locale} must be pairs such as [["Help", "https://help.example/"]]'
        )
    return value


def _link(value: object, locale: str) -> tuple[str, str]:
    match value:
        case [str(label), str(url)] if url.startswith(WEB):
            return label, url
    raise PortalError(f'links.{locale} must be pairs such as [["Help", "https://help.example/"]]')


def _by_language(given: object, name: str) -> Iterator[tuple[str, Any]]:
    for locale, value in _table(given, name).items():
        if not is_language(locale):
            raise PortalError(f"{name}.{locale}: this is no language tag such as en or de-AT")
        yield locale, value


def _table(given: object, name: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise PortalError(f"{name} must be a table")
    return given
