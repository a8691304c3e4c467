"""Checks entries of suppression lists, and reads and writes lists as CSV. Pure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import NamedTuple

from pillarbox.accept.checks import check_recipient
from pillarbox.errors import InvalidMail
from pillarbox.model.suppression import SuppressionEntry, SuppressionReason

COLUMNS = ("address", "reason", "note", "expires_at")
# A sentence or two; whole stories belong elsewhere.
LONGEST_NOTE = 500
# How formulas begin in programs that open CSV. An address may begin so, too, and anybody chooses
# their own: behind a blank, which reading drops, it is a text.
FORMULA = ("=", "+", "-", "@")
_control = re.compile(r"[\x00-\x1f\x7f]").search
_time = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d").match


class SuppressionFault(NamedTuple):
    """What is wrong with a line; 1 is the first. It does not repeat what stands there."""

    line: int
    code: str
    field: str
    message: str


def checked(
    address: str, reason: str | None, note: str | None, expires_at: datetime | None
) -> SuppressionEntry:
    """An entry, if it may stand on a list; InvalidMail says what is wrong with it."""
    return SuppressionEntry(_bare(address), _cause(reason), _note(note), _future(expires_at))


def is_address(text: str) -> bool:
    """Whether this is an address that can be on a list."""
    try:
        _bare(text)
    except InvalidMail:
        return False
    return True


def _bare(address: str) -> str:
    try:
        check_recipient(address)
    except InvalidMail as error:
        raise InvalidMail(error.code, "address", error.message, error.hint) from None
    if address.endswith(">"):
        raise InvalidMail("bad_address", "address", "not a bare address", "write name@domain")
    return address


def _cause(reason: str | None) -> SuppressionReason:
    try:
        return SuppressionReason(reason or SuppressionReason.MANUAL)
    except ValueError:
        raise InvalidMail(
            "bad_value", "reason", f"must be one of {', '.join(SuppressionReason)}"
        ) from None


def _note(note: str | None) -> str | None:
    if note and (len(note) > LONGEST_NOTE or _control(note)):
        raise InvalidMail("bad_value", "note", f"may have {LONGEST_NOTE} characters on one line")
    try:
        (note or "").encode()
    except UnicodeEncodeError:
        raise InvalidMail(
            "not_unicode", "note", "contains half a character (a lone surrogate)"
        ) from None
    return note or None


def _future(at: datetime | None) -> datetime | None:
    if at is not None and at <= datetime.now(UTC):
        raise InvalidMail(
            "out_of_range",
            "expires_at",
            "must lie in the future",
            "leave it out for one that stays",
        )
    return at


# --- CSV


def read(lines: Iterable[str]) -> Iterator[SuppressionEntry | SuppressionFault]:
    """The entries of a list, line by line, and what is wrong with the others.

    The first line may name the columns, in any order; without such a line they are `COLUMNS`, of
    which only the first must be there. Empty lines are passed over.
    """
    reader = csv.reader(lines, strict=True)
    names: Sequence[str] | None = None
    while True:
        try:
            cells = next(reader, None)
        except csv.Error:
            # What follows a quote that is never closed cannot be told apart any more.
            yield SuppressionFault(
                reader.line_num, "bad_value", "line", "cannot be read as CSV: look at its quotes"
            )
            return
        if cells is None:
            return
        if not any(cells):
            continue
        if names is None:
            names, is_head = _head(cells)
            if is_head:
                continue
        yield _entry(reader.line_num, names, cells)


def _head(cells: Sequence[str]) -> tuple[Sequence[str], bool]:
    """The names of the columns, and whether the first line is what names them."""
    words = [cell.strip().lstrip("\ufeff").lower() for cell in cells]
    if "address" in words:
        return words, True
    return COLUMNS, False


def _entry(
    line: int, names: Sequence[str], cells: Sequence[str]
) -> SuppressionEntry | SuppressionFault:
    if len(cells) > len(names):
        return SuppressionFault(
            line, "bad_value", "line", f"has {len(cells)} columns instead of {len(names)}"
        )
    row = {name: cell.strip() for name, cell in zip(names, cells, strict=False)}
    try:
        address = row.get("address", "").removeprefix("\ufeff")
        return checked(
            address, row.get("reason", "").lower(), row.get("note"), _moment(row.get("expires_at"))
        )
    except InvalidMail as error:
        return SuppressionFault(line, error.code, error.field, error.message)


def _moment(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text) if _time(text) else None
        if at is not None and at.tzinfo is not None:
            return at.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidMail(
        "bad_value", "expires_at", "must be a time with its zone, such as 2030-12-31T23:59:00Z"
    )


# An address on a list as a row of its file.
row = attrgetter(*COLUMNS)


def written(rows: Iterable[Sequence[object]]) -> str:
    """Lines of CSV; times as ISO 8601 writes them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(one) for one in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"\t{value}"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value
