"""The words of the mails that come with Pillarbox: whole in both languages, clear, different per portal."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from pillarbox.lifecycle.rendering import RenderedMail, Templates
from pillarbox.lifecycle.template_checks import check, sample_of

EVERY = {
    "activation", "welcome", "forgot_password", "password_changed", "email_verification", "invite", "sign_in_code"
}  # fmt: skip
KINDS = {"hub": EVERY, "org": EVERY, "agency": EVERY, "admin": {"sign_in_code"}}
NAMES = sorted(f"{portal}/{kind}" for portal, kinds in KINDS.items() for kind in kinds)
LASTING = {
    "en": {
        1: "1 minute",
        10: "10 minutes",
        15: "15 minutes",
        1439: "24 hours",
        1440: "24 hours",
        10_080: "7 days",
    },
    "de": {
        1: "1 Minute",
        10: "10 Minuten",
        15: "15 Minuten",
        1439: "24 Stunden",
        1440: "24 Stunden",
        10_080: "7 Tage",
    },
}
NOT_YOU = {
    "en": r"(was|is|[Ww]as it) not you|n't you|Not you|You didn't|did not|not expecting|do not know the sender",
    "de": r"(Warst|Bist) du das nicht|nicht Sie|Nicht Ihr|Sie (das|sie) nicht|Kennen Sie den Absender nicht",
}
NOTICES = ("/welcome", "/password_changed")  # without a link or code, so nothing of theirs expires
TEMPLATES = Templates()
each_mail = pytest.mark.parametrize(
    ("name", "locale"), [(name, locale) for name in NAMES for locale in LASTING]
)


def rendered(name: str, locale: str, **data: Any) -> tuple[RenderedMail, dict[str, Any]]:
    sample = {**sample_of(TEMPLATES, name), **data}
    return TEMPLATES.render(name, locale, sample), sample


def text_of(name: str, locale: str, **data: Any) -> str:
    """The text part without the portal's foot."""
    text = rendered(name, locale, **data)[0].text
    assert text is not None
    body, mark, _ = text.partition("\n-- \n")
    assert mark
    return body


def test_all_mails_are_there_in_english_and_german() -> None:
    assert [name for name in TEMPLATES.names() if name.partition("/")[0] in KINDS] == NAMES
    for name in NAMES:
        languages = TEMPLATES.files.templates[name]
        assert languages == {"en": {"subject", "text", "html"}, "de": {"subject", "text", "html"}}


def test_nothing_is_wrong_with_them() -> None:
    assert check(TEMPLATES, NAMES) == []


@each_mail
def test_link_and_code_stand_in_full_on_lines_of_their_own(name: str, locale: str) -> None:
    lines = [line.strip() for line in text_of(name, locale).split("\n")]
    sample = sample_of(TEMPLATES, name)
    for value in (sample["link"], sample["code"]):
        assert value is None or lines.count(value) == 1


@pytest.mark.parametrize("locale", LASTING)
@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(NOTICES)])
def test_it_says_how_long_it_works(name: str, locale: str) -> None:
    for minutes, words in LASTING[locale].items():
        mail, _ = rendered(name, locale, expires_minutes=minutes)
        for part in (mail.text, mail.html):
            assert re.search(rf"\b{words}\b", part or "")


@each_mail
def test_it_says_what_to_do_if_it_was_somebody_else(name: str, locale: str) -> None:
    mail, _ = rendered(name, locale)
    assert re.search(NOT_YOU[locale], " ".join(text_of(name, locale).split()))
    assert re.search(NOT_YOU[locale], (mail.html or "").replace("’", "'"))


@each_mail
def test_its_text_is_text(name: str, locale: str) -> None:
    text = text_of(name, locale)
    assert not re.search(r"</?[a-zA-Z]|&[a-z]+;|&#|\{[{%#]", text)
    assert not re.search(r"\n\n\n|[ \t]\n", text)
    for line in text.split("\n"):
        assert len(line) <= 72 or "@" in line or "://" in line


