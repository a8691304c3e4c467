"""The pages behind links: everything is escaped, whatever its colour, in every language."""

from __future__ import annotations

import re
import string
from html.parser import HTMLParser

import pytest

from pillarbox.api import account_pages as pages
from pillarbox.api.account_pages import ACCENT, NEUTRAL, STYLE, ActionForm, Branding, HtmlPage
from pillarbox.api.account_texts import LANGUAGES, PageTexts, language_for
from pillarbox.lifecycle.signing import PATHS

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'&{portal}{0}%s"
LOOK = Branding("Hub", "H", "#bf4408", "#ffffff", [("Help", "https://hub.example.com/help")])
HIDDEN = {"token": "t" * 86, "expires": "e" * 32}
REASONS = (
    "forged",
    "expired",
    "used",
    "superseded",
    "wrong_code",
    "void",
    "suspended",
    "throttled",
    "malformed",
    "away",
)


class Elements(HTMLParser):
    """What a browser would make of a page."""

    VOID = frozenset({"meta", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == [], "an element that is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def asked(
    action: str = "activation", look: Branding = LOOK, language: str = "en", **more: object
) -> HtmlPage:
    path, with_code = PATHS.get(action, ("/own", False))
    given = {"path": path, "person": "Ada", "with_code": with_code, "hidden": HIDDEN} | more
    return pages.ask(ActionForm(action=action, **given), look, language)  # type: ignore[arg-type]


def every_page(look: Branding, language: str, person: str = "Ada") -> list[HtmlPage]:
    actions = [*LANGUAGES["en"].asking, "own"]
    shown = [
        asked(action, look, language, person=person, wrong=wrong)
        for action in actions
        for wrong in (False, True)
    ]
    shown += [pages.done(action, look, language) for action in actions]
    return shown + [pages.ended(reason, look, language) for reason in REASONS]


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_hostile_becomes_an_element(language: str) -> None:
    look = Branding(
        HOSTILE, HOSTILE, HOSTILE, HOSTILE, [(HOSTILE, f"https://x/{HOSTILE}"), (HOSTILE, HOSTILE)]
    )
    hostile = asked(
        look=look,
        language=language,
        hidden={"token": HOSTILE, HOSTILE: HOSTILE},
        path=f"/{HOSTILE}",
    )
    for page in [hostile, *every_page(look, language, person=HOSTILE)]:
        elements = Elements(page.html)
        names = {name for name, _ in elements.found}
        assert not names & {"script", "img", "iframe", "svg", "link", "object"}
        assert not any(
            name.startswith("on") for _, attributes in elements.found for name in attributes
        )
        assert HOSTILE[:20] not in page.html


def test_what_is_escaped_is_shown_as_it_is() -> None:
    name = '<b>O\'Neil & "Sons"</b> {portal} %s'
    assert f"Hello {name}," in "".join(Elements(asked(person=name).html).text)
    assert f"Welcome to {name}." in "".join(
        Elements(pages.done("activation", Branding(name), "en").html).text
    )


def test_a_long_name_is_cut() -> None:
    assert "x" * 81 not in asked(person="x" * 254).html


@pytest.mark.parametrize(
    "colour",
    ["red;} body{display:none", "url(https://x)", "", "#12345", "#fff}</style><b>", "#ＦＦＦ"],
)
def test_what_is_no_colour_is_none(colour: str) -> None:
    page = asked(look=Branding("Hub", "H", colour, "#ffffff"))
    assert f"--accent:{ACCENT};" in page.html
    assert not colour or colour not in page.html


def test_links_that_would_run_something_are_not_shown() -> None:
    bad = [
        ("a", "javascript:alert(1)"),
        ("b", " javascript:alert(1)"),
        ("c", "data:text/html,x"),
        ("d", "//x.example"),
    ]
    page = pages.done(
        "activation", Branding("Hub", "H", links=[*bad, ("Help", "mailto:help@hub.example")]), "en"
    )
    assert [one["href"] for one in Elements(page.html).named("a")] == ["mailto:help@hub.example"]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("look", [LOOK, NEUTRAL], ids=["portal", "neutral"])
def test_every_page_is_whole(language: str, look: Branding) -> None:
    for page in every_page(look, language):
        elements = Elements(page.html)
        assert elements.named("html") == [{"lang": language}]
        assert len(elements.named("h1")) == 1
        assert ("Hub" in page.html) is bool(look.name)
        assert "{" not in re.sub(
            r"<style>.*?</style>|pattern=\"[^\"]*\"", "", page.html, flags=re.DOTALL
        )
        assert all("style" not in attributes for _, attributes in elements.found), (
            "the policy allows none"
        )


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_page_names_its_portal(language: str) -> None:
    assert "Hub" in "".join(Elements(asked(language=language).html).text)


def test_the_form_posts_to_where_the_page_is() -> None:
    elements = Elements(asked(path="/accounts/own").html)
    assert elements.named("form") == [{"method": "post", "action": "own"}]
    assert {(one["name"], one["value"]) for one in elements.named("input")} == set(HIDDEN.items())


def test_only_actions_with_a_code_ask_for_it() -> None:
    fields = [one["name"] for one in Elements(asked("password_recovery").html).named("input")]
    assert fields == ["token", "expires", "code"]
    field = Elements(asked("password_recovery").html).named("input")[-1]
    pattern = field["pattern"]
    assert pattern
    assert re.fullmatch(pattern, "12 345")
    assert not re.fullmatch(pattern, "1234")
    assert 'role="alert"' in asked("password_recovery", wrong=True).html
    assert 'role="alert"' not in asked("password_recovery").html


def test_the_policy_allows_the_styles_of_the_page_and_no_more() -> None:
    page, other = asked(), asked(look=Branding("Org", "O", "#123456", "#ffffff"))
    assert page.policy != other.policy
    assert "default-src 'none'" in page.policy
    assert "form-action 'self'" in page.policy
    assert "frame-ancestors 'none'" in page.policy
    assert "unsafe" not in page.policy
    assert len(re.findall("sha256-", page.policy)) == page.html.count("<style>") == 2
    assert "</style" not in STYLE
    assert "url(" not in STYLE


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


@pytest.mark.parametrize("words", LANGUAGES.values(), ids=LANGUAGES)
def test_every_language_says_everything(words: PageTexts) -> None:
    english = LANGUAGES["en"]
    assert words.asking.keys() == english.asking.keys() == {*PATHS, ""}
    assert words.endings.keys() == english.endings.keys() == set(REASONS)
    assert placeholders(words.hello) == {"name"}
    texts = [text for one in (*words.asking.values(), *words.endings.values()) for text in one]
    assert all(text and placeholders(text) <= {"portal"} for text in texts)
    assert all(not placeholders(text) for one in words.endings.values() for text in one), (
        "shown without a portal, too"
    )


@pytest.mark.parametrize(
    ("wanted", "language"),
    [
        (("de-AT", None, "en"), "de"), (("de_CH",), "de"), (("DE",), "de"), ((None, "de;q=0.5, en;q=0.9"), "en"),
        ((None, "fr-FR, de;q=0.8, en;q=0.7"), "de"), ((None, "fr, *;q=0.5", "de"), "de"),
        ((None, "de;q=0", "en"), "en"), ((None, "de;q=x", "en"), "en"), ((None, None, None), "en"),
        (("pt-BR", None, "de-DE"), "de"), (("",), "en"),
        ((None, "," * 10_000 + "de"), "en"), ((None, "en-GB,en;q=0.9,de;q=0.8", "de"), "en"), (("deutsch",), "en"),
    ],
)  # fmt: skip
def test_the_language(wanted: tuple[str | None, ...], language: str) -> None:
    assert language_for(*wanted) == language


def test_secrets_hide_in_reprs() -> None:
    question = ActionForm("activation", "/activate", "Ada", False, {"token": "the-secret"})
    assert "the-secret" not in repr(question)
