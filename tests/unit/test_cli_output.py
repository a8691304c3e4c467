"""What the command line prints: times, sizes, hostile text, and tables that fit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer
from rich.text import Text

from pillarbox.cli import options, output
from pillarbox.cli.command import explain, first_of
from pillarbox.errors import NotFound


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 ms"), (0.34, "340 ms"), (5, "5.0 s"), (12, "12 s"), (60, "1m"), (125, "2m 5s"), (3600, "1h"),
     (12_000, "3h 20m"), (86_400 * 4 + 7200, "4d 2h")],
)  # fmt: skip
def test_spans(seconds: float, words: str) -> None:
    assert output.span(seconds) == words


def test_nothing_hostile_is_printed() -> None:
    hostile = "a\x1b[2Jb\u202ec\u009bd\x00e\rf\u2028g"
    shown = output.clean(hostile)
    assert shown.isprintable()
    assert "\\x1b[2J" in shown
    assert output.clean_lines("one\x07\ntwo\t3") == "one\\x07\ntwo\t3"
    assert output.clean("Grüße\u00a0✓") == "Grüße ✓"


def test_rows_are_cut_to_lines_and_short_columns_left_whole() -> None:
    rows = [[Text("x" * 36), Text("to@mail.example"), Text("long " * 40)]]
    output._fit(("id", "to~", "subject~"), rows, 80)
    assert [len(cell) for cell in rows[0]] == [36, 15, 20]
    assert rows[0][2].plain.endswith("…")


def test_plain_values() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)
    assert output.plain({"at": at, "age": timedelta(minutes=1), "n": 1, "none": None}) == {
        "at": "2026-01-02T03:04:05.678Z", "age": 60.0, "n": 1, "none": None,
    }  # fmt: skip


def test_times_are_absolute_or_relative() -> None:
    now = datetime.now(UTC)
    assert timedelta(0) <= options.past("2h") - (now - timedelta(hours=2)) < timedelta(seconds=5)
    assert (
        timedelta(0)
        <= options.future("+10m") - (now + timedelta(minutes=10))
        < timedelta(seconds=5)
    )
    assert options.past("2030-01-31T08:00Z") == datetime(2030, 1, 31, 8, tzinfo=UTC)
    assert options.past("2030-01-31").tzinfo is not None
    for wrong in ("soon", "", "1 fortnight", "9" * 30 + "d"):
        with pytest.raises(typer.BadParameter):
            options.past(wrong)


def test_errors_are_told_by_the_first_of_ours() -> None:
    group = ExceptionGroup(
        "x", [ValueError("no"), ExceptionGroup("y", [NotFound("there is no such thing")])]
    )
    assert explain(first_of(group)) == "there is no such thing"
    assert explain(first_of(ExceptionGroup("x", [ValueError("no")]))).startswith(
        "unexpected ValueError: no"
    )
