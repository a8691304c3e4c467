"""Replaces `{{name}}` in the subject, text and html of a mail for many recipients. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import escape
from typing import Any

from pillarbox.accept.checks import MAX_BODY_OCTETS
from pillarbox.accept.mail import Mail
from pillarbox.errors import InvalidMail

Values = Mapping[str, str | int | float]
_placeholder = re.compile(r"\{\{ ?([A-Za-z_][A-Za-z0-9_.-]{0,63}) ?\}\}")
_FIELDS = ("subject", "text", "html")


class Template:
    """A mail with placeholders, parsed once for all recipients."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        # Literal texts and names by turns, as `split` gives them.
        self._parts = {
            name: _placeholder.split(text)
            for name in _FIELDS
            if (text := getattr(mail, name)) is not None
        }
        self._names = {name for parts in self._parts.values() for name in parts[1::2]}

    def fill(self, to: tuple[str, ...], values: Values, idempotency_key: str | None) -> Mail:
        """The mail for one recipient; InvalidMail if a value is missing or unused."""
        self._check(values)
        texts = {str(name): str(value) for name, value in values.items()}
        escaped = {name: escape(value) for name, value in texts.items()}
        filled: dict[str, Any] = {}
        for field, parts in self._parts.items():
            inserted = escaped if field == "html" else texts
            filled[field] = _join(field, parts, inserted)
        return replace(self._mail, to=to, idempotency_key=idempotency_key, **filled)

    def _check(self, values: Values) -> None:
        for name in sorted(self._names - values.keys()):
            raise InvalidMail(
                "missing_substitution", "substitutions", f"a value for {{{{{name}}}}} is missing"
            )
        for name in sorted(values.keys() - self._names):
            raise InvalidMail(
                "unknown_substitution",
                "substitutions",
                f"{{{{{name[:64]}}}}} does not occur in subject, text or html",
                "remove it, or correct its name",
            )


def _join(field: str, parts: list[str], values: Mapping[str, str]) -> str:
    """The text with its values; InvalidMail if it is larger than a body may be."""
    if sum(map(len, _pieces(parts, values))) > MAX_BODY_OCTETS:
        raise InvalidMail(
            "too_big", field, "must be at most 1 MiB with its substitutions", "send a link instead"
        )
    return "".join(_pieces(parts, values))


def _pieces(parts: list[str], values: Mapping[str, str]) -> Iterator[str]:
    return (values[part] if index % 2 else part for index, part in enumerate(parts))
