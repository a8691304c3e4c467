"""Log lines, ours and everybody else's: one stream, one lock, and redaction once for all that leaves.

Our own lines skip `logging.Logger`, which costs more than the rest of a line; records of other
libraries come through the same object as a handler on the root logger. A stream that fails loses
lines, never a mail.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from enum import Enum
from functools import lru_cache
from json.encoder import (
    encode_basestring_ascii as quote,
)  # ASCII: one line stays one line in any viewer
from time import time
from types import TracebackType
from typing import Any, TextIO
from uuid import UUID

from pillarbox.model.secret import Secret

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
_WORDS = {
    DEBUG: "debug",
    INFO: "info",
    WARNING: "warning",
    ERROR: "error",
    logging.CRITICAL: "critical",
}

# Our own ids and words. A value that does not look like one is redacted all the same.
SAFE_FIELDS = frozenset(
    {
        "message",
        "delivery",
        "attempt",
        "worker",
        "provider",
        "outcome",
        "reason",
        "state",
        "kind",
        "lane",
    }
    | {"source", "signal", "version", "listener"}
)
_RESERVED = frozenset({"ts", "level", "logger", "event"})

SAFE_LENGTH = 64  # our longest id is a UUID of 36; a longer text is no id of ours
TEXT_LIMIT = 2_000  # a provider's answer fits; a mail's body does not
TRACEBACK_LIMIT = 16_000  # some 150 frames: a deep chain of causes
ITEMS_LIMIT = 50  # of a list or mapping: a log line is no dump
DEPTH_LIMIT = 4  # of nesting, which also ends cycles
CACHED = (
    1_000  # events and field names are literals in our code; more means that someone formats them
)

Redact = Callable[[str], str]
Fields = Mapping[str, object]


class _Clean(str):
    """Text that has been redacted already."""

    __slots__ = ()


class Cleaner:
    """Turns any value into plain JSON values without anything secret."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact

    def text(self, text: str, limit: int = TEXT_LIMIT) -> _Clean:
        """Redact, then cut: the other way round would leave half an address that nobody recognises."""
        if len(text) > 16 * limit:  # redacting megabytes would stall the worker
            text = text[: 16 * limit].rpartition(" ")[0]
        clean = self._redact(text)
        return _Clean(clean if len(clean) <= limit else clean[:limit] + "…")

    def field(self, key: str, value: object) -> Any:
        if key in SAFE_FIELDS and isinstance(value, str) and looks_safe(value):
            return value
        return self.value(value)

    def value(self, value: object, depth: int = 0) -> Any:
        match value:
            case _Clean() | None | bool():
                return value
            case Secret():
                return "****"
            case Enum():
                return value.value if isinstance(value.value, int) else str(value.value)
            case int() | float():
                return _number(value)
            case str():
                return self.text(value)
            case _:
                return self._rare(value, depth)

    def _rare(self, value: object, depth: int) -> Any:
        match value:
            case UUID():
                return str(value)
            case date():
                return value.isoformat()
            case bytes() | bytearray() | memoryview():
                return f"<{len(value)} bytes>"
            case BaseException():
                with _without_rows(value):
                    return self.text(f"{type(value).__name__}: {value}")
            case dict() | list() | tuple() | set() | frozenset() if depth < DEPTH_LIMIT:
                return self._many(value, depth + 1)
            case dict() | list() | tuple() | set() | frozenset():
                return "…"
            case _:
                return self.text(str(value))

    def _many(self, values: Any, depth: int) -> Any:
        if isinstance(values, dict):
            some = list(values.items())[:ITEMS_LIMIT]
            return {self.text(str(key)): self.value(value, depth) for key, value in some}
        return [self.value(value, depth) for value in list(values)[:ITEMS_LIMIT]]

    def traceback(self, error: BaseException) -> _Clean:
        with _without_rows(error):
            return self.text("".join(traceback.format_exception(error)).rstrip(), TRACEBACK_LIMIT)


@contextmanager
def _without_rows(error: BaseException) -> Iterator[None]:
    """Hide the rows that PostgreSQL shows in details of errors: bodies of mails, which no rule recognises."""
    told: list[Any] = [
        one
        for one in _chain(error)
        if getattr(one, "sqlstate", None) and getattr(one, "detail", None)
    ]
    details = [one.detail for one in told]
    for one in told:
        one.detail = None
    try:
        yield
    finally:
        for one, detail in zip(told, details, strict=True):
            one.detail = detail


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and all that led to it."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [other for other in (one.__cause__, one.__context__) if other is not None]
            left += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


looks_safe = re.compile(
    rf"[A-Za-z0-9_.:-]{{0,{SAFE_LENGTH}}}"
).fullmatch  # no @, %40, space or quote


