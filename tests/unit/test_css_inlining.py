"""Styles become style attributes in the source of a template, whatever Jinja has in it."""

from __future__ import annotations

import time

import pytest

from pillarbox.lifecycle.css_inlining import InliningError, StyleSheet, classes_in, inline, parse

COLOURS = {"accent": "#123456", "accent-text": "#ffffff"}


def styled(css: str, html: str) -> str:
    return inline(html, parse(css, COLOURS))


def test_a_class_becomes_a_style_and_stays_a_class() -> None:
    assert styled(".a { margin: 0; color: red }", '<p class="a">x</p>') == (
        '<p class="a" style="margin: 0; color: red;">x</p>'
    )


def test_rules_add_up_in_the_order_of_the_sheet_and_classes_in_theirs() -> None:
    css = ".a, .b { color: red } .b { color: blue; }"
    assert styled(css, '<p class="b">') == '<p class="b" style="color: red; color: blue;">'
    assert (
        styled(css, "<p class='b a'>")
        == "<p class='b a' style=\"color: red; color: blue; color: red;\">"
    )


def test_what_an_element_says_of_itself_comes_last() -> None:
    assert styled(".a { color: red }", '<p style="color: blue" id="x" class="a">') == (
        '<p style="color: red; color: blue" id="x" class="a">'
    )


def test_colours_of_the_portal_are_put_in() -> None:
    assert 'style="color: #123456; background: #ffffff;"' in styled(
        ".a { color: var(--accent); background: var(--accent-text) }", '<p class="a">'
    )


def test_media_rules_stay_rules_on_one_line() -> None:
    style = parse(
        "/* no\n.x {} */ @media (a) {\n .a { color: var(--accent) !important }\n}\n.a { margin: 0 }",
        COLOURS,
    )
    assert style == StyleSheet(
        {"a": "margin: 0;"}, "@media (a) { .a { color: #123456 !important } }"
    )
    html = '<head>\n<link rel="stylesheet" href="style.css">\n</head>'
    assert (
        inline(html, style)
        == f"<head>\n<style>{{% raw %}}{style.media}{{% endraw %}}</style>\n</head>"
    )


@pytest.mark.parametrize(
    "tag",
    [
        '<a href="{{ url }}" class="a">',
        '<a {% if x > 3 %}title="y"{% endif %} class="a">',
        '<a title="{{ "a > b" }}" class="a">',
        "<a title='{{ x['y'] }}' class=\"a\">",
        '<a\n  href="x"\n  class="a">',
        '<br class="a"/>',
        '<a class = "a">',
    ],
)
def test_jinja_in_a_tag_is_left_alone(tag: str) -> None:
    made = styled(".a { color: red }", tag)
    assert made.replace(' style="color: red;"', "") == tag
    assert made.count('style="color: red;"') == 1


@pytest.mark.parametrize(
    "text",
    [
        '{# <p class="a"> #}',
        '<!--[if mso]><p class="a"><![endif]-->',
        '<p data-class="a">',
        '<p class="unknown">',
        '<p>1 < 2 and class="a" isn\'t a tag</p>',
        "{% if a < b and c > d %}{% endif %}",
    ],
)
def test_what_is_no_element_with_a_known_class_is_left_alone(text: str) -> None:
    assert styled(".a { color: red }", text) == text


def test_lines_stay_where_they_are() -> None:
    html = '<p class="a">\n{# \n #}\n<b\nclass="a">x</b>\n<link rel="stylesheet" href="style.css">\nend'
    made = styled(".a { margin:\n 0;\n color: red }\n@media x {\n.a {}\n}", html)
    assert made.count("\n") == html.count("\n")
    assert made.splitlines()[-1] == "end"


@pytest.mark.parametrize(
    ("css", "line", "words"),
    [
        ("\n\np { margin: 0 }", 3, "only plain classes"),
        (".a .b { margin: 0 }", 1, "only plain classes"),
        (".a:hover { margin: 0 }", 1, "only plain classes"),
        ("@import 'x';", 1, "after the last rule"),
        ("/*\n\n*/\n.a { margin: 0", 4, "not closed"),
        ('.a { font-family: "X" }', 1, "double quotes"),
        ("\n.a { color: var(--nope) }", 2, "the portal has no colour 'nope'"),
        (".a { margin: 0 }\n\nmore", 3, "after the last rule"),
    ],
)
def test_what_cannot_be_put_into_elements_is_an_error_with_its_line(
    css: str, line: int, words: str
) -> None:
    with pytest.raises(InliningError, match=words) as raised:
        parse(css, COLOURS)
    assert raised.value.line == line


def test_a_class_that_is_made_of_a_value_is_an_error() -> None:
    with pytest.raises(InliningError, match="must be constant") as raised:
        styled(".a { margin: 0 }", '\n<p class="a {{ kind }}">')
    assert raised.value.line == 2


@pytest.mark.parametrize(
    "text", ["<a " + "{{ x }}" * 5000, "<a " + "{" * 20_000, "<" * 20_000, '<a "' + "<a" * 10_000]
)
def test_hostile_source_takes_no_time(text: str) -> None:
    began = time.process_time()
    styled(".a { margin: 0 }", text)
    assert time.process_time() - began < 5


def test_classes_are_found() -> None:
    assert classes_in("<p class=\"a b\"><i class='c'>") == {"a", "b", "c"}
