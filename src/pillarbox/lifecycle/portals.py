"""Portals: the name, colours and texts that mails of a brand share (portal.toml in its folder)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LANGUAGE = "[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*"  # the common part of BCP 47
# Schemes of URLs in links: any other scheme could run code.
WEB = ("https://", "http://", "mailto:")
_language = re.compile(LANGUAGE).fullmatch
_colour = re.compile(r"#([0-9A-Fa-f]{3}|[0-9A-Fa-f]{6})").fullmatch
_colour_name = re.compile("[a-z][a-z_]*").fullmatch
COLOURS = {"accent": "#1f4fd8", "accent_text": "#ffffff", "background": "#f1f3f7", "ink": "#1c2330"}
_KEYS = {"name", "sender", "initials", "address", "support", "colours", "tagline", "links"}

Links = list[tuple[str, str]]


class PortalError(Exception):
    """A portal.toml is wrong; the text says what."""


@dataclass(frozen=True, slots=True)
class Portal:
    """What the mails and pages of one portal share."""

    key: str  # the name of its folder
    name: str
    initials: str
    sender: str | None = None
    address: str | None = None  # the postal address
    support: str | None = None
    colours: Mapping[str, str] = field(default_factory=lambda: dict(COLOURS))
    tagline: Mapping[str, str] = field(default_factory=dict)  # by language, as links
    links: Mapping[str, Links] = field(default_factory=dict)

    def seen_in(self, locale: str, default: str = "en") -> dict[str, Any]:
        """The variable `portal` of templates in a language."""
        return {
            "key": self.key,
            "name": self.name,
            "initials": self.initials,
            "address": self.address,
            "support": self.support,
            "colours": dict(self.colours),
            "tagline": _in_language(self.tagline, locale, default),
            "links": _in_language(self.links, locale, default) or [],
        }

    def css_variables(self) -> dict[str, str]:
        """The colours by their names in style sheets: `var(--accent-text)`."""
        return {name.replace("_", "-"): colour for name, colour in self.colours.items()}


def _in_language(
    values: Mapping[str, Any],
    locale: str,
    default: str,
) -> Any:
    """The value in the best language, else in any; None without any."""
    found = nearest(locale, default, values)
    if found is not None:
        return values[found]
    return next(iter(values.values()), None)


def nearest(
    locale: str,
    default: str,
    offered: Mapping[str, Any],
) -> str | None:
    """The offered language that fits best: de-AT, then de, then the default; None without one."""
    by_lower = {name.lower(): name for name in offered}
    for candidate in _candidates(locale, default):
        if candidate in by_lower:
            return by_lower[candidate]
    return None


def _candidates(*locales: str) -> Iterator[str]:
    """Each language, then without its last subtag, and so on (RFC 4647 "lookup")."""
    for locale in locales:
        subtags = locale.replace("_", "-").lower().split("-")
        while subtags:
            yield "-".join(subtags)
            subtags.pop()


def is_language(name: str) -> bool:
    return _language(name) is not None


def is_colour(text: str) -> bool:
    """Whether a text is a hexadecimal colour; styles contain it unescaped."""
    return _colour(text) is not None


def read_portal(key: str, text: str) -> Portal:
    """Parse a portal.toml; PortalError if it is wrong."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PortalError(f"is not TOML: {error}") from None
    unknown = sorted(values.keys() - _KEYS)
    if unknown:
        raise PortalError(f"{unknown[0]} is unknown; allowed are {', '.join(sorted(_KEYS))}")
    name = _text(values, "name") or key
    return Portal(
        key=key,
        name=name,
        initials=_text(values, "initials") or name[:1].upper(),
        sender=_text(values, "sender"),
        address=_text(values, "address"),
        support=_text(values, "support"),
        colours=_colours(values.get("colours", {})),
        tagline=_taglines(values.get("tagline", {})),
        links=_links(values.get("links", {})),
    )


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value.isprintable():
        raise PortalError(f"{name} must be a text of one line")
    return value


def _colours(table: object) -> dict[str, str]:
    colours = dict(COLOURS)
    for name, value in _table(table, "colours").items():
        if not _colour_name(name):
            raise PortalError(f"colours.{name}: a name must be small letters and _")
        if not isinstance(value, str) or not is_colour(value):
            raise PortalError(f"colours.{name} must be a colour such as #1f4fd8")
        colours[name] = value
    return colours


def _taglines(table: object) -> dict[str, str]:
    taglines = {}
    for locale, value in _by_language(table, "tagline"):
        taglines[locale] = _text({"tagline": value}, "tagline") or ""
    return taglines


def _links(table: object) -> dict[str, Links]:
    links = {}
    for locale, pairs in _by_language(table, "links"):
        if not isinstance(pairs, list):
            raise _bad_links(locale)
        links[locale] = [_link(pair, locale) for pair in pairs]
    return links


def _link(pair: object, locale: str) -> tuple[str, str]:
    match pair:
        case [str(label), str(url)] if url.startswith(WEB):
            return label, url
    raise _bad_links(locale)


def _bad_links(locale: str) -> PortalError:
    return PortalError(f'links.{locale} must be pairs such as [["Help", "https://help.example/"]]')


def _by_language(table: object, name: str) -> Iterator[tuple[str, Any]]:
    for locale, value in _table(table, name).items():
        if not is_language(locale):
            raise PortalError(f"{name}.{locale}: not a language tag such as en or de-AT")
        yield locale, value


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PortalError(f"{name} must be a table")
    return value
