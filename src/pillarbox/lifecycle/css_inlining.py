"""Styles into style attributes, in the source of a template: many mail programs heed nothing else. Pure.

It works on text with Jinja's tags in it, which a library that parses HTML would tear apart;
docs/adr/0016 says more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_comment = re.compile(r"/\*.*?\*/", re.DOTALL)
_variable = re.compile(r"var\(--([a-z][a-z-]*)\)")
_selector = re.compile(r"\.([A-Za-z][\w-]*)")
# A tag; quoted values are taken whole, for they may hold a `>`.
_tag = re.compile(r"""<[A-Za-z](?:"[^"]*"|'[^']*'|[^<>"'])*+>""")
_jinja = re.compile(r"\{[{%#]")
_ENDS = {"{{": "}}", "{%": "%}", "{#": "#}"}
# What stands for Jinja's tags meanwhile: two characters that no text uses, and the line ends
# between.
_OPEN, _CLOSE = "\ue000", "\ue001"
_stand_in = re.compile(f"{_OPEN}\n*{_CLOSE}")
_passed_over = re.compile(r"<!--.*?-->", re.DOTALL)
_classes = re.compile(r"""\sclass\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_style = re.compile(r"""\sstyle\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_sheet = re.compile(r"""<link\s+rel="stylesheet"\s+href="style\.css"\s*/?>""")


class InliningError(Exception):
    """What a style sheet or template holds cannot be put into style attributes; `line` says where."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class StyleSheet(NamedTuple):
    """A style sheet taken apart: what each class says, and the @media rules, which stay rules."""

    classes: Mapping[str, str]
    media: str


def parse(css: str, variables: Mapping[str, str]) -> StyleSheet:
    """Take a style sheet apart, with the portal's colours in the place of `var(--…)`."""
    rest = _comment.sub(lambda found: _blank(found[0]), css)
    rest = _variable.sub(lambda found: _value(found, rest, variables), rest)
    classes: dict[str, list[str]] = {}
    media: list[str] = []
    place = 0
    while (start := rest.find("{", place)) >= 0:
        head = rest[place:start].strip()
        end = _end(rest, start)
        if head.startswith("@media"):
            media.append(" ".join(rest[place:end].split()))
        else:
            _add(classes, head, rest[start + 1 : end - 1], _line(rest, start))
        place = end
    if rest[place:].strip():
        raise InliningError(
            "there is something behind the last rule", _line(rest, len(rest.rstrip()))
        )
    return StyleSheet({name: " ".join(said) for name, said in classes.items()}, " ".join(media))


def _blank(text: str) -> str:
    """Nothing but a text's line ends, so that lines keep their numbers."""
    return "\n" * text.count("\n")


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _value(found: re.Match[str], css: str, variables: Mapping[str, str]) -> str:
    try:
        return variables[found[1]]
    except KeyError:
        raise InliningError(
            f"no portal has a colour {found[1]!r}", _line(css, found.start())
        ) from None


def _end(css: str, start: int) -> int:
    """Behind the brace that closes the one at `start`."""
    depth = 0
    for brace in re.finditer(r"[{}]", css[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return start + brace.end()
    raise InliningError("a brace is not closed", _line(css, start))


def _add(classes: dict[str, list[str]], head: str, body: str, line: int) -> None:
    if re.search(r"[{}\"]", body):
        raise InliningError("a rule may hold no braces and no double quotes", line)
    said = " ".join(body.split())
    said = said if said.endswith(";") or not said else said + ";"
    for selector in head.split(","):
        name = _selector.fullmatch(selector.strip())
        if name is None:
            raise InliningError(
                f"only plain classes can be put into elements, not {selector.strip()!r}", line
            )
        classes.setdefault(name[1], []).append(said)


def inline(source: str, style: StyleSheet) -> str:
    """A template's source with the styles of all classes in it; its lines stay where they are."""
    if _OPEN in source or _CLOSE in source:
        raise InliningError("U+E000 and U+E001 cannot be used here")
    plain, taken = _without_jinja(source)
    pieces: list[str] = []
    place = 0
    for passed in _passed_over.finditer(plain):
        pieces += _inlined(plain, place, passed.start(), style), passed[0]
        place = passed.end()
    made = "".join((*pieces, _inlined(plain, place, len(plain), style)))
    tags = iter(taken)
    made = _stand_in.sub(lambda _: next(tags), made)
    return _sheet.sub(lambda _: f"<style>{{% raw %}}{style.media}{{% endraw %}}</style>", made)


def _without_jinja(source: str) -> tuple[str, list[str]]:
    """The source with something in the place of Jinja's tags, and these."""
    pieces: list[str] = []
    tags: list[str] = []
    place = 0
    while found := _jinja.search(source, place):
        end = source.find(_ENDS[found[0]], found.end())
        if end < 0:
            break  # Jinja says what is wrong, and where
        tags.append(source[found.start() : end + 2])
        pieces += source[place : found.start()], _OPEN, _blank(tags[-1]), _CLOSE
        place = end + 2
    return "".join((*pieces, source[place:])), tags


def _inlined(source: str, start: int, end: int, style: StyleSheet) -> str:
    def styled(tag: re.Match[str]) -> str:
        return _styled(tag[0], style, _line(source, start + tag.start()))

    return _tag.sub(styled, source[start:end])


def _styled(tag: str, style: StyleSheet, line: int) -> str:
    """One tag; what it says of itself comes last, and so wins."""
    found = _classes.search(tag)
    if found is None:
        return tag
    names = found[1] or found[2] or ""
    if _OPEN in names:
        raise InliningError(
            "classes must be written out: the styles are put in before any value is known", line
        )
    said = [style.classes[name] for name in names.split() if name in style.classes]
    if not said:
        return tag
    own = _style.search(tag)
    if own is None:
        return f'{tag[: found.end()]} style="{" ".join(said)}"{tag[found.end() :]}'
    text = " ".join([*said, own[1] or own[2] or ""])
    return f'{tag[: own.start()]} style="{text}"{tag[own.end() :]}'


def classes_in(html: str) -> set[str]:
    """The names of all classes that HTML mentions."""
    return {
        name for found in _classes.finditer(html) for name in (found[1] or found[2] or "").split()
    }