@each_mail
def test_its_subject_is_short_and_keeps_the_code_to_itself(name: str, locale: str) -> None:
    mail, sample = rendered(name, locale)
    assert 0 < len(mail.subject) <= 65
    preheader = re.search(r'<div class="preheader"[^>]*>(.+?)</div>', mail.html or "")
    assert preheader is not None
    for shown_on_a_locked_screen in (mail.subject, preheader[1]):
        assert not sample["code"] or sample["code"] not in shown_on_a_locked_screen


@pytest.mark.parametrize("locale", LASTING)
def test_portals_share_no_paragraph(locale: str) -> None:
    for one, other in combinations(NAMES, 2):
        if one.partition("/")[2] != other.partition("/")[2]:
            continue
        data = sample_of(TEMPLATES, one)
        shared = paragraphs(one, locale, data) & paragraphs(other, locale, data)
        assert shared <= {data["link"], data["code"]}, (one, other)
        assert (
            rendered(one, locale, **data)[0].subject != rendered(other, locale, **data)[0].subject
        )


def paragraphs(name: str, locale: str, data: dict[str, Any]) -> set[str]:
    """What a text part is made of, without the names in which portals differ anyway."""
    portal = TEMPLATES.portal(name.partition("/")[0])
    text = (
        text_of(name, locale, **data).replace(portal.name, "X").replace(portal.support or "@", "Y")
    )
    return {" ".join(part.split()) for part in text.split("\n\n")}


@pytest.mark.parametrize("name", NAMES)
def test_german_says_du_to_people_and_sie_to_companies(name: str) -> None:
    mail, _ = rendered(name, "de")
    words = f"{mail.subject} {text_of(name, 'de')} {re.sub('<[^>]*>', ' ', mail.html or '')}"
    foreign = (
        r"\b(Ihr|Ihre|Ihren|Ihrem|Ihnen)\b"
        if name.startswith("hub/")
        else r"\b(du|dich|dir|dein\w*)\b"
    )
    assert not re.search(foreign, words)


@pytest.mark.parametrize("locale", LASTING)
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.endswith(("/activation", "/email_verification"))]
)
def test_strangers_choose_no_words_in_mails_to_addresses_that_nobody_has_confirmed(
    name: str, locale: str
) -> None:
    account = {
        "name": "Win at evil.example",
        "login": "free-money.example",
        "email": "reader@example.com",
    }
    mail, _ = rendered(name, locale, account=account)
    assert "evil.example" not in str(mail)
    assert "free-money.example" not in str(mail)


def test_a_portal_needs_nothing_but_a_name(tmp_path: Path) -> None:
    for portal in KINDS:
        (tmp_path / portal).mkdir()
        (tmp_path / portal / "portal.toml").write_text('name = "Acme"\n')
    templates = Templates([tmp_path])
    assert check(templates, NAMES) == []
    mail = templates.render("hub/welcome", "en", sample_of(templates, "hub/welcome"))
    assert mail.subject == "Your Acme account is open"
    assert "example.com" not in str(mail).replace("mia@example.com", "")


@pytest.mark.parametrize("locale", LASTING)
@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("/invite")])
def test_an_invitation_needs_no_data_of_its_own(name: str, locale: str) -> None:
    sample = sample_of(TEMPLATES, name)
    mail = TEMPLATES.render(
        name, locale, {key: sample[key] for key in ("account", "link", "expires_minutes")}
    )
    assert len(mail.subject) <= 65


@pytest.mark.parametrize("locale", LASTING)
@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("/invite")])
def test_an_invitation_carries_no_essay(name: str, locale: str) -> None:
    mail, _ = rendered(name, locale, inviter="Buy this now " * 50, organisation="A bargain " * 50)
    assert mail.subject.count("Buy this now") < 6
    assert mail.subject.count("A bargain") < 8
    assert str(mail).count("Buy this now") < 40
