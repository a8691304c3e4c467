"""What may be wrong with templates, found before a mail is sent: rendered with sample data, and looked at."""

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

# Octets of HTML: Gmail shows 102 KB and hides the rest, which may hold the link.
LARGEST_HTML = 100_000
# Characters of a subject: programs on phones show about half as many.
LONGEST_SUBJECT = 100
# What every lifecycle mail has, as somebody might see it; sample.json of a template adds to it, or
# changes it.
SAMPLE: Mapping[str, Any] = {
    "account": {"login": "ada", "name": "Ada Lovelace", "email": "ada@example.com"},
    "link": "https://accounts.example.com/activate?token=AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh_6nSHtQPxHcOGxB4n",
    "code": "00042",
    "expires_minutes": 15,
    "expires_at": "2026-01-31T12:15:00+00:00",
    "action": "activation",
}
# What makes a mail useful: shown in one part, it must be in all.
_VITAL = ("link", "code")
_VOID = frozenset(
    {
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "source",
        "track",
        "wbr",
    }
)
# What an author may leave open, by the rules of HTML.
_OPTIONAL = frozenset({"p", "li", "td", "tr", "tbody", "th"})
_ADDRESSES = {"href", "src", "background", "action", "poster"}
_url = re.compile(r"\b(?:https?|ftp)://[^\s<>\"]+")


class Finding(NamedTuple):
    """Something that should be mended."""

    template: str
    locale: str | None
    part: str | None
    line: int | None
    problem: str


def sample_of(templates: Templates, name: str) -> dict[str, Any]:
    """Data to try a template with; RenderError if its sample.json cannot be read."""
    text = templates.sources.text(f"{name}/sample.json")
    try:
        own = json.loads(text) if text else {}
    except ValueError:
        raise RenderError(name, "sample.json is not JSON") from None
    if not isinstance(own, dict):
        raise RenderError(name, "sample.json must be an object")
    return {**SAMPLE, **own}


def check(templates: Templates, names: Iterable[str] | None = None) -> list[Finding]:
    """Everything that is wrong with the templates of these names, or with all."""
    wanted = templates.names() if names is None else list(names)
    found: list[Finding] = []
    for portal in sorted({name.partition("/")[0] for name in wanted}):
        found += _check_portal(templates, portal)
    for name in wanted:
        found += _missing_languages(templates, name)
        for locale in templates.locales(name):
            found += _check_one(templates, name, locale)
    return found


def _check_portal(templates: Templates, key: str) -> Iterator[Finding]:
    """Whether the words of a portal are there in all its languages."""
    file = f"{key}/portal.toml"
    try:
        portal = templates.portal(key)
    except RenderError as error:
        yield Finding(file, None, None, None, error.message)
        return
    for name, words in (("tagline", portal.tagline), ("links", portal.links)):
        for locale in sorted(_languages(templates, key) - words.keys()) if words else ():
            yield Finding(file, locale, None, None, f"{name} is missing in this language")


def _languages(templates: Templates, portal: str) -> set[str]:
    """The languages of a portal: each that one of its templates has, and the default."""
    own = [one for one in templates.names() if one.startswith(f"{portal}/")]
    return {locale for one in own for locale in templates.locales(one)} | {templates.default}


def _missing_languages(templates: Templates, name: str) -> Iterator[Finding]:
    """The languages that other templates of the portal have, and this one lacks."""
    for locale in sorted(
        _languages(templates, name.partition("/")[0]) - set(templates.locales(name))
    ):
        yield Finding(name, locale, None, None, "is missing in this language")


def _check_one(templates: Templates, name: str, locale: str) -> Iterator[Finding]:
    parts = templates.sources.templates[name][locale]
    for part in sorted(PARTS.keys() - parts):
        yield Finding(name, locale, part, None, f"there is no {locale}{PARTS[part]}")
    try:
        rendered = templates.render(name, locale, sample_of(templates, name))
    except RenderError as error:
        if not (error.part == "subject" and "subject" not in parts):  # said already
            yield Finding(name, locale, error.part, error.line, _told(error, name))
        return
    yield from _unknown_variables(templates, name, locale)
    for part, problem in _check_rendered(rendered):
        yield Finding(name, locale, part, None, problem)
    for part, problem in _check_vital(templates, name, rendered):
        yield Finding(name, locale, part, None, problem)
    for problem in _check_classes(templates, name, rendered):
        yield Finding(name, locale, "html", None, problem)


def _told(error: RenderError, name: str) -> str:
    return error.message if error.template == name else f"{error.template}: {error.message}"


