"""Output: text for people, JSON for programs. Control characters from mails are escaped."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

_BY_COLOUR = {
    "green": ("sent", "delivered", "accepted"),
    "red": ("failed", "rejected", "bounced", "complained"),
    "yellow": ("held", "unknown", "deferred"),
    "cyan": ("processing",),
    "blue": ("queued", "pending"),
    "dim": ("cancelled",),
}
STYLES = {word: colour for colour, words in _BY_COLOUR.items() for word in words}


def console(stderr: bool = False) -> Console:
    """A console on the current stdout or stderr. rich honours NO_COLOR and the terminal's type."""
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
    )


def is_terminal() -> bool:
    return sys.stdout.isatty()


def clean(text: object) -> str:
    """One line in which control characters and bidirectional overrides are escaped."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(map(_escape, shown))


def clean_lines(text: str) -> str:
    """As `clean`, but line ends and tabs stay."""
    lines = ["\t".join(map(clean, line.split("\t"))) for line in text.splitlines()]
    return "\n".join(lines)


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    if character.isspace() and character > "\x9f":
        return " "
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def styled(word: object) -> Text:
    """A state or verdict in its colour."""
    return Text(clean(word), style=STYLES.get(str(word), ""))


def say(*parts: RenderableType) -> None:
    """Print a line for people."""
    console().print(*parts, soft_wrap=True)


def note(text: str) -> None:
    """Print a remark on stderr, so that stdout has only the result."""
    console(stderr=True).print(Text(clean(text), style="dim"), soft_wrap=True)


def error(text: str) -> None:
    line = Text.assemble(("error: ", "bold red"), clean_lines(text))
    console(stderr=True).print(line, soft_wrap=True)


def progress() -> Progress:
    """A progress bar on stderr; nothing if stderr is not a terminal."""
    shown = console(stderr=True)
    return Progress(console=shown, transient=True, disable=not shown.is_terminal)


def write_bytes(content: bytes) -> None:
    """Write exact bytes for programs, and escaped text on a terminal."""
    if is_terminal():
        say(Text(clean_lines(content.decode("utf-8", "replace"))))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def print_json(value: object) -> None:
    """Print JSON with the keys of our dataclasses; ASCII only, which is safe on a terminal."""
    indent = None
    if is_terminal():
        indent = 2
    print(json.dumps(plain(value), indent=indent))


def plain(value: Any) -> Any:
    """JSON values for a value of any type."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {_key(field.name): plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _key(name: str) -> str:
    if name == "class_name":
        return "class"
    return name


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "nothing") -> None:
    """Print a table: with lines on a terminal, as plain columns elsewhere."""
    shown = [[_cell(value or "") for value in row] for row in rows]
    if not shown:
        note(empty)
    elif is_terminal():
        _fit(heads, shown, console().width)
        console().print(drawn(heads, shown))
    else:
        _columns(heads, shown)


def _cell(value: object) -> Text:
    if isinstance(value, Text):
        return value
    return Text(clean(value))


def drawn(heads: Sequence[str], rows: Iterable[Sequence[Text]]) -> Table:
    """The table for rich; `#` after a head marks numbers, `~` cells that may be cut to fit."""
    drawing = Table(box=SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for head in heads:
        side: Literal["left", "right"] = "left"
        if head.endswith("#"):
            side = "right"
        drawing.add_column(
            head.rstrip("#~"),
            justify=side,
            overflow="fold",
            no_wrap=not head.endswith("~"),
        )
    for row in rows:
        drawing.add_row(*row)
    return drawing


def _fit(heads: Sequence[str], rows: list[list[Text]], width: int) -> None:
    """Cut the elastic cells, narrowest column first, so that each row fits into one line."""
    widths = []
    for column, head in enumerate(heads):
        cell_widths = [row[column].cell_len for row in rows]
        widths.append(max(len(head), *cell_widths))
    elastic = [column for column, head in enumerate(heads) if head.endswith("~")]
    elastic.sort(key=widths.__getitem__)
    fixed = sum(widths) - sum(widths[column] for column in elastic)
    space = width - 3 * len(heads) - fixed
    for index, column in enumerate(elastic):
        share = max(space // (len(elastic) - index), 8)
        column_width = min(widths[column], share)
        space -= column_width
        for row in rows:
            row[column].truncate(column_width, overflow="ellipsis")


def _columns(heads: Sequence[str], rows: list[list[Text]]) -> None:
    lines = [[head.rstrip("#~").upper() for head in heads]]
    lines += [[cell.plain or "-" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(cells).rstrip())


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line, without those that have no value."""
    shown = [(name, value) for name, value in rows if value not in (None, "", (), [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(Text.assemble((f"  {name.ljust(width)}  ", "dim"), _cell(value)))


def when(at: datetime | None) -> str:
    """A time in UTC; empty without one."""
    if at is None:
        return ""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def age(at: datetime) -> str:
    """How long ago, for people; the time itself for programs."""
    if not is_terminal():
        return when(at)
    elapsed = datetime.now(UTC) - at
    return span(max(elapsed.total_seconds(), 0))


def span(seconds: float) -> str:
    """A length of time in at most two units: 340 ms, 12 s, 2m 5s, 3h 20m, 4d 2h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return _two_units(
            days,
            "d",
            hours_left,
            "h",
        )
    if hours:
        return _two_units(
            hours,
            "h",
            minutes_left,
            "m",
        )
    return _two_units(
        minutes,
        "m",
        rest,
        "s",
    )


def _two_units(
    count: int,
    unit: str,
    rest: int,
    smaller: str,
) -> str:
    if not rest:
        return f"{count}{unit}"
    return f"{count}{unit} {rest}{smaller}"


def ahead(at: datetime) -> str:
    """How far away a time is: `in 2m 5s`, `now`, `3m ago`."""
    seconds = (at - datetime.now(UTC)).total_seconds()
    if abs(seconds) < 1:
        return "now"
    if seconds < 0:
        return f"{span(-seconds)} ago"
    return f"in {span(seconds)}"


def counted(count: int, noun: str, *, more: bool = False) -> str:
    """A number with its noun: `1 delivery`, `2,000 deliveries`; `more`: at least so many."""
    if count == 1 and not more:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        plural = f"{noun[:-1]}ies"
    elif noun.endswith("s"):
        plural = f"{noun}es"
    else:
        plural = f"{noun}s"
    if more:
        return f"{count:,}+ {plural}"
    return f"{count:,} {plural}"


def size(count: int) -> str:
    """A number of bytes."""
    if count < 1024:
        return f"{count} B"
    if count < 2**20:
        return f"{count / 1024:.1f} KiB"
    return f"{count / 2**20:.1f} MiB"


def plain_terminal() -> bool:
    """Whether output must not be redrawn: not a terminal, or a dumb one."""
    return not is_terminal() or console().is_dumb_terminal
