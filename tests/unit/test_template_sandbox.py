"""Templates read values, loop and call macros; nothing breaks out, and nothing goes on for ever."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.unit.template_helpers import failure, one

from pillarbox.lifecycle.rendering import MAX_CHARACTERS
from pillarbox.lifecycle.template_sandbox import MAX_STEPS

ATTRIBUTES = (
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ x.__class__ }}",
    "{{ x['__init__'] }}",
    "{{ [].append }}",
    "{{ x.items() }}",
    "{{ x.get('a') }}",
    "{{ name.upper() }}",
    "{{ at.strftime('%Y') }}",
    "{{ at.year }}",
    "{{ (1).real }}",
    "{{ self.__init__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ self.x.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func }}",
    "{% macro m() %}{% endmacro %}{{ m._environment }}",
    "{% for i in [1] %}{{ loop._iterable }}{% endfor %}",
    "{% for i in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{% for i in [1] %}{{ loop.changed.__globals__ }}{% endfor %}",
    '{% import "layout/parts.html" as p %}{{ p.__class__ }}',
    '{% import "layout/parts.html" as p %}{{ p.__name__ }}',
    '{% import "layout/parts.html" as p %}{{ p._body_stream }}',
    '{% import "layout/parts.html" as p %}{{ p.button._func.__globals__ }}',
    "{% macro m() %}{{ caller.__class__ }}{% endmacro %}{% call m() %}{% endcall %}",
    "{{ x|attr('__class__') }}",
    "{{ [x]|map(attribute='__class__')|list }}",
    "{{ [x]|join(attribute='__class__') }}",
    "{{ [x, x]|sort(attribute='__class__') }}",
    "{{ [x]|sum(attribute='__class__') }}",
    "{{ [x]|unique(attribute='__class__')|list }}",
    "{{ range(3) }}",
    "{{ dict(a=1) }}",
    "{{ lipsum(3) }}",
    "{{ cycler('a') }}",
    "{{ namespace(a=1) }}",
    "{{ joiner() }}",
    "{{ '{0.__class__}'.format(x) }}",
    "{{ '{0.__class__}'.format_map(x) }}",
    "{{ '%s' % x }}",
    "{{ '{}'|format(x) }}",
)


@pytest.mark.parametrize("source", ATTRIBUTES)
def test_values_have_no_attributes_and_no_methods(tmp_path: Path, source: str) -> None:
    data = {"x": {"a": 1}, "name": "Ada", "at": datetime.now(UTC)}
    assert failure(one(tmp_path, text=source), data).part == "text"
    assert failure(one(tmp_path / "2", source), data).part == "html"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in x %}{% for b in x %}{% for c in x %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for a in x recursive %}{{ loop(x) }}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 'a' * 10000000000 }}",
        "{{ [1] * 10000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ 'a'|center(10000000000) }}",
        "{{ 'a'|indent(10000000000) }}",
        "{{ '%10000000000d'|format(1) }}",
        "{{ at|time('%9999999999d') }}",
        '{% include "shop/order/en.txt" %}',
        '{% extends "shop/order/en.txt" %}',
        '{% import "shop/order/en.txt" as me %}{{ me }}',
    ],
)
def test_what_has_no_end_is_ended(tmp_path: Path, source: str) -> None:
    templates = one(tmp_path, text=source)
    began = time.process_time()
    error = failure(templates, {"x": list(range(1000)), "at": datetime.now(UTC)})
    assert error.part == "text"
    assert time.process_time() - began < 10


def test_the_number_of_steps_is_per_part(tmp_path: Path) -> None:
    source = "{% for a in x %}{{ a }}{% endfor %}"
    templates = one(tmp_path, source, source, source)
    assert len(templates.render("shop/order", "en", {"x": [1] * MAX_STEPS}).subject) == MAX_STEPS
    assert str(MAX_STEPS) in failure(templates, {"x": [1] * (MAX_STEPS + 1)}).message


def test_no_part_grows_without_end(tmp_path: Path) -> None:
    templates = one(tmp_path, text="{% for a in x %}{{ big }}{% endfor %}")
    error = failure(templates, {"x": [1] * 1000, "big": "x" * 10_000})
    assert str(MAX_CHARACTERS) in error.message


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt",
        "/etc/passwd",
        "shop/../../secret.txt",
        "shop//order/en.txt",
        "..\\secret.txt",
        "secret",
        "shop",
    ],
)
@pytest.mark.parametrize("tag", ['{{% include "{0}" %}}', '{{% extends "{0}" %}}', '{{% import "{0}" as x %}}',
                                 '{{% from "{0}" import x %}}'])  # fmt: skip
def test_no_file_outside_is_read(tmp_path: Path, name: str, tag: str) -> None:
    (tmp_path / "secret.txt").write_text("SECRET")
    error = failure(one(tmp_path / "templates", text=tag.format(name.replace("\\", "\\\\"))))
    assert "there is no" in error.message
    assert "SECRET" not in str(error)


@pytest.mark.parametrize(
    "source",
    ["{% include name %}", "{% extends name %}", "{% import name as x %}", "{% include [name, 'x'] %}",
     "{% include name ignore missing %}"],
)  # fmt: skip
def test_no_value_chooses_a_file(tmp_path: Path, source: str) -> None:
    error = failure(one(tmp_path, text="\n" + source), {"name": "layout/base.txt"})
    assert error.line == 2
    assert "must be constant" in error.message


@pytest.mark.parametrize(
    "source", ["{% autoescape false %}{{ x }}{% endautoescape %}", "{{ x|safe }}", "{{ x|tojson }}"]
)
def test_escaping_cannot_be_switched_off(tmp_path: Path, source: str) -> None:
    assert failure(one(tmp_path, source), {"x": "<b>"}).part == "html"


def test_templates_change_no_data(tmp_path: Path) -> None:
    data = {"x": {"a": [1]}}
    templates = one(tmp_path, text="{% set x = 3 %}{{ x }}", subject="{{ x.a[0] }}")
    templates.render("shop/order", "en", data)
    failure(one(tmp_path / "2", text="{% set x.b = 1 %}"), data)
    assert data == {"x": {"a": [1]}}