def _unknown_variables(templates: Templates, name: str, locale: str) -> Iterator[Finding]:
    """Variables that only show up in other mails than the sample; all that a template may use are in it."""
    known = sample_of(templates, name).keys()
    for part, variables in templates.variables(name, locale).items():
        for variable, line in sorted(variables.items()):
            if variable not in known:
                yield Finding(name, locale, part, line, f"sample.json has no variable {variable}")


def _check_rendered(rendered: RenderedMail) -> Iterator[tuple[str, str]]:
    if not rendered.subject:
        yield "subject", "it is empty"
    if len(rendered.subject) > LONGEST_SUBJECT:
        yield "subject", f"it is longer than {LONGEST_SUBJECT} characters"
    if rendered.text is not None:
        yield from (("text", problem) for problem in _check_text(rendered.text))
    if rendered.html is not None:
        yield from (("html", problem) for problem in check_html(rendered.html))


def _check_text(text: str) -> Iterator[str]:
    if not text.strip():
        yield "it is empty"
    for url in _url.findall(text):
        yield from _check_url(url.rstrip(".,;:!?)"))


def check_html(html: str) -> Iterator[str]:
    """What is wrong with an HTML part: its size, its tags, its addresses."""
    if (size := len(html.encode())) > LARGEST_HTML:
        yield f"it has {size // 1000} KB: Gmail hides what comes after 102"
    parser = _Parser()
    parser.feed(html)
    parser.close()
    yield from parser.problems
    yield from (f"<{tag}> is not closed" for tag, _ in parser.open if tag not in _OPTIONAL)


class _Parser(HTMLParser):
    """Walks over HTML and notes what a mail program would stumble over."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.open: list[tuple[str, int]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "form", "iframe", "object"):
            self.problems.append(f"<{tag}> does not work in mails")
        for name, value in attrs:
            if name in _ADDRESSES:
                self.problems += _check_address(tag, name, value or "")
            elif name.startswith("on"):
                self.problems.append(f"{name} does not work in mails")
        if tag not in _VOID:
            self.open.append((tag, self.getpos()[0]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1][0] != tag and self.open[-1][0] in _OPTIONAL:
            self.open.pop()
        if self.open and self.open[-1][0] == tag:
            self.open.pop()
        elif tag not in _OPTIONAL:
            self.problems.append(f"</{tag}> closes nothing that is open there")


def _check_address(tag: str, name: str, value: str) -> Iterator[str]:
    if name == "href" and tag == "a":
        yield from _check_url(value)
    elif value.startswith("cid:"):
        yield f"{value[:40]}: templates have no files of their own"
    else:
        yield f"<{tag} {name}>: nothing is fetched from elsewhere until the reader allows it"


def _check_url(url: str) -> Iterator[str]:
    shown = repr(url[:60])
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 -- raises if it is none
    except ValueError:
        yield f"{shown} is not a legal address"
        return
    if not parts.scheme and not parts.netloc:
        yield f"{shown} leads nowhere: a mail has no place that it could be relative to"
    elif parts.scheme == "mailto":
        if "@" not in parts.path:
            yield f"{shown} has no address"
    elif parts.scheme != "https":
        yield f"{shown} is not https"
    elif not parts.hostname or re.search(r"[\s\"<>{}|\\^`]", url):
        yield f"{shown} is not a legal address"


def _check_vital(
    templates: Templates, name: str, rendered: RenderedMail
) -> Iterator[tuple[str, str]]:
    """A link or code that some part of some language shows must be in both parts of this one."""
    data = sample_of(templates, name)
    for variable in _VITAL:
        value = str(data.get(variable) or "")
        if not value or not _is_used(templates, name, variable):
            continue
        for part, text in (("text", rendered.text), ("html", rendered.html)):
            if text is not None and value not in text.replace("&amp;", "&"):
                yield part, f"it does not show {variable}, which another part or language does"


def _is_used(templates: Templates, name: str, variable: str) -> bool:
    """Whether any file of a template names a variable."""
    word = re.compile(rf"\{{[{{%][^}}]*\b{variable}\b")
    files = (
        text.text for file, text in templates.sources.files.items() if file.startswith(f"{name}/")
    )
    return any(word.search(text) for text in files)


def _check_classes(templates: Templates, name: str, rendered: RenderedMail) -> Iterator[str]:
    style = templates.style(name.partition("/")[0])
    for unknown in sorted(classes_in(rendered.html or "") - style.classes.keys()):
        if f".{unknown}" not in style.media:
            yield f"no style.css knows the class {unknown}"
