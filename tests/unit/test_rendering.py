"""Templates are rendered in the right language and portal; what is wrong is told with its place."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.unit.template_helpers import DATA, LINK, failure, one, write

from pillarbox.errors import RenderError, SettingsError
from pillarbox.lifecycle.portals import Portal, PortalError, nearest, read_portal
from pillarbox.lifecycle.rendering import Templates
from pillarbox.model.redaction import Redactor
from pillarbox.telemetry import logs

# --- what comes out


def test_subject_text_and_html_with_values(tmp_path: Path) -> None:
    html = '{% extends "layout/base.html" %}{% import "layout/parts.html" as parts %}{% block title %}T{% endblock %}'
    html += '{% block body %}<p class="text">{{ account.name }}</p>{{ parts.button(link, "Go") }}{% endblock %}'
    text = '{% extends "layout/base.txt" %}{% block body %}\n{{ link }}\n{% endblock %}'
    rendered = one(tmp_path, html, text, "Hello {{ account.name }}").render(
        "shop/order", "en", DATA
    )
    assert rendered.subject == "Hello Ada"
    assert rendered.locale == "en"
    assert rendered.text is not None
    assert rendered.text.startswith(f"{LINK}\n\n-- \nshop\n")
    assert rendered.html is not None
    assert rendered.html.startswith("<!doctype html>")
    assert (
        f'<a href="{LINK.replace("&", "&amp;")}" target="_blank" class="button-link" style="'
        in rendered.html
    )
    assert "{" not in rendered.html.split("</style>")[1]


def test_values_are_escaped_in_html_only(tmp_path: Path) -> None:
    name = "<script>alert('&')</script>"
    templates = one(
        tmp_path,
        "{{ name }}|{{ [name]|join }}|{{ name|upper }}|{{ name ~ '' }}",
        "{{ name }}",
        "{{ name }}",
    )
    rendered = templates.render("shop/order", "en", {"name": name})
    assert rendered.subject == rendered.text == name
    assert rendered.html is not None
    assert "<script" not in rendered.html.lower()
    assert rendered.html.startswith("&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;|")


def test_macros_of_text_are_escaped_in_html(tmp_path: Path) -> None:
    macro = "{% macro show(x) %}<{{ x }}>{% endmacro %}"
    html = '{% from "shop/own.txt" import show %}{{ show(name) }}'
    templates = one(tmp_path, html, shop__own_txt=macro)
    assert templates.render("shop/order", "en", {"name": "<b>"}).html == "&lt;&lt;b&gt;&gt;"


def test_values_are_never_templates(tmp_path: Path) -> None:
    hostile = "{{ 7 * 7 }}{% for x in [1] %}{% endfor %}{{ account }}"
    rendered = one(tmp_path, "{{ x }}", "{{ x }}", "{{ x }}").render(
        "shop/order", "en", {"x": hostile}
    )
    assert rendered.subject == rendered.text == rendered.html == hostile


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("x\r\nBcc: eve@mail.example", "Hi x Bcc: eve@mail.example!"),
        ("a\nb", "Hi a b!"),
        ("a\x00\x1b[31m\x7f\x85b", "Hi a [31m b!"),
        ("a\u2028b\u2029c", "Hi a b c!"),
        ("a\u202eb", "Hi a b!"),
        ("a\ud800b", "Hi a b!"),
        ("  a \t b  ", "Hi a b !"),
        ("👩\u200d💻 Łukasz", "Hi 👩\u200d💻 Łukasz!"),
    ],
)
def test_a_subject_is_one_line_whatever_a_name_holds(
    tmp_path: Path, name: str, subject: str
) -> None:
    rendered = one(tmp_path, subject="\n Hi {{ name }}!\n").render(
        "shop/order", "en", {"name": name}
    )
    assert rendered.subject == subject


def test_portal_and_locale_are_never_those_of_the_data(tmp_path: Path) -> None:
    templates = one(
        tmp_path, text="{{ portal.name }} {{ locale }}", shop__portal_toml='name = "The Shop"'
    )
    data = {"portal": {"name": "Evil"}, "locale": "xx"}
    assert templates.render("shop/order", "en", data).text == "The Shop en"


def test_times_are_shown_in_utc(tmp_path: Path) -> None:
    templates = one(tmp_path, text='{{ at|time("%d.%m.%Y %H:%M") }} {{ at|time }}')
    for at in (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T05:04:00+02:00"):
        assert (
            templates.render("shop/order", "en", {"at": at}).text
            == "02.01.2026 03:04 2026-01-02 03:04 UTC"
        )


def test_one_of_text_and_html_may_be_missing(tmp_path: Path) -> None:
    write(
        tmp_path,
        shop__plain__en_txt="T",
        shop__plain__en_subject="S",
        shop__rich__en_html="H",
        shop__rich__en_subject="S",
    )
    templates = Templates([tmp_path])
    assert templates.render("shop/plain", "en", {})[:3] == ("S", "T", None)
    assert templates.render("shop/rich", "en", {})[:3] == ("S", None, "H")


# --- what is known beforehand is put in beforehand, and makes no difference


LOOPS = (
    "{% for label, url in portal.links %}{{ loop.index }}/{{ loop.length }} {{ label }}: {{ url }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for label, url in portal.links %}{{ loop.revindex }}{{ label }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for label, url in portal.links if label != 'B' %}{{ label }}{% else %}none{% endfor %}",
    "{% for one in portal.links %}{{ one[0] }}{% set x = one[1] %}{{ x }}{% endfor %}",
    "{% for label, url in portal.links %}{% for n in numbers %}{{ label }}{{ n }}{% endfor %}{% endfor %}",
    "{% if portal.tagline %}{{ portal.tagline }}{% elif locale == 'en' %}english{% else %}none{% endif %}",
    "{% if not portal.address %}nowhere{% else %}{{ portal.address }}{% endif %}",
    "{% for x in portal.missing|default([]) %}{{ x }}{% else %}empty{% endfor %}",
    "{{ portal.colours.accent }}{{ portal['name'] }}{{ locale }}",
    "{% macro m(portal) %}{{ portal }}{% endmacro %}{{ m('own') }}",
    "{% set locale = 'own' %}{{ locale }}",
    "{% for portal in numbers %}{{ portal }}{% endfor %}",
)
TOML = 'name = "<Shop>"\n[links]\nen = [["A", "https://a.example/?x&y"], ["B", "https://b.example/"]]\n'


@pytest.mark.parametrize("source", LOOPS)
def test_folding_changes_nothing(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded = one(tmp_path, source, source, shop__portal_toml=TOML).render(
        "shop/order", "en", {"numbers": [1, 2]}
    )
    monkeypatch.setattr("pillarbox.lifecycle.template_sandbox.fold", lambda tree, known: tree)
    plain = one(tmp_path, source, source, shop__portal_toml=TOML).render(
        "shop/order", "en", {"numbers": [1, 2]}
    )
    assert folded == plain
    assert folded.text


def test_a_missing_word_of_the_portal_is_told(tmp_path: Path) -> None:
    error = failure(one(tmp_path, text="\n{{ portal.nope }}"))
    assert (error.variable, error.part, error.line) == ("portal.nope", "text", 2)


# --- languages


def languages(tmp_path: Path, *tags: str) -> Templates:
    for tag in tags:
        name = f"shop__order__{tag.replace('-', '_')}"
        write(tmp_path, **{f"{name}_txt": tag, f"{name}_subject": tag})
    return Templates([tmp_path])


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        ("de", "de"), ("de-AT", "de"), ("DE-at", "de"), ("de_CH", "de"), ("pt-BR", "pt-BR"), ("pt-br", "pt-BR"),
        ("pt", "en"), ("zh-Hant-TW", "zh-Hant"), ("zh", "en"), ("fr", "en"), ("", "en"), (None, "en"), ("en-GB", "en"),
        ("../../etc/passwd", "en"), ("x" * 10_000, "en"),
    ],
)  # fmt: skip
def test_the_nearest_language_is_taken(tmp_path: Path, asked: str | None, used: str) -> None:
    templates = languages(tmp_path, "en", "de", "pt-BR", "zh-Hant")
    rendered = templates.render("shop/order", asked, {})
    assert (rendered.locale, rendered.text) == (used, used)


def test_a_missing_language_is_counted_and_told_once(tmp_path: Path) -> None:
    shown = io.StringIO()
    logs.configure("json", "info", Redactor(b"k" * 32), shown)
    missed: list[int] = []
    languages(tmp_path, "en")
    templates = Templates([tmp_path], count_fallback=lambda: missed.append(1))
    for asked in ("fr", "fr", "fr-CA", "en", "en-GB", None):
        templates.render("shop/order", asked, {})
    assert len(missed) == 3
    told = [json.loads(line) for line in shown.getvalue().splitlines()]
    assert [(one["template"], one["locale"], one["used"]) for one in told] == [
        ("shop/order", "fr", "en"),
        ("shop/order", "fr-CA", "en"),
    ]


def test_without_the_default_language_either_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="neither in 'fr' nor in 'en'"):
        languages(tmp_path, "de").render("shop/order", "fr", {})


def test_the_default_language_is_a_setting(tmp_path: Path) -> None:
    languages(tmp_path, "en", "de")
    assert Templates([tmp_path], "de").render("shop/order", "fr", {}).locale == "de"


def test_nearest() -> None:
    offered = {"en": 1, "de": 2}
    assert nearest("de-CH-1996", "en", offered) == "de"
    assert nearest("fr", "en-GB", offered) == "en"
    assert nearest("fr", "it", offered) is None


# --- folders


def test_an_earlier_folder_comes_first_file_by_file(tmp_path: Path) -> None:
    write(
        tmp_path / "a",
        hub__portal_toml='name = "Our Hub"\nsupport = "a@b.example"',
        hub__welcome__en_subject="Ours, {{ account.name }}",
    )
    write(tmp_path / "b", hub__welcome__en_subject="Theirs")
    rendered = Templates([tmp_path / "a", tmp_path / "b"]).render("hub/welcome", "en", DATA)
    assert rendered.subject == "Ours, Ada"
    assert rendered.text is not None
    assert "Our Hub" in rendered.text


def test_a_portal_has_colours_and_a_style_of_its_own(tmp_path: Path) -> None:
    toml = '[colours]\naccent = "#abcdef"\nshadow = "#010203"'
    css = ".text { color: var(--shadow) } .own { color: var(--accent) }"
    html = '<p class="text"><p class="own">'
    rendered = one(tmp_path, html, shop__portal_toml=toml, shop__style_css=css).render(
        "shop/order", "en", {}
    )
    assert rendered.html is not None
    assert 'color: #010203;">' in rendered.html
    assert '<p class="own" style="color: #abcdef;">' in rendered.html


def test_only_files_that_are_templates_are_taken(tmp_path: Path) -> None:
    write(
        tmp_path,
        shop__order__en_txt="x",
        shop__order__en_subject="x",
        shop__order__draft_of_en_txt="x",
    )
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.html").write_text("x")
    (tmp_path / "shop/order/en.txt~").write_text("x")
    (tmp_path / "a" / "b" / "c" / "d").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c" / "d" / "en.txt").write_text("x")
    templates = Templates([tmp_path])
    assert templates.locales("shop/order") == ["en"]
    assert {file for file, source in templates.files.files.items() if source.folder == tmp_path} == {
        "shop/order/en.txt", "shop/order/en.subject", "shop/order/draft-of-en.txt",
    }  # fmt: skip


def test_folders_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        Templates([tmp_path / "nope"])
    (tmp_path / "a.html").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="is not UTF-8"):
        Templates([tmp_path])
    (tmp_path / "a.html").write_bytes(b"x" * 300_000)
    with pytest.raises(SettingsError, match="larger than 256 KiB"):
        Templates([tmp_path])


def test_unknown_templates(tmp_path: Path) -> None:
    templates = Templates()
    for name in (
        "nope/nope",
        "../hub/welcome",
        "hub",
        "hub/welcome/en",
        "layout/base",
        "",
        "x" * 10_000,
    ):
        with pytest.raises(RenderError, match="there is no such template"):
            templates.render(name, "en", {})


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("name = 3", "name must be a text"),
        ('name = "a\\nb"', "one line"),
        ("x = 1", "x is unknown"),
        ("name", "is not TOML"),
        ('[colours]\naccent = "red; } </style>"', "colours.accent must be a colour"),
        ('[colours]\n"a{{" = "#fff"', "small letters"),
        ('[links]\nen = [["A", "javascript:alert(1)"]]', "links.en must be pairs"),
        ("[links]\nen = 3", "links.en must be pairs"),
        ("links = 3", "must be a table"),
        ('[tagline]\n"not a language" = "x"', "not a language tag"),
    ],
)
def test_a_wrong_portal_is_told(tmp_path: Path, toml: str, words: str) -> None:
    with pytest.raises(PortalError, match=words):
        read_portal("shop", toml)
    error = failure(one(tmp_path, shop__portal_toml=toml))
    assert error.template == "shop/portal.toml"


def test_a_portal_without_words_has_plain_looks() -> None:
    assert read_portal("shop", "") == Portal("shop", "shop", "S")
    assert read_portal("shop", TOML).seen_in("de-AT")["links"][0] == ("A", "https://a.example/?x&y")


# --- errors


def test_a_missing_variable_is_told_with_part_and_line(tmp_path: Path) -> None:
    error = failure(one(tmp_path, text="a\nb\n{{ nope }}"))
    assert (error.template, error.part, error.line, error.variable) == (
        "shop/order",
        "text",
        3,
        "nope",
    )
    assert str(error) == "shop/order, text, line 3: there is no variable nope"


def test_a_missing_part_of_a_variable_is_told_by_its_whole_name(tmp_path: Path) -> None:
    assert failure(one(tmp_path, subject="{{ account.nmae }}")).variable == "account.nmae"
    assert failure(one(tmp_path, subject="{{ nope.name.first }}")).variable == "nope"
    assert failure(one(tmp_path, subject="{{ account['x'] }}")).variable == "account.x"


@pytest.mark.parametrize(
    "html",
    [
        '\n{% import "layout/parts.html" as parts %}\n{{ parts.button(nope, "x") }}',
        "\n\n{% if nope %}{% endif %}",
        "\n\n{% for x in nope %}{% endfor %}",
        "\n\n{{ nope|upper }}",
        "\n\n{{ nope|web }}",
        "\n\n{{ nope|time }}",
        "\n\n{{ nope() }}",
        "\n\n{{ nope.x() }}",
        "\n\n{{ nope + 1 }}",
        "\n\n{{ [nope]|join }}",
        '\n\n{% extends "layout/base.html" %}{% block title %}{{ nope }}{% endblock %}',
    ],
)
def test_the_line_is_the_templates_own(tmp_path: Path, html: str) -> None:
    error = failure(one(tmp_path, html))
    assert (error.part, error.line, error.variable) == ("html", 3, "nope")


def test_nothing_of_the_data_is_told(tmp_path: Path) -> None:
    secrets = {"code": "SECRET-1", "list": ["SECRET-2"], "map": {"SECRET-3": 1}}
    for text in ("{{ code|int + code }}", "{{ list[code] }}", "{{ map.x }}", "{{ code|time }}", "{{ code * list }}",
                 "{{ code|web }}", "{{ list + 1 }}", "{{ code() }}", "{{ code < 3 }}", "{{ map[list] }}"):  # fmt: skip
        assert "SECRET" not in str(failure(one(tmp_path, text=text), secrets)), text


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("\n{{ name", 2, "unexpected end of template"),
        ("\n\n{% nope %}", 3, "unknown tag 'nope'"),
        ("\n{{ x|nope }}", 2, "No filter named 'nope'"),
        ("\n{{ x|safe }}", 2, "No filter named 'safe'"),
        ("\n{% if x is callable %}{% endif %}", 2, "No test named 'callable'"),
    ],
)
def test_wrong_syntax_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    error = failure(one(tmp_path, text=text))
    assert (error.part, error.line) == ("text", line)
    assert words in error.message


def test_an_error_in_another_file_says_where(tmp_path: Path) -> None:
    error = failure(one(tmp_path, '{% include "shop/own.html" %}', shop__own_html="\n{{ "))
    assert error.line is None
    assert "(shop/own.html, line 2)" in error.message
    error = failure(one(tmp_path, '\n<p class="{{ x }}">'))
    assert (error.part, error.line) == ("html", 2)
    error = failure(one(tmp_path, shop__style_css="\np { margin: 0 }"))
    assert (error.template, error.line) == ("shop/style.css", 2)


def test_null_is_never_shown(tmp_path: Path) -> None:
    error = failure(one(tmp_path, text="\n{{ x }}"), {"x": None})
    assert (error.line, error.part) == (2, "text")
    assert "null" in error.message
    assert one(tmp_path, text='{{ x or "-" }}').render("shop/order", "en", {"x": None}).text == "-"


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:text/html,x", "//evil.example", "/relative", "", 3, None]
)
def test_only_addresses_of_the_web_become_links(tmp_path: Path, url: Any) -> None:
    html = '{% import "layout/parts.html" as parts %}{{ parts.button(link, "x") }}'
    assert "must begin with https://" in failure(one(tmp_path, html), {"link": url}).message


# --- speed


def test_files_are_read_anew(tmp_path: Path) -> None:
    templates = one(tmp_path, text="old", shop__portal_toml='name = "Shop"')
    assert templates.render("shop/order", "en", DATA).text == "old"
    assert not templates.refresh()
    write(
        tmp_path,
        shop__order__en_txt="new {{ portal.name }}",
        shop__portal_toml='name = "Store"',
        shop__gift__en_subject="S",
    )
    assert templates.refresh()
    assert templates.render("shop/order", "en", DATA).text == "new Store"
    assert "shop/gift" in templates.names()


def test_files_that_cannot_be_read_anew_leave_all_as_it_was(tmp_path: Path) -> None:
    templates = one(tmp_path, text="old")
    (tmp_path / "shop" / "order" / "en.txt").write_bytes(b"\xff")
    assert not templates.refresh()
    assert templates.render("shop/order", "en", DATA).text == "old"
