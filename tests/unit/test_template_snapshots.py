"""Every template in every language, rendered with its sample, is what it was. UPDATE_SNAPSHOTS=1 writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pillarbox.lifecycle.rendering import Templates
from pillarbox.lifecycle.template_checks import sample_of
from pillarbox.lifecycle.template_files import PARTS

FOLDER = Path(__file__).parents[1] / "snapshots" / "templates"
TEMPLATES = Templates()
ALL = [(name, locale) for name in TEMPLATES.names() for locale in TEMPLATES.locales(name)]


@pytest.mark.parametrize(("name", "locale"), ALL)
def test_a_template_is_what_it_was(name: str, locale: str) -> None:
    rendered = TEMPLATES.render(name, locale, sample_of(TEMPLATES, name))
    for part, ending in PARTS.items():
        path = FOLDER / name / (locale + ending)
        made = getattr(rendered, part) + ("\n" if part == "subject" else "")
        if os.environ.get("UPDATE_SNAPSHOTS"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made, "utf-8")
        assert path.is_file(), (
            "a new template: run the tests with UPDATE_SNAPSHOTS=1, and look at what it wrote"
        )
        assert made == path.read_text("utf-8"), (
            f"{path.name} differs: if that is meant, run with UPDATE_SNAPSHOTS=1"
        )


def test_no_snapshot_is_left_over() -> None:
    wanted = {f"{name}/{locale}{ending}" for name, locale in ALL for ending in PARTS.values()}
    assert {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()} == wanted
