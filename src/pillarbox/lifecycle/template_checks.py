"""Checks templates before a mail is sent: renders them with sample data and inspects the result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pillarbox.errors import RenderError
from pillarbox.lifecycle.css_inlining import classes_in
from pillarbox.lifecycle.rendering import RenderedMail, Templates
from pillarbox.lifecycle.template_files import PARTS

# Bytes of HTML: Gmail shows 102 KB and hides the rest, which may contain the link.
MAX_HTML_BYTES = 100_000
# Characters of a subject: mail clients on phones show about half as many.
MAX_SUBJECT_LENGTH = 100
# The variables of every lifecycle mail; a template's sample.json adds to them or replaces them.
SAMPLE: Mapping[str, Any] = {
    "account": {"login": "ada", "name": "Ada Lovelace", "email": "ada@example.com"},
    "link": (
        "https://accounts.example.com/activate?token="
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh_6nSHtQPxHcOGxB4n"
    ),
    "code": "00042",
    "expires_minutes": 15,
    "expires_at": "2026-01-31T12:15:00+00:00",
    "action": "activation",
}
# Variables that make a mail useful: if one part shows one, all parts must show it.
_ESSENTIAL = ("link", "code")
_VOID_TAGS = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track",
    "wbr",
})  # fmt: skip
# Tags that HTML allows to leave open.
_OPTIONAL_END_TAGS = frozenset({"p", "li", "td", "tr", "tbody", "th"})
# Mail clients remove them.
_FORBIDDEN_TAGS = frozenset({"script", "form", "iframe", "object"})
_URL_ATTRIBUTES = frozenset({"href", "src", "background", "action", "poster"})
_url = re.compile(r"\b(?:https?|ftp)://[^\s<>\"]+")
_illegal_in_url = re.compile(r"[\s\"<>{}|\\^`]").search


class Finding(NamedTuple):
    """A problem of a template."""

    template: str
    locale: str | None
    part: str | None
    line: int | None
    problem: str


def sample_of(templates: Templates, name: str) -> dict[str, Any]:
    """Data to render a template with; RenderError if its sample.json is wrong."""
    text = templates.files.text(f"{name}/sample.json")
    if not text:
        return dict(SAMPLE)
    try:
        own = json.loads(text)
    except ValueError:
        raise RenderError(name, "sample.json is not JSON") from None
    if not isinstance(own, dict):
        raise RenderError(name, "sample.json must be an object")
    return {**SAMPLE, **own}


def check(templates: Templates, names: Iterable[str] | None = None) -> list[Finding]:
    """All problems of the templates with these names, or of all templates."""
    if names is None:
        names = templates.names()
    names = list(names)
    findings: list[Finding] = []
    for portal in sorted({_portal_of(name) for name in names}):
        findings += _check_portal(templates, portal)
    for name in names:
        findings += _missing_languages(templates, name)
        for locale in templates.locales(name):
            findings += _check_template(templates, name, locale)
    return findings


def _portal_of(name: str) -> str:
    return name.partition("/")[0]


def _check_portal(templates: Templates, key: str) -> Iterator[Finding]:
    """Whether the texts of a portal exist in all its languages."""
    file = f"{key}/portal.toml"
    try:
        portal = templates.portal(key)
    except RenderError as error:
        yield Finding(
            file,
            None,
            None,
            None,
            error.message,
        )
        return
    languages = _languages(templates, key)
    for name, texts in (("tagline", portal.tagline), ("links", portal.links)):
        if not texts:
            continue
        for locale in sorted(languages - texts.keys()):
            yield Finding(
                file,
                locale,
                None,
                None,
                f"{name} is missing in this language",
            )


def _languages(templates: Templates, portal: str) -> set[str]:
    """The languages of a portal: those of all its templates, and the default."""
    languages = {templates.default}
    for name in templates.names():
        if _portal_of(name) == portal:
            languages.update(templates.locales(name))
    return languages


def _missing_languages(templates: Templates, name: str) -> Iterator[Finding]:
    """The languages of the portal that this template lacks."""
    languages = _languages(templates, _portal_of(name))
    for locale in sorted(languages - set(templates.locales(name))):
        yield Finding(
            name,
            locale,
            None,
            None,
            "is missing in this language",
        )


def _check_template(
    templates: Templates,
    name: str,
    locale: str,
) -> Iterator[Finding]:
    parts = templates.files.templates[name][locale]
    for part in sorted(PARTS.keys() - parts):
        yield Finding(
            name,
            locale,
            part,
            None,
            f"there is no {locale}{PARTS[part]}",
        )
    try:
        rendered = templates.render(name, locale, sample_of(templates, name))
    except RenderError as error:
        is_reported = error.part == "subject" and "subject" not in parts
        if not is_reported:
            yield Finding(
                name,
                locale,
                error.part,
                error.line,
                _message(error, name),
            )
        return
    yield from _unknown_variables(templates, name, locale)
    for part, problem in _check_rendered(rendered):
        yield Finding(
            name,
            locale,
            part,
            None,
            problem,
        )
    for part, problem in _check_essential(templates, name, rendered):
        yield Finding(
            name,
            locale,
            part,
            None,
            problem,
        )
    for problem in _check_classes(templates, name, rendered):
        yield Finding(
            name,
            locale,
            "html",
            None,
            problem,
        )


def _message(error: RenderError, name: str) -> str:
    if error.template == name:
        return error.message
    return f"{error.template}: {error.message}"


def _unknown_variables(
    templates: Templates,
    name: str,
    locale: str,
) -> Iterator[Finding]:
    """Variables that are not in the sample; the sample must have all variables of a template."""
    known = sample_of(templates, name).keys()
    for part, variables in templates.variables(name, locale).items():
        for variable, line in sorted(variables.items()):
            if variable not in known:
                yield Finding(
                    name,
                    locale,
                    part,
                    line,
                    f"sample.json has no variable {variable}",
                )


def _check_rendered(rendered: RenderedMail) -> Iterator[tuple[str, str]]:
    if not rendered.subject:
        yield "subject", "it is empty"
    if len(rendered.subject) > MAX_SUBJECT_LENGTH:
        yield "subject", f"it is longer than {MAX_SUBJECT_LENGTH} characters"
    if rendered.text is not None:
        for problem in _check_text(rendered.text):
            yield "text", problem
    if rendered.html is not None:
        for problem in check_html(rendered.html):
            yield "html", problem


def _check_text(text: str) -> Iterator[str]:
    if not text.strip():
        yield "it is empty"
    for url in _url.findall(text):
        yield from _check_url(url.rstrip(".,;:!?)"))


def check_html(html: str) -> Iterator[str]:
    """The problems of an HTML part: its size, its tags, its URLs."""
    size = len(html.encode())
    if size > MAX_HTML_BYTES:
        yield f"it has {size // 1000} KB: Gmail hides everything after 102 KB"
    parser = _Parser()
    parser.feed(html)
    parser.close()
    yield from parser.problems
    for tag in parser.open_tags:
        if tag not in _OPTIONAL_END_TAGS:
            yield f"<{tag}> is not closed"


class _Parser(HTMLParser):
    """Collects the problems that HTML would cause in mail clients."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.open_tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _FORBIDDEN_TAGS:
            self.problems.append(f"<{tag}> does not work in mails")
        for name, value in attrs:
            if name in _URL_ATTRIBUTES:
                self.problems += _check_attribute(tag, name, value or "")
            elif name.startswith("on"):
                self.problems.append(f"{name} does not work in mails")
        if tag not in _VOID_TAGS:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID_TAGS:
            self.open_tags.pop()

    def handle_endtag(self, tag: str) -> None:
        while self.open_tags:
            innermost = self.open_tags[-1]
            if innermost == tag or innermost not in _OPTIONAL_END_TAGS:
                break
            self.open_tags.pop()
        if self.open_tags and self.open_tags[-1] == tag:
            self.open_tags.pop()
        elif tag not in _OPTIONAL_END_TAGS:
            self.problems.append(f"</{tag}> closes no open tag")


