"""Text for people and JSON for programs. What comes from mails is hostile: nothing of it moves the cursor."""

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
    """A console on what stdout or stderr is now. rich itself honours NO_COLOR and what a terminal can do."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def clean(text: object) -> str:
    """One line without control characters, bidirectional overrides and the like: they become escapes."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        one if one.isprintable() else " " if one.isspace() and one > "\x9f" else _escape(one)
        for one in shown
    )


def clean_lines(text: str) -> str:
    """As `clean`, but lines stay lines and tabs stay tabs."""
    return "\n".join(
        "\t".join(clean(part) for part in line.split("\t")) for line in text.splitlines()
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def styled(word: object) -> Text:
    """A state or verdict in its colour."""
    return Text(clean(word), style=STYLES.get(str(word), ""))


def say(*parts: RenderableType) -> None:
    """Print a line for people."""
    console().print(*parts, soft_wrap=True)


def note(text: str) -> None:
    """Print a remark on stderr, so that stdout holds the answer alone."""
    console(stderr=True).print(Text(clean(text), style="dim"), soft_wrap=True)


def error(text: str) -> None:
    line = Text.assemble(("error: ", "bold red"), clean_lines(text))
    console(stderr=True).print(line, soft_wrap=True)


def progress() -> Progress:
    """A bar on stderr while something lasts; nothing at all where that is no terminal."""
    shown = console(stderr=True)
    return Progress(console=shown, transient=True, disable=not shown.is_terminal)


def write_bytes(content: bytes) -> None:
    """Exact bytes for programs; on a terminal, what a terminal can bear."""
    if is_terminal():
        say(Text(clean_lines(content.decode("utf-8", "replace"))))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def print_json(value: object) -> None:
    """JSON with stable keys, those of our dataclasses. ASCII, so that it harms no terminal."""
    print(json.dumps(plain(value), indent=2 if is_terminal() else None))


def plain(value: Any) -> Any:
    """Plain JSON values of anything we show."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            _key(one.name): plain(getattr(value, one.name)) for one in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _key(name: str) -> str:
    return "class" if name == "class_name" else name


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "nothing") -> None:
    """A table: drawn on a terminal, plain columns elsewhere. Cells are text or Text."""
    shown = [
        [one if isinstance(one, Text) else Text(clean(one or "")) for one in row] for row in rows
    ]
    if not shown:
        note(empty)
    elif is_terminal():
        _fit(heads, shown, console().width)
        console().print(drawn(heads, shown))
    else:
        _columns(heads, shown)


def drawn(heads: Sequence[str], rows: Iterable[Sequence[Text]]) -> Table:
    """The table as rich draws it; `#` after a head means numbers, `~` that its cells may be cut to fit."""
    drawing = Table(box=SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for head in heads:
        side: Literal["left", "right"] = "right" if head.endswith("#") else "left"
        drawing.add_column(
            head.rstrip("#~"), justify=side, overflow="fold", no_wrap=not head.endswith("~")
        )
    for row in rows:
        drawing.add_row(*row)
    return drawing


def _fit(heads: Sequence[str], rows: list[list[Text]], width: int) -> None:
    """Cut the cells that may be cut, so that a row stays a line; the short columns are left whole."""
    wanted = [max(len(head), *(row[n].cell_len for row in rows)) for n, head in enumerate(heads)]
    elastic = sorted(
        (n for n, head in enumerate(heads) if head.endswith("~")), key=wanted.__getitem__
    )
    room = width - 3 * len(heads) - sum(wanted[n] for n in range(len(heads)) if n not in elastic)
    for place, n in enumerate(elastic):
        share = max(room // (len(elastic) - place), 8)
        room -= min(wanted[n], share)
        for row in rows:
            row[n].truncate(min(wanted[n], share), overflow="ellipsis")


def _columns(heads: Sequence[str], rows: list[list[Text]]) -> None:
    lines = [
        [head.rstrip("#~").upper() for head in heads],
        *([one.plain or "-" for one in row] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Names and values below each other; those without a value are left out."""
    shown = [(name, value) for name, value in rows if value not in (None, "", (), [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        text = value if isinstance(value, Text) else Text(clean(value))
        say(Text.assemble((f"  {name.ljust(width)}  ", "dim"), text))


def when(at: datetime | None) -> str:
    """A time, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z" if at else ""


def age(at: datetime) -> str:
    """How long ago, for people; the time itself for programs."""
    return span(max((datetime.now(UTC) - at).total_seconds(), 0)) if is_terminal() else when(at)


def span(seconds: float) -> str:
    """A length of time in at most two units: 340 ms, 12 s, 2m 5s, 3h 20m, 4d 2h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    for count, unit, left, small in (
        (days, "d", hours_left, "h"),
        (hours, "h", minutes_left, "m"),
        (minutes, "m", rest, "s"),
    ):
        if count:
            return f"{count}{unit} {left}{small}" if left else f"{count}{unit}"
    return "0 s"


def ahead(at: datetime) -> str:
    """How far away a time is: `in 2m 5s`, `now`, `3m ago`."""
    seconds = (at - datetime.now(UTC)).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def counted(count: int, noun: str, *, more: bool = False) -> str:
    """A number with its noun: `1 delivery`, `2,000 deliveries`; `more`: there are at least so many."""
    if count == 1 and not more:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        plural = f"{noun[:-1]}ies"
    elif noun.endswith("s"):
        plural = f"{noun}es"
    else:
        plural = f"{noun}s"
    return f"{count:,}{'+' if more else ''} {plural}"


def octets(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 2**20 else f"{count / 2**20:.1f} MiB"


def plain_terminal() -> bool:
    """Whether nothing should move: no terminal, or a dumb one."""
    return not is_terminal() or console().is_dumb_terminal