def _number(value: float) -> float | str:
    """JSON knows no NaN and no infinity."""
    return value if value - value == 0 else str(value)


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    """The second in ISO form; most lines share it with the line before."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


_MILLISECONDS = [
    f".{count:03d}Z" for count in range(1000)
]  # formatting a number costs more than a look-up


def _word(level: int) -> str:
    return _WORDS.get(level) or logging.getLevelName(level).lower()


class JsonLines:
    """One JSON object per line. The hot path of the worker: ids, words and numbers take no detour."""

    def __init__(self, cleaner: Cleaner) -> None:
        self._clean = cleaner
        self._heads: dict[tuple[int, str, str], str] = {}
        self._keys: dict[str, str] = {}
        self._quick: dict[type, Callable[[Any], str]] = {
            int: int.__repr__,
            float: _json_float,
            bool: {True: "true", False: "false"}.__getitem__,
            type(None): lambda _: "null",
            UUID: _json_uuid,
            _Clean: quote,
        }

    def __call__(self, level: int, logger: str, event: str, fields: Fields) -> str:
        now = time()
        head = self._heads.get((level, logger, event)) or self._head(level, logger, event)
        second = int(now)
        line = '{"ts":"' + _second(second) + _MILLISECONDS[int((now - second) * 1000)] + head
        quicks, keys = self._quick, self._keys
        for key, value in fields.items():
            quick = quicks.get(type(value))
            text = quick(value) if quick is not None else self._value(key, value)
            line += (keys.get(key) or self._key(key)) + text
        return line + "}\n"

    def _head(self, level: int, logger: str, event: str) -> str:
        known = quote(self._clean.text(event))
        head = f'","level":"{_word(level)}","logger":{quote(logger)},"event":{known}'
        if len(self._heads) < CACHED and len(event) <= SAFE_LENGTH:
            self._heads[level, logger, event] = head
        return head

    def _key(self, key: str) -> str:
        known = f",{quote(key + '_' if key in _RESERVED else key)}:"
        if len(self._keys) < CACHED:
            self._keys[key] = known
        return known

    def _value(self, key: str, value: object) -> str:
        if type(value) is str and key in SAFE_FIELDS and looks_safe(value):
            return f'"{value}"'  # what looks safe needs no escapes either
        if isinstance(value, UUID):  # asyncpg has a faster one of its own
            self._quick[type(value)] = _json_uuid
        if isinstance(value, Enum) and isinstance(value.value, str):
            self._quick[type(value)] = _json_enum
        return json.dumps(self._clean.field(key, value))


def _json_float(value: float) -> str:
    return repr(value) if value - value == 0 else f'"{value}"'  # JSON knows no NaN and no infinity


def _json_uuid(value: UUID) -> str:
    return '"' + str(value) + '"'


def _json_enum(member: Enum) -> str:
    return quote(member._value_)  # `.value` costs three times as much


class Console:
    """Lines for people: time, level, logger, event, then key=value; tracebacks indented below."""

    def __init__(self, cleaner: Cleaner) -> None:
        self._clean = cleaner

    def __call__(self, level: int, logger: str, event: str, fields: Fields) -> str:
        clock = datetime.now(UTC).isoformat(timespec="milliseconds")[11:23]
        words = [f"{clock} {_word(level):<7} {logger}: {_printable(self._clean.value(event))}"]
        below = ""
        for key, value in fields.items():
            clean = self._clean.field(key, value)
            if key == "traceback" and isinstance(clean, str):
                below = "".join(f"    {_printable(line)}\n" for line in clean.splitlines())
            else:
                words.append(f"{key}={_bare(clean)}")
        return " ".join(words) + "\n" + below


def _printable(text: str) -> str:
    """Without control characters: a log must not move the reader's cursor nor forge a line."""
    return text if text.isprintable() else quote(text)[1:-1]


def _bare(value: Any) -> str:
    if (
        isinstance(value, str)
        and value.isprintable()
        and value
        and not re.search(r"[\s\"=]", value)
    ):
        return value
    return json.dumps(value, ensure_ascii=not str(value).isprintable())


