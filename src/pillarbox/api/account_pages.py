"""The pages behind links in mails of accounts: a card with the portal's name and colours, a form, and nothing to run.

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
# Where a portal has none, or what it has is no colour.
ACCENT, ACCENT_TEXT = COLOURS["accent"], COLOURS["accent_text"]
# Letters of a name that are shown: more would push the button off a phone.
MAX_NAME_LENGTH = 80
# More than any manager of passwords makes, and a form stays small.
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
    """What a page asks: for which action, of whom, by which form."""

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
    """A page, and the policy under which a browser shows it."""

    html: str
    policy: str


def ask(question: ActionForm, look: Branding, language: str) -> HtmlPage:
    """The page that a link opens: looking at it changes nothing, its button does."""
    words = LANGUAGES[language]
    asking = words.set_password if question.with_password else _asking(words, question.action)
    told = words.wrong_code if question.wrong else question.refused
    body = (
        f"<h1>{escape(asking.title)}</h1>"
        f"<p>{escape(words.hello.format(name=question.person[:MAX_NAME_LENGTH]))}</p><p>{_said(asking.text, look)}</p>"
        f"{_wrong(told) if told else ''}{_form(question, asking, words)}"
        f"<footer><p>{escape(words.ignore)}</p></footer>"
    )
    return _page(asking.title, body, look, language)


def done(action: str, look: Branding, language: str, *, with_password: bool = False) -> HtmlPage:
    """What follows when the link counted."""
    words = LANGUAGES[language]
    asking = words.set_password if with_password else _asking(words, action)
    body = (
        f'<p class="mark" aria-hidden="true">✓</p><h1>{escape(asking.done)}</h1><p>{_said(asking.after, look)}</p>'
        f"{_onward(look)}<footer><p>{escape(words.close)}</p></footer>"
    )
    return _page(asking.done, body, look, language)


def ended(reason: str, look: Branding, language: str) -> HtmlPage:
    """Why a link does not count."""
    ending = LANGUAGES[language].endings[reason]
    body = f'<p class="mark off" aria-hidden="true">!</p><h1>{escape(ending.title)}</h1><p>{escape(ending.text)}</p>'
    return _page(ending.title, body, look, language)


def _asking(words: PageTexts, action: str) -> ActionTexts:
    return words.asking.get(action) or words.asking[""]


def _said(text: str, look: Branding) -> str:
    return escape(text.format(portal=look.name))


def _wrong(told: str) -> str:
    return f'<p class="bad" role="alert" id="wrong">{escape(told)}</p>'


def _form(question: ActionForm, asking: ActionTexts, words: PageTexts) -> str:
    """Posts to where the page is, by a relative address: a proxy may have put a folder in front."""
    hidden = "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
        for name, value in question.hidden.items()
    )
    target = escape(question.path.rpartition("/")[2])
    code = _code(words, question.wrong, question.code) if question.with_code else ""
    password = _passwords(words) if question.with_password else ""
    return f'<form method="post" action="{target}">{hidden}{code}{password}<button>{escape(asking.button)}</button></form>'


def _code(words: PageTexts, wrong: bool, typed: str) -> str:
    """A field for five digits; spaces may stand between them, as people copy them."""
    told = (
        'aria-describedby="wrong hint" aria-invalid="true"' if wrong else 'aria-describedby="hint"'
    )
    value = f' value="{escape(typed)}"' if typed else ""
    return (
        f'<label for="code">{escape(words.code)}</label>'
        f'<input id="code" name="code"{value} required autofocus autocomplete="one-time-code" inputmode="numeric"'
        rf' maxlength="20" pattern="\s*([0-9]\s*){{5}}" title="{escape(words.code_hint)}" {told}>'
        f'<p class="hint" id="hint">{escape(words.code_hint)}</p>'
    )


def _passwords(words: PageTexts) -> str:
    """Two fields for a new password: without a script, nobody could look at what they typed."""
    return "".join(
        f'<label for="{name}">{escape(label)}</label><input id="{name}" name="{name}" type="password" required'
        f' autocomplete="new-password" maxlength="{MAX_PASSWORD_LENGTH}">'
        for name, label in (("password", words.new_label), ("password_again", words.again_label))
    )


def _page(title: str, body: str, look: Branding, language: str) -> HtmlPage:
    colours = _colours(look.accent, look.accent_text)
    shown = f"{title} · {look.name}" if look.name else title
    html = (
        f'<!doctype html><html lang="{escape(language)}"><head><meta charset="utf-8"><title>{escape(shown)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="robots" content="noindex">'
        f"<style>{colours}</style><style>{STYLE}</style></head>"
        f"<body><main>{_header(look)}{body}</main>{_links(look)}</body></html>"
    )
    return HtmlPage(html, _policy(colours))


def _header(look: Branding) -> str:
    if not look.name:
        return ""
    initials = look.initials or look.name[:1]
    return f'<header><b aria-hidden="true">{escape(initials)}</b><span>{escape(look.name)}</span></header>'


def _onward(look: Branding) -> str:
    """Where to go from here: the first of the portal's links."""
    return f'<p class="onward">{_anchor(*look.links[0], "button")}</p>' if look.links else ""


def _links(look: Branding) -> str:
    shown = "".join(_anchor(words, to) for words, to in look.links)
    return f"<nav>{shown}</nav>" if shown else ""


def _anchor(words: str, to: str, kind: str = "") -> str:
    """A link to the web or to a mailbox; no other address is shown, for it might run something."""
    if not to.startswith(WEB):
        return ""
    look = f' class="{kind}"' if kind else ""
    return f'<a{look} href="{escape(to)}" rel="noreferrer">{escape(words)}</a>'


def _colours(accent: str, accent_text: str) -> str:
    one, other = (
        (accent, accent_text)
        if is_colour(accent) and is_colour(accent_text)
        else (ACCENT, ACCENT_TEXT)
    )
    return f":root{{--accent:{one};--accent-text:{other}}}"


@lru_cache(maxsize=256)
def _policy(colours: str) -> str:
    return policy(colours, STYLE, forms="'self'")