def _check_attribute(
    tag: str,
    name: str,
    value: str,
) -> Iterator[str]:
    if name == "href" and tag == "a":
        yield from _check_url(value)
    elif value.startswith("cid:"):
        yield f"{value[:40]}: templates cannot have attachments"
    else:
        yield f"<{tag} {name}>: mail clients load nothing external until the reader allows it"


def _check_url(url: str) -> Iterator[str]:
    shown = repr(url[:60])
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 -- raises if it is illegal
    except ValueError:
        yield f"{shown} is not a legal URL"
        return
    if not parts.scheme and not parts.netloc:
        yield f"{shown} is a relative URL: a mail has no base URL"
    elif parts.scheme == "mailto":
        if "@" not in parts.path:
            yield f"{shown} has no address"
    elif parts.scheme != "https":
        yield f"{shown} is not https"
    elif not parts.hostname or _illegal_in_url(url):
        yield f"{shown} is not a legal URL"


def _check_essential(
    templates: Templates,
    name: str,
    rendered: RenderedMail,
) -> Iterator[tuple[str, str]]:
    """A link or code that a part of any language shows must be in both parts of this one."""
    data = sample_of(templates, name)
    for variable in _ESSENTIAL:
        value = str(data.get(variable) or "")
        if not value or not _is_used(templates, name, variable):
            continue
        for part, text in (("text", rendered.text), ("html", rendered.html)):
            if text is not None and value not in text.replace("&amp;", "&"):
                yield part, f"it does not show {variable}, but another part or language does"


def _is_used(
    templates: Templates,
    name: str,
    variable: str,
) -> bool:
    """Whether any file of a template uses a variable."""
    usage = re.compile(rf"\{{[{{%][^}}]*\b{variable}\b")
    files = templates.files.files.items()
    own_files = [file for file_name, file in files if file_name.startswith(f"{name}/")]
    return any(usage.search(file.text) for file in own_files)


def _check_classes(
    templates: Templates,
    name: str,
    rendered: RenderedMail,
) -> Iterator[str]:
    style = templates.style(_portal_of(name))
    used = classes_in(rendered.html or "")
    for unknown in sorted(used - style.classes.keys()):
        if f".{unknown}" not in style.media:
            yield f"no style.css defines the class {unknown}"
