"""The HTML of the account pages: a card with the portal's name and colours, and a form.

Pure: from values to HTML. Everything shown is escaped; colours are colours, or ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from importlib import resources
from typing import NamedTuple

from pillarbox.api.account_texts import LANGUAGES, ActionTexts, PageTexts
from pillarbox.api.status_pages import policy
from pillarbox.lifecycle.portals import COLOURS, WEB, is_colour

STYLE = resources.files(__package__).joinpath("account.css").read_text("utf-8")
# For portals without valid colours.
ACCENT, ACCENT_TEXT = COLOURS["accent"], COLOURS["accent_text"]
# Characters of a name that are shown: more would push the button off a small screen.
MAX_NAME_LENGTH = 80
# More than password managers generate.
MAX_PASSWORD_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Branding:
    """How a portal looks; without a name, a neutral page."""

    name: str = ""
    initials: str = ""
    accent: str = ACCENT
    accent_text: str = ACCENT_TEXT
    links: Sequence[tuple[str, str]] = ()  # words, address


NEUTRAL = Branding()


@dataclass(frozen=True, slots=True)
class ActionForm:
    """The form of an action: its fields, and the errors of the last attempt."""

    action: str
    path: str
    person: str
    with_code: bool
    hidden: Mapping[str, str] = field(repr=False)
    wrong: bool = False  # the code that was given before
    with_password: bool = False  # a new one is set here
    refused: str | None = None  # why the password that was given before was not taken
    code: str = field(
        default="", repr=False
    )  # as it was typed before, so that only the password is asked for again


class HtmlPage(NamedTuple):
    """A page and its Content-Security-Policy."""

    html: str
    policy: str


def ask(question: ActionForm, look: Branding, language: str) -> HtmlPage:
    """The page of a link: opening it changes nothing, its button does."""
    words = LANGUAGES[language]
    texts = _texts_of(words, question.action, question.with_password)
    error = words.wrong_code if question.wrong else question.refused
    hello = words.hello.format(name=question.person[:MAX_NAME_LENGTH])
    body = (
        f"<h1>{escape(texts.title)}</h1>"
        f"<p>{escape(hello)}</p><p>{_with_portal(texts.text, look)}</p>"
        f"{_error(error)}{_form(question, texts, words)}"
        f"<footer><p>{escape(words.ignore)}</p></footer>"
    )
    return _page(texts.title, body, look, language)


def done(action: str, look: Branding, language: str, *, with_password: bool = False) -> HtmlPage:
    """The page after the action was performed."""
    words = LANGUAGES[language]
    texts = _texts_of(words, action, with_password)
    body = (
        f'<p class="mark" aria-hidden="true">✓</p><h1>{escape(texts.done)}</h1>'
        f"<p>{_with_portal(texts.after, look)}</p>"
        f"{_onward(look)}<footer><p>{escape(words.close)}</p></footer>"
    )
    return _page(texts.done, body, look, language)


def ended(reason: str, look: Branding, language: str) -> HtmlPage:
    """The page that explains why a link is not valid."""
    ending = LANGUAGES[language].endings[reason]
    body = (
        '<p class="mark off" aria-hidden="true">!</p>'
        f"<h1>{escape(ending.title)}</h1><p>{escape(ending.text)}</p>"
    )
    return _page(ending.title, body, look, language)


def _texts_of(words: PageTexts, action: str, with_password: bool) -> ActionTexts:
    if with_password:
        return words.set_password
    return words.asking.get(action) or words.asking[""]


def _with_portal(text: str, look: Branding) -> str:
    return escape(text.format(portal=look.name))


def _error(text: str | None) -> str:
    if not text:
        return ""
    return f'<p class="bad" role="alert" id="wrong">{escape(text)}</p>'


def _form(question: ActionForm, texts: ActionTexts, words: PageTexts) -> str:
    """Posts to the page itself by a relative URL: a proxy may add a path prefix."""
    hidden = "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
        for name, value in question.hidden.items()
    )
    target = escape(question.path.rpartition("/")[2])
    fields = hidden
    if question.with_code:
        fields += _code(words, question.wrong, question.code)
    if question.with_password:
        fields += _passwords(words)
    button = f"<button>{escape(texts.button)}</button>"
    return f'<form method="post" action="{target}">{fields}{button}</form>'


def _code(words: PageTexts, wrong: bool, typed: str) -> str:
    """A field for five digits; spaces between them are allowed."""
    described = 'aria-describedby="hint"'
    if wrong:
        described = 'aria-describedby="wrong hint" aria-invalid="true"'
    value = f' value="{escape(typed)}"' if typed else ""
    return (
        f'<label for="code">{escape(words.code)}</label>'
        f'<input id="code" name="code"{value} required autofocus'
        ' autocomplete="one-time-code" inputmode="numeric"'
        r' maxlength="20" pattern="\s*([0-9]\s*){5}"'
        f' title="{escape(words.code_hint)}" {described}>'
        f'<p class="hint" id="hint">{escape(words.code_hint)}</p>'
    )


def _passwords(words: PageTexts) -> str:
    """Two fields for a new password: a page without scripts cannot show what was typed."""
    return "".join(
        f'<label for="{name}">{escape(label)}</label>'
        f'<input id="{name}" name="{name}" type="password" required'
        f' autocomplete="new-password" maxlength="{MAX_PASSWORD_LENGTH}">'
        for name, label in (("password", words.new_label), ("password_again", words.again_label))
    )


def _page(title: str, body: str, look: Branding, language: str) -> HtmlPage:
    colours = _colours(look.accent, look.accent_text)
    shown = f"{title} · {look.name}" if look.name else title
    html = (
        f'<!doctype html><html lang="{escape(language)}"><head><meta charset="utf-8">'
        f"<title>{escape(shown)}</title>"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="robots" content="noindex">'
        f"<style>{colours}</style><style>{STYLE}</style></head>"
        f"<body><main>{_header(look)}{body}</main>{_links(look)}</body></html>"
    )
    return HtmlPage(html, _policy(colours))


def _header(look: Branding) -> str:
    if not look.name:
        return ""
    initials = look.initials or look.name[:1]
    mark = f'<b aria-hidden="true">{escape(initials)}</b>'
    return f"<header>{mark}<span>{escape(look.name)}</span></header>"


def _onward(look: Branding) -> str:
    """A button to the first link of the portal."""
    if not look.links:
        return ""
    return f'<p class="onward">{_anchor(*look.links[0], "button")}</p>'


def _links(look: Branding) -> str:
    shown = "".join(_anchor(words, to) for words, to in look.links)
    return f"<nav>{shown}</nav>" if shown else ""


def _anchor(words: str, to: str, kind: str = "") -> str:
    """A link to the web or to a mailbox; other schemes might run a script."""
    if not to.startswith(WEB):
        return ""
    look = f' class="{kind}"' if kind else ""
    return f'<a{look} href="{escape(to)}" rel="noreferrer">{escape(words)}</a>'


def _colours(accent: str, accent_text: str) -> str:
    if not is_colour(accent) or not is_colour(accent_text):
        accent, accent_text = ACCENT, ACCENT_TEXT
    return f":root{{--accent:{accent};--accent-text:{accent_text}}}"


@lru_cache(maxsize=256)
def _policy(colours: str) -> str:
    return policy(colours, STYLE, forms="'self'")