class Sink(logging.Handler):
    """The one place where lines leave the process."""

    def __init__(
        self, format: str, level: int, redact: Redact, stream: TextIO | None = None
    ) -> None:
        super().__init__(level)
        self._stream = stream
        self._guard = (
            threading.RLock()
        )  # reentrant: a signal handler may log in the middle of a line
        self._clean = Cleaner(redact)
        self._render = JsonLines(self._clean) if format == "json" else Console(self._clean)
        self.dropped = 0

    def line(self, level: int, logger: str, event: str, fields: Fields) -> None:
        """Write one line; never raises, whatever the values, the redactor or the stream do."""
        try:
            if "exc" in fields:
                fields = dict(self._unfold(fields))
            text = self._render(level, logger, event, fields)
        except Exception as error:  # what cannot be redacted is not shown
            text = self._failed(level, logger, error)
        self._write(text)

    def emit(self, record: logging.LogRecord) -> None:
        """A record of another library: its whole text is redacted."""
        self.line(record.levelno, record.name, _text_of(record), _fields_of(record))

    def handle(self, record: logging.LogRecord) -> bool:
        """As the base class, without its lock: `_write` has its own."""
        if self.filter(record):
            self.emit(record)
        return True

    def _unfold(self, fields: Fields) -> Iterator[tuple[str, object]]:
        """Replace `exc` by the error's text and traceback."""
        for key, value in fields.items():
            if key == "exc" and isinstance(value, BaseException):
                yield "error", value
                yield "traceback", self._clean.traceback(value)
            elif key != "exc" or value is not None:
                yield key, value

    def _failed(self, level: int, logger: str, error: Exception) -> str:
        plain = JsonLines(Cleaner(lambda text: text))  # only our own words from here on
        return plain(level, logger, "a log line could not be made", {"error": type(error).__name__})

    def _write(self, text: str) -> None:
        stream = self._stream or sys.stderr
        try:
            with self._guard:
                stream.write(text)
                stream.flush()  # a line that waits in a buffer is lost by kill -9, when it matters most
        except UnicodeEncodeError:
            self._write(text.encode("ascii", "backslashreplace").decode())
        except (
            OSError,
            ValueError,
            RuntimeError,
            AttributeError,
        ):  # full, broken, closed, reentered, none
            self.dropped += 1


def _text_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the caller's arguments do not fit its format
        return f"{record.msg} (arguments do not fit)"


def _fields_of(record: logging.LogRecord) -> Fields:
    error = record.exc_info[1] if record.exc_info else None
    return {} if error is None else {"exc": error}


_ADDRESS_LIKE = re.compile(r"\S*@\S*")
_sink = Sink(
    "console", WARNING, lambda text: _ADDRESS_LIKE.sub("[redacted]", text)
)  # until configured


_mail_level = INFO


def summarise_mails(wanted: bool) -> None:
    """Whether lines about single mails are for debugging only, because something else sums them up."""
    global _mail_level
    _mail_level = DEBUG if wanted else INFO


class Log:
    """A named log. `exc=error` adds an error with its traceback; `bind` gives a log with more fields."""

    __slots__ = ("_bound", "name")

    def __init__(self, name: str, bound: Fields | None = None) -> None:
        self.name = name
        self._bound = dict(bound or {})

    def bind(self, **fields: object) -> Log:
        return Log(self.name, {**self._bound, **fields} if self._bound else fields)

    def debug(self, event: str, /, **fields: object) -> None:
        if _sink.level <= DEBUG:
            _sink.line(
                DEBUG, self.name, event, {**self._bound, **fields} if self._bound else fields
            )

    def info(self, event: str, /, **fields: object) -> None:
        if _sink.level <= INFO:
            _sink.line(INFO, self.name, event, {**self._bound, **fields} if self._bound else fields)

    def mail(self, event: str, /, **fields: object) -> None:
        """A line about one mail: info, or debug where a summary tells of all mails together."""
        if _sink.level <= _mail_level:
            _sink.line(
                _mail_level, self.name, event, {**self._bound, **fields} if self._bound else fields
            )

    def warning(self, event: str, /, **fields: object) -> None:
        if _sink.level <= WARNING:
            _sink.line(
                WARNING, self.name, event, {**self._bound, **fields} if self._bound else fields
            )

    def error(self, event: str, /, **fields: object) -> None:
        if _sink.level <= ERROR:
            _sink.line(ERROR, self.name, event, {**self._bound, **fields})


def get(name: str) -> Log:
    """The log of a module; works before `configure` too, for warnings and errors."""
    return Log(name)


def configure(format: str, level: str, redact: Redact, stream: TextIO | None = None) -> Sink:
    """Send everything, ours and others', to `stream` (default: stderr). Calling again replaces the former."""
    global _sink
    if format == "auto":
        format = "console" if _is_terminal(stream or sys.stderr) else "json"
    _sink = Sink(format, getattr(logging, level.upper()), redact, stream)
    root = logging.getLogger()
    root.handlers[:] = [_sink]
    root.setLevel(_sink.level)
    _take_over_others()
    return _sink


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def _take_over_others() -> None:
    """Loggers with handlers of their own (uvicorn's) and warnings would pass redaction by."""
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.captureWarnings(True)


def catch_uncaught() -> None:
    """Let errors that end the process or a thread leave as log lines: their texts need redaction too."""
    log = get("pillarbox")

    def uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            log.error("uncaught error", exc=error)

    sys.excepthook = uncaught
    threading.excepthook = lambda args: log.error("uncaught error in a thread", exc=args.exc_value)
