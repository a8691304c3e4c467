"""The page "Write templates", followed literally against a running `pillarbox up`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import urllib3
from tests.integration.cli.cli_helpers import Cli, process
from tests.places import data_directory

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-templates.md"
# A block of the page that begins with the name of its file, as a comment.
FILE = re.compile(r"```\w*\n(?:\{# |# )(mails/[\w./-]+)(?: #\})?\n(.*?)```\n", re.DOTALL)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```\n", PAGE.read_text("utf-8"), re.DOTALL)


def write_files(folder: Path) -> None:
    """Write the files that the page shows."""
    files = FILE.findall(PAGE.read_text("utf-8"))
    names = {Path(name).name for name, _ in files}
    assert names == {"portal.toml"} | {
        f"{one}.{part}" for one in ("en", "de") for part in ("subject", "txt", "html")
    }
    for name, content in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, "utf-8")
    [sample] = blocks("json")
    (folder / "mails/shop/order/sample.json").write_text(sample, "utf-8")


def test_the_steps_work_against_the_running_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begin, check, send = blocks("sh")
    assert begin.split("\n")[:2] == ["mkdir mails", "pillarbox up --template-dirs ./mails"]
    (tmp_path / "mails").mkdir()
    ports = ("--http", "127.0.0.1:0", "--smtp", "127.0.0.1:0")
    with (
        data_directory() as data,
        process("up", "--data", str(data), "--template-dirs", "./mails", *ports) as up,
    ):
        url = re.search(r"http://127\.0\.0\.1:\d+", up.wait_for("http://127.0.0.1:"))
        assert url is not None
        message = json.loads(re.search(r"--json '(.*)'", send, re.DOTALL)[1])  # type: ignore[index]
        asked = f"{url[0]}/api/v1/messages"
        refused = urllib3.request("POST", asked, json=message).json()
        assert str(tmp_path / "mails") in refused["detail"]
        write_files(tmp_path)
        [command, preview] = check.strip().split("\n")
        assert preview == "pillarbox template preview --template-dirs ./mails"
        cli = Cli("postgresql://unused")
        assert "no problems" in cli(*command.split()[1:]).out
        accepted = urllib3.request("POST", asked, json=message)
        assert accepted.status == 202, accepted.data
        told = urllib3.request("GET", f"{asked}/{accepted.json()['id']}").json()
        assert told["subject"] == "Ihre Bestellung 4711"
