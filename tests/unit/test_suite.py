"""The test suite itself: the lists that it is run from."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_for_every_postgres_exist() -> None:
    """`tests/run` and `make versions` would run nothing at all if one were missing."""
    paths = (ROOT / "tests" / "on_every_postgres").read_text().split()
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
