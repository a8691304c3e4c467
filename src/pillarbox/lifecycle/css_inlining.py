"""Inlines CSS into the style attributes of a template's source, for mail clients. Pure.

It works on text that contains Jinja's tags, which an HTML parser would break; see docs/adr/0016.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_comment = re.compile(r"/\*.*?\*/", re.DOTALL)
_variable = re.compile(r"var\(--([a-z][a-z-]*)\)")
_selector = re.compile(r"\.([A-Za-z][\w-]*)")
# A tag; quoted values are matched whole, because they may contain a `>`.
_tag = re.compile(r"""<[A-Za-z](?:"[^"]*"|'[^']*'|[^<>"'])*+>""")
_jinja = re.compile(r"\{[{%#]")
_ENDS = {"{{": "}}", "{%": "%}", "{#": "#}"}
# Placeholders of Jinja's tags: two private-use characters around the line ends of the tag.
_OPEN, _CLOSE = "\ue000", "\ue001"
_placeholder = re.compile(f"{_OPEN}\n*{_CLOSE}")
_html_comment = re.compile(r"<!--.*?-->", re.DOTALL)
_class_attribute = re.compile(r"""\sclass\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_style_attribute = re.compile(r"""\sstyle\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_sheet = re.compile(r"""<link\s+rel="stylesheet"\s+href="style\.css"\s*/?>""")


class InliningError(Exception):
    """A style sheet or template cannot be inlined; `line` says where."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class StyleSheet(NamedTuple):
    """A parsed style sheet: the declarations of each class, and its @media rules as text."""

    classes: Mapping[str, str]
    media: str


def parse(css: str, variables: Mapping[str, str]) -> StyleSheet:
    """Parse a style sheet, with the portal's colours in place of `var(--…)`."""
    css = _comment.sub(lambda comment: _line_ends(comment[0]), css)
    css = _replace_variables(css, variables)
    classes: dict[str, list[str]] = {}
    media: list[str] = []
    position = 0
    while True:
        start = css.find("{", position)
        if start < 0:
            break
        selectors = css[position:start].strip()
        end = _block_end(css, start)
        if selectors.startswith("@media"):
            media.append(" ".join(css[position:end].split()))
        else:
            _add_rule(
                classes,
                selectors,
                css[start + 1 : end - 1],
                _line(css, start),
            )
        position = end
    if css[position:].strip():
        line = _line(css, len(css.rstrip()))
        raise InliningError("there is text after the last rule", line)
    joined = {name: " ".join(declarations) for name, declarations in classes.items()}
    return StyleSheet(joined, " ".join(media))


def _line_ends(text: str) -> str:
    """The line ends of a text, so that the lines after it keep their numbers."""
    return "\n" * text.count("\n")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _replace_variables(css: str, variables: Mapping[str, str]) -> str:
    def value_of(variable: re.Match[str]) -> str:
        name = variable[1]
        if name not in variables:
            line = _line(css, variable.start())
            raise InliningError(f"the portal has no colour {name!r}", line)
        return variables[name]

    return _variable.sub(value_of, css)


def _block_end(css: str, start: int) -> int:
    """The position after the brace that closes the one at `start`."""
    depth = 0
    for brace in re.finditer(r"[{}]", css[start:]):
        if brace[0] == "{":
            depth += 1
        else:
            depth -= 1
        if depth == 0:
            return start + brace.end()
    raise InliningError("a brace is not closed", _line(css, start))


def _add_rule(
    classes: dict[str, list[str]],
    selectors: str,
    body: str,
    line: int,
) -> None:
    if re.search(r"[{}\"]", body):
        raise InliningError("a rule must not contain braces or double quotes", line)
    declarations = " ".join(body.split())
    if declarations and not declarations.endswith(";"):
        declarations += ";"
    for selector in selectors.split(","):
        name = _selector.fullmatch(selector.strip())
        if name is None:
            raise InliningError(
                f"only plain classes can be inlined, not {selector.strip()!r}", line
            )
        classes.setdefault(name[1], []).append(declarations)


def inline(source: str, style: StyleSheet) -> str:
    """The source of a template with the styles of all classes; line numbers do not change."""
    if _OPEN in source or _CLOSE in source:
        raise InliningError("U+E000 and U+E001 must not be used in templates")
    html, jinja_tags = _extract_jinja(source)
    pieces: list[str] = []
    position = 0
    for comment in _html_comment.finditer(html):
        pieces.append(
            _inline_range(
                html,
                position,
                comment.start(),
                style,
            )
        )
        pieces.append(comment[0])
        position = comment.end()
    pieces.append(
        _inline_range(
            html,
            position,
            len(html),
            style,
        )
    )
    remaining_tags = iter(jinja_tags)
    inlined = _placeholder.sub(lambda _: next(remaining_tags), "".join(pieces))
    media = f"<style>{{% raw %}}{style.media}{{% endraw %}}</style>"
    return _sheet.sub(lambda _: media, inlined)


def _extract_jinja(source: str) -> tuple[str, list[str]]:
    """The source with placeholders for Jinja's tags, and the tags."""
    pieces: list[str] = []
    tags: list[str] = []
    position = 0
    while True:
        begin = _jinja.search(source, position)
        if begin is None:
            break
        end = source.find(_ENDS[begin[0]], begin.end())
        if end < 0:
            break  # Jinja reports the error with its line
        tag = source[begin.start() : end + 2]
        tags.append(tag)
        pieces += [source[position : begin.start()], _OPEN, _line_ends(tag), _CLOSE]
        position = end + 2
    pieces.append(source[position:])
    return "".join(pieces), tags


def _inline_range(
    html: str,
    start: int,
    end: int,
    style: StyleSheet,
) -> str:
    def inline_tag(tag: re.Match[str]) -> str:
        return _inline_tag(tag[0], style, _line(html, start + tag.start()))

    return _tag.sub(inline_tag, html[start:end])


def _inline_tag(
    tag: str,
    style: StyleSheet,
    line: int,
) -> str:
    """One tag; its own style attribute comes last, and so wins."""
    attribute = _class_attribute.search(tag)
    if attribute is None:
        return tag
    names = _value(attribute)
    if _OPEN in names:
        raise InliningError(
            "class names must be constant: styles are inlined before values are known", line
        )
    declarations = [style.classes[name] for name in names.split() if name in style.classes]
    if not declarations:
        return tag
    own_style = _style_attribute.search(tag)
    if own_style is None:
        begin = end = attribute.end()
    else:
        begin, end = own_style.span()
        declarations.append(_value(own_style))
    return f'{tag[:begin]} style="{" ".join(declarations)}"{tag[end:]}'


def _value(attribute: re.Match[str]) -> str:
    """The value of an attribute, in double or single quotes."""
    return attribute[1] or attribute[2] or ""


def classes_in(html: str) -> set[str]:
    """The names of all classes in HTML."""
    names = set[str]()
    for attribute in _class_attribute.finditer(html):
        names.update(_value(attribute).split())
    return names
