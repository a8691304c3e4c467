"""`pillarbox template`: list, render, check and preview, with templates of one's own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from pillarbox.lifecycle.template_files import PACKAGE
from tests import PATIENCE
from tests.integration.cli.cli_helpers import Cli, process
from tests.unit.template_helpers import write

ORDER = {
    "shop__portal_toml": 'name = "The Shop"\n[colours]\naccent = "#0a7d33"',
    "shop__order__en_subject": "Order {{ order }}",
    "shop__order__en_txt": "Hello {{ name }},\n\nyour order {{ order }} is on its way.",
    "shop__order__en_html": '<p class="text">Hello {{ name }}, <b>{{ order }}</b></p>',
    "shop__order__sample_json": '{"order": 4711, "name": "Ada <b>"}',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "mails", **ORDER)


@pytest.fixture
def cli(folder: Path) -> Cli:
    """The command with a folder of templates, and no database at all."""
    cli = Cli("postgresql://nobody@127.0.0.1:1/nothing")
    cli.env["PILLARBOX_TEMPLATE_DIRS"] = str(folder)
    return cli


def test_list_shows_languages_and_where_from(cli: Cli, folder: Path) -> None:
    rows = {row["name"]: row for row in cli.json("template", "list")}
    assert rows["shop/order"] == {"name": "shop/order", "locales": ["en"], "from": [str(folder)]}
    assert rows["hub/welcome"] == {
        "name": "hub/welcome",
        "locales": ["de", "en"],
        "from": ["pillarbox"],
    }
    assert re.search(r"hub/welcome +de, en +pillarbox", cli("template", "list").out)


def test_a_file_of_ones_own_is_told(cli: Cli, folder: Path) -> None:
    write(folder, hub__welcome__en_subject="Ours")
    [row] = [row for row in cli.json("template", "list") if row["name"] == "hub/welcome"]
    assert sorted(row["from"]) == sorted([str(folder), "pillarbox"])
    assert cli("template", "render", "hub/welcome", "--part", "subject").out == "Ours"


def test_render_with_the_sample_or_with_data(cli: Cli, tmp_path: Path) -> None:
    rendered = cli.json("template", "render", "shop/order")
    assert rendered["subject"] == "Order 4711"
    assert "Ada &lt;b&gt;" in rendered["html"]
    assert cli("template", "render", "shop/order", "--part", "text").out.startswith(
        "Hello Ada <b>,"
    )
    data = '{"order": 1, "name": "Bo"}'
    assert (
        cli("template", "render", "shop/order", "--data", data, "--part", "subject").out
        == "Order 1"
    )
    (tmp_path / "data.json").write_text(data)
    assert (
        cli.json("template", "render", "shop/order", "--data", f"@{tmp_path}/data.json")["subject"]
        == "Order 1"
    )
    shown = cli("template", "render", "shop/order").out
    assert "subject   Order 4711" in shown
    assert "your order 4711 is on its way" in shown


def test_render_in_another_language(cli: Cli) -> None:
    assert cli.json("template", "render", "hub/welcome", "--locale", "de-AT")["locale"] == "de"
    assert (
        cli.json("template", "render", "hub/welcome", "--lifecycle-locale", "de")["locale"] == "de"
    )
    assert cli.json("template", "render", "shop/order", "--locale", "de")["locale"] == "en"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shop/nope"], "shop/nope: there is no such template in "),
        (["shop/order", "--data", "{}"], "shop/order, subject, line 1: there is no variable order"),
        (["shop/order", "--data", "[]"], "--data: must be an object"),
        (["shop/order", "--data", "{"], "--data: this is not JSON"),
        (["shop/order", "--data", "@nope.json"], "--data: nope.json cannot be read"),
        (
            ["shop/order", "--template-dirs", "nope"],
            "template_dirs: the folder nope does not exist",
        ),
    ],
)
def test_render_says_what_is_wrong(cli: Cli, arguments: list[str], words: str) -> None:
    assert words in cli("template", "render", *arguments, code=1).err


def test_a_part_that_does_not_exist(cli: Cli) -> None:
    assert (
        "must be subject, text or html"
        in cli("template", "render", "shop/order", "--part", "nope", code=2).err
    )


def test_check_finds_nothing_and_then_something(cli: Cli, folder: Path) -> None:
    assert "no problems" in cli("template", "check").out
    assert cli.json("template", "check") == []
    write(folder, shop__order__en_txt="\n{{ nope }}", shop__other__de_subject="x")
    findings = cli.json("template", "check", code=1)
    assert {
        "template": "shop/order", "locale": "en", "part": "text", "line": 2, "problem": "there is no variable nope",
    } in findings  # fmt: skip
    assert {one["template"] for one in findings} == {"shop/order", "shop/other"}
    assert {one["template"] for one in cli.json("template", "check", "shop/other", code=1)} == {
        "shop/other"
    }
    assert re.search(
        r"shop/order +en +text, line 2 +there is no variable nope",
        cli("template", "check", code=1).out,
    )
    assert "no such template" in cli("template", "check", "nope/nope", code=1).err


def test_the_package_has_every_file_of_our_templates(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=Path(__file__).parents[3], check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    files = {
        f"pillarbox/lifecycle/templates/{path.relative_to(PACKAGE)}"
        for path in PACKAGE.rglob("*.*")
    }
    assert len(files) > 100
    assert files <= packed
    assert "pillarbox/cli/template_preview.css" in packed


# --- the page


@pytest.fixture
def page(folder: Path) -> Iterator[str]:
    """The address of a preview."""
    with process(
        "template", "preview", "--http", "127.0.0.1:0", "--template-dirs", str(folder)
    ) as running:
        printed = running.wait_for("(Ctrl-C to stop)")
        found = re.search(r"http://[0-9.:]+/", printed)
        assert found
        yield found[0]
        running.signal(signal.SIGTERM)
        assert running.end() == 0


def got(url: str, **headers: str) -> str:
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=PATIENCE
    ) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
        return str(answer.read().decode())


def refused(url: str, **headers: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as raised:
        got(url, **headers)
    raised.value.close()
    return raised.value.code


def test_every_template_and_language_has_a_page(page: str) -> None:
    index = got(page)
    places = re.findall(r'href="/([^"]+)"', index)
    assert "shop/order/en" in places
    assert "hub/welcome/de" in places
    for place in places:
        shown = got(page + place)
        assert shown.count("<iframe sandbox ") == 4, place
        assert "No problems." in shown
        assert "<script" not in shown


def test_mails_are_shown_in_frames_and_as_text(page: str, folder: Path) -> None:
    shown = got(page + "shop/order/en")
    mail = unescape(re.findall(r'class="phone"[^>]* srcdoc="([^"]+)"', shown)[0])
    assert "Hello Ada &lt;b&gt;, <b>4711</b></p>" in mail
    assert "<pre>Hello Ada &lt;b&gt;," in shown
    write(folder, shop__order__en_subject="Changed {{ order }}")
    assert "Changed 4711" in got(page + "shop/order/en")
    write(folder, shop__order__en_subject="{{ nope }}")
    assert "there is no variable nope" in got(page + "shop/order/en")


def test_dark_is_settled_by_the_page(page: str) -> None:
    shown = got(page + "hub/welcome/en")
    day, night = (
        unescape(one) for one in re.findall(r'class="phone"[^>]* srcdoc="([^"]+)"', shown)
    )
    assert "prefers-color-scheme: dark" not in day + night
    assert "@media not all {" in day
    assert "@media all {" in night


def test_only_this_machine_is_answered(page: str) -> None:
    assert refused(page, Host="evil.example") == 421
    assert refused(page, Origin="https://evil.example") == 403
    assert refused(page + "nope/nope/en") == 422
    assert refused(page + "../etc/passwd") == 422
    assert refused(page + "nope") == 404


def test_preview_says_what_is_wrong(cli: Cli) -> None:
    assert (
        "--http must be host:port" in cli("template", "preview", "--http", "nonsense", code=1).err
    )
    assert "does not exist" in cli("template", "preview", "--template-dirs", "nope", code=1).err


def test_findings_are_json(cli: Cli) -> None:
    assert json.loads(cli("template", "check", "hub/welcome", "--json").out) == []
