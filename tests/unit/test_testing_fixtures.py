"""What we give users' tests: the fixtures work as they say, and every dial is documented."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from tests import PATIENCE

from pillarbox.testing.twins import Dials, FeedbackDials, TwinMail

REFERENCE = Path(__file__).parents[2] / "docs/reference/testing.md"
TESTS = """
import aiohttp
import pytest

@pytest.mark.asyncio
async def test_twins(sendgrid_twin, ses_twin, mailgun_twin):
    for twin in (sendgrid_twin, ses_twin, mailgun_twin):
        async with aiohttp.ClientSession() as session, session.get(twin.url + "/_twin") as answer:
            assert (await answer.json())["kind"] == twin.kind

@pytest.mark.asyncio
async def test_smtp(smtp_server):
    assert smtp_server.port
"""


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_fixtures_for_users(tmp_path: Path, mode: str) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["pillarbox.testing.fixtures"]\n')
    (tmp_path / "test_mine.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nasyncio_mode = {mode}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("described", [Dials, FeedbackDials, TwinMail])
def test_every_dial_of_the_twins_is_documented(described: type) -> None:
    words = set(re.findall(r"`([^`\n]+)`", REFERENCE.read_text("utf-8")))
    assert {one.name for one in fields(described)} <= words
