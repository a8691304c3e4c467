"""`check` finds what is wrong with templates before a mail is sent; those that come with Pillarbox are right."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.template_helpers import one, write

from pillarbox.errors import RenderError
from pillarbox.lifecycle.rendering import Templates
from pillarbox.lifecycle.template_checks import MAX_HTML_BYTES, check, check_html, sample_of


def found(templates: Templates) -> list[tuple[str | None, str | None, int | None, str]]:
    return [finding[1:] for finding in check(templates, ["shop/order"])]


def test_the_templates_that_come_with_pillarbox_are_right() -> None:
    templates = Templates()
    assert check(templates) == []
    assert len(templates.names()) >= 18


def test_a_right_template_has_no_findings(tmp_path: Path) -> None:
    assert found(
        one(
            tmp_path,
            "<p>{{ account.name }}</p>",
            "{{ link }}\n{{ order }}",
            shop__order__sample_json='{"order": 1}',
        )
    ) == [("en", "html", None, "it does not show link, but another part or language does")]
    assert found(one(tmp_path, "<p>x</p>", "x")) == []


def test_missing_variables(tmp_path: Path) -> None:
    text = "\n{{ order }}{% if order == 1 %}\n{{ other }}{% endif %}"
    assert found(one(tmp_path, text=text)) == [("en", "text", 2, "there is no variable order")]
    sample = '{"order": 4711}'
    assert found(one(tmp_path, text=text, shop__order__sample_json=sample)) == [
        ("en", "text", 3, "sample.json has no variable other")
    ]


def test_missing_languages_and_parts(tmp_path: Path) -> None:
    write(
        tmp_path,
        shop__order__de_html="<p>x</p>",
        shop__other__fr_txt="x",
        shop__other__fr_subject="x",
    )
    assert found(one(tmp_path, "<p>x</p>")) == [
        ("fr", None, None, "is missing in this language"),
        ("de", "subject", None, "there is no de.subject"),
        ("de", "text", None, "there is no de.txt"),
    ]


def test_words_of_the_portal_in_every_language(tmp_path: Path) -> None:
    write(
        tmp_path,
        shop__order__de_html="<p>x</p>",
        shop__order__de_txt="x",
        shop__order__de_subject="x",
    )
    templates = one(tmp_path, "<p>x</p>", shop__portal_toml='[tagline]\nen = "x"')
    assert check(templates, ["shop/order"])[0][:2] == ("shop/portal.toml", "de")
    templates = one(tmp_path, "<p>x</p>", shop__portal_toml="name = 3")
    assert check(templates, ["shop/order"])[0] == (
        "shop/portal.toml",
        None,
        None,
        None,
        "name must be a text of one line",
    )


def test_what_one_language_shows_another_must_show(tmp_path: Path) -> None:
    write(
        tmp_path,
        shop__order__de_html="<b>{{ code }}</b>",
        shop__order__de_txt="{{ code }}",
        shop__order__de_subject="x",
    )
    assert found(one(tmp_path, "<b>{{ code }}</b>", "forgotten")) == [
        ("en", "text", None, "it does not show code, but another part or language does")
    ]


def test_wrong_samples(tmp_path: Path) -> None:
    for text, words in (("{", "is not JSON"), ("[]", "must be an object")):
        templates = one(tmp_path, shop__order__sample_json=text)
        with pytest.raises(RenderError, match=words):
            sample_of(templates, "shop/order")
        assert words in found(templates)[0][3]


def test_subjects(tmp_path: Path) -> None:
    assert [one[3] for one in found(one(tmp_path, "<p>x</p>", subject=" \n"))] == ["it is empty"]
    assert "longer than" in found(one(tmp_path, "<p>x</p>", subject="x" * 101))[0][3]


def test_classes_without_a_style(tmp_path: Path) -> None:
    assert found(one(tmp_path, '<p class="txet">x</p>')) == [
        ("en", "html", None, "no style.css defines the class txet")
    ]
    assert (
        found(
            one(tmp_path, '<p class="own">x</p>', shop__style_css="@media x { .own { margin: 0 } }")
        )
        == []
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://shop.example/", "is not https"),
        ("/orders", "is a relative URL"),
        ("orders.html", "is a relative URL"),
        ("", "is a relative URL"),
        ("#top", "is a relative URL"),
        ("javascript:alert(1)", "is not https"),
        ("https://", "not a legal URL"),
        ("https://shop.example:port/", "not a legal URL"),
        ("https://shop.example/{{ x }}", "not a legal URL"),
        ("https://[::1/", "not a legal URL"),
        ("mailto:nobody", "has no address"),
    ],
)
def test_broken_links(url: str, words: str) -> None:
    [problem] = check_html(f'<a href="{url}">x</a>')
    assert words in problem


def test_links_that_are_right() -> None:
    assert (
        list(
            check_html(
                '<a href="https://shop.example/a?b=1&amp;c=2#d">x</a><a href="mailto:a@b.example">y</a>'
            )
        )
        == []
    )


def test_broken_links_in_text(tmp_path: Path) -> None:
    [finding] = found(one(tmp_path, "<p>x</p>", "See http://shop.example/x."))
    assert finding == ("en", "text", None, "'http://shop.example/x' is not https")
    assert found(one(tmp_path, "<p>x</p>", "See (https://shop.example/x).")) == []


@pytest.mark.parametrize(
    ("html", "words"),
    [
        ('<img src="https://shop.example/logo.png">', "load nothing external"),
        ('<img src="cid:logo">', "cannot have attachments"),
        ('<table background="https://x.example/b.png"></table>', "load nothing external"),
        ("<script>alert(1)</script>", "<script> does not work"),
        ('<p onclick="x()">x</p>', "onclick does not work"),
        ("<div><b>x</div>", "</div> closes no open tag"),
        ("<table><tr><td>x</table></td>", None),
        ("<div>", "<div> is not closed"),
        ("</b>", "</b> closes no open tag"),
        ("<p>x<br><hr><p>y", None),
        ("<br/><img/><b/>", None),
    ],
)
def test_html(html: str, words: str | None) -> None:
    problems = list(check_html(html))
    assert bool(problems) == (words is not None)
    assert any(words in problem for problem in problems) if words else True


def test_oversize_html() -> None:
    assert list(check_html("ü" * (MAX_HTML_BYTES // 2))) == []
    assert "Gmail" in next(iter(check_html("ü" * (MAX_HTML_BYTES // 2 + 1))))
