"""`pillarbox sql`: psql on the database in use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pillarbox.cli.sql import _without_password


def sql(database_url: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pillarbox", "sql", *arguments],
        env=os.environ | {"PILLARBOX_DATABASE_URL": database_url},
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_statement_and_a_script(database_url: str) -> None:
    assert "42" in sql(database_url, "SELECT 40 + 2").stdout
    done = sql(database_url, given="SELECT 'first';\nSELECT nonsense;\nSELECT 'last';\n")
    assert done.returncode == 3
    assert "first" in done.stdout
    assert "last" not in done.stdout
    assert 'column "nonsense" does not exist' in done.stderr


def test_the_url_that_was_given_is_not_printed(database_url: str) -> None:
    done = sql(database_url, "--url")
    assert done.returncode == 1
    assert "database_url" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("postgresql://me:s%40crt@db:5432/mail", "postgresql://me@db:5432/mail?", "s@crt"),
        (
            "postgresql:///mail?host=%2Ftmp&password=secret",
            "postgresql:///mail?host=%2Ftmp",
            "secret",
        ),
        (
            "postgresql://me@/mail?host=/tmp&passfile=/x",
            "postgresql://me@/mail?host=%2Ftmp&passfile=%2Fx",
            None,
        ),
    ],
)
def test_no_password_is_in_the_list_of_processes(
    url: str, shown: str, password: str | None
) -> None:
    assert _without_password(url) == (shown, password)
