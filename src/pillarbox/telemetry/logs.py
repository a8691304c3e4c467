"""Log lines: one stream, one lock, and redaction in one place for everything that is written.

A process of Pillarbox calls `configure`: its own lines then skip `logging.Logger`, which costs more
than the rest of a line, and records of other libraries come through the same object as a handler on
the root logger. A stream that fails loses lines, never a mail.

In an application that embeds Pillarbox as a library, lines go to the standard loggers of `logging`,
redacted. The application's handlers, levels and filters apply, and nothing is changed for others.
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
from json.encoder import encode_basestring_ascii as quote  # one line stays one line in any viewer
from time import time
from types import TracebackType
from typing import Any, TextIO
from uuid import UUID

from pillarbox.model.secret import MASK, Secret

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
_WORDS = {
    DEBUG: "debug",
    INFO: "info",
    WARNING: "warning",
    ERROR: "error",
    logging.CRITICAL: "critical",
}

# Fields with ids and words of Pillarbox. A value that does not look like one is redacted anyway.
SAFE_FIELDS = frozenset({
    "message", "delivery", "attempt", "worker", "provider", "outcome", "reason", "state", "kind",
    "lane", "source", "signal", "version", "listener",
})  # fmt: skip
_RESERVED = frozenset({"ts", "level", "logger", "event"})

SAFE_LENGTH = 64  # the longest id is a UUID of 36 characters; a longer text is not an id
TEXT_LIMIT = 2_000  # a provider's answer fits; a mail's body does not
TRACEBACK_LIMIT = 16_000  # some 150 frames: a deep chain of causes
ITEMS_LIMIT = 50  # of a list or mapping: a log line is not a dump
DEPTH_LIMIT = 4  # of nesting, which also ends cycles
CACHED = 1_000  # events and field names are literals; more means that a caller formats them

# A stream that is full, broken, closed, reentered or missing.
STREAM_FAILURES = (OSError, ValueError, RuntimeError, AttributeError)
NOT_RENDERED = "a log line could not be rendered"

Redact = Callable[[str], str]
Fields = Mapping[str, object]


class _Clean(str):
    """Text that has been redacted already."""

    __slots__ = ()


class Cleaner:
    """Turns any value into plain JSON values, redacted."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact

    def text(self, text: str, limit: int = TEXT_LIMIT) -> _Clean:
        """Redact, then cut: the reverse would leave half an address, which no rule recognises."""
        if len(text) > 16 * limit:  # redacting megabytes would stall the worker
            text = text[: 16 * limit].rpartition(" ")[0]
        clean = self._redact(text)
        if len(clean) > limit:
            clean = clean[:limit] + "…"
        return _Clean(clean)

    def field(self, key: str, value: object) -> Any:
        if key in SAFE_FIELDS and isinstance(value, str) and looks_safe(value):
            return value
        return self.value(value)

    def value(self, value: object, depth: int = 0) -> Any:
        match value:
            case _Clean() | None | bool():
                return value
            case Secret():
                return MASK
            case Enum(value=int(number)):
                return number
            case Enum():
                return str(value.value)
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
    """Hide the details of PostgreSQL's errors: they show rows, with bodies of mails."""
    hidden: list[tuple[Any, object]] = []
    for cause in _chain(error):
        detail = getattr(cause, "detail", None)
        if detail and getattr(cause, "sqlstate", None):
            hidden.append((cause, detail))
    for cause, _ in hidden:
        cause.detail = None
    try:
        yield
    finally:
        for cause, detail in hidden:
            cause.detail = detail


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error with its causes, contexts and members of groups, each once."""
    remaining: list[BaseException | None] = [error]
    seen = set[int]()
    while remaining:
        current = remaining.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        remaining += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            remaining += current.exceptions


# No @, %40, space or quote.
looks_safe = re.compile(rf"[A-Za-z0-9_.:-]{{0,{SAFE_LENGTH}}}").fullmatch


def _number(value: float) -> float | str:
    """JSON knows no NaN and no infinity."""
    return value if value - value == 0 else str(value)


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    """The second in ISO form; most lines share it with the line before."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


# Formatting a number costs more than a look-up.
_MILLISECONDS = [f".{count:03d}Z" for count in range(1000)]


def _word(level: int) -> str:
    return _WORDS.get(level) or logging.getLevelName(level).lower()


class JsonLines:
    """One JSON object per line. On the worker's hot path: ids, words, numbers are not redacted."""

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
        return f"{clock} {_word(level):<7} {logger}: {self.text(event, fields)}\n"

    def text(self, event: str, fields: Fields) -> str:
        """The event and its fields, without time and level."""
        words = [_printable(self._clean.value(event))]
        trace: list[str] = []
        for key, value in fields.items():
            clean = self._clean.field(key, value)
            if key == "traceback" and isinstance(clean, str):
                trace = [f"    {_printable(line)}" for line in clean.splitlines()]
            else:
                words.append(f"{key}={_bare(clean)}")
        return "\n".join([" ".join(words), *trace])


def _printable(text: str) -> str:
    """Without control characters: a log must not move the reader's cursor nor forge a line."""
    if text.isprintable():
        return text
    return quote(text)[1:-1]


def _bare(value: Any) -> str:
    """A value without quotes where it cannot be misread."""
    printable = str(value).isprintable()
    if isinstance(value, str) and value and printable and not re.search(r"[\s\"=]", value):
        return value
    return json.dumps(value, ensure_ascii=not printable)


class Sink(logging.Handler):
    """Writes all lines of a process of Pillarbox, its own and those of other libraries."""

    def __init__(
        self, format: str, level: int, redact: Redact, stream: TextIO | None = None
    ) -> None:
        super().__init__(level)
        self._stream = stream
        # Reentrant: a signal handler may log in the middle of a line.
        self._guard = threading.RLock()
        self._clean = Cleaner(redact)
        self._render: JsonLines | Console = Console(self._clean)
        if format == "json":
            self._render = JsonLines(self._clean)
        self.dropped = 0

    def line(self, level: int, logger: str, event: str, fields: Fields) -> None:
        """Write one line; never raises, whatever the values, the redactor or the stream do."""
        try:
            if "exc" in fields:
                fields = dict(_unfold(self._clean, fields))
            text = self._render(level, logger, event, fields)
        except Exception as error:  # what cannot be redacted is not shown
            plain = JsonLines(Cleaner(lambda text: text))
            text = plain(level, logger, NOT_RENDERED, {"error": type(error).__name__})
        self._write(text)

    def emit(self, record: logging.LogRecord) -> None:
        """A record of another library: its whole text is redacted."""
        self.line(record.levelno, record.name, _text_of(record), _fields_of(record))

    def handle(self, record: logging.LogRecord) -> bool:
        """As the base class, without its lock: `_write` has its own."""
        if self.filter(record):
            self.emit(record)
        return True

    def _write(self, text: str) -> None:
        stream = self._stream or sys.stderr
        try:
            with self._guard:
                stream.write(text)
                stream.flush()  # a buffered line would be lost by kill -9, when it matters most
        except UnicodeEncodeError:
            self._write(text.encode("ascii", "backslashreplace").decode())
        except STREAM_FAILURES:
            self.dropped += 1


class StandardLogging:
    """Passes lines on to the loggers of `logging`, redacted; changes no handler and no level."""

    level = DEBUG  # the level of the standard logger decides

    def __init__(self, redact: Redact) -> None:
        self._clean = Cleaner(redact)
        self._render = Console(self._clean)

    def line(self, level: int, logger: str, event: str, fields: Fields) -> None:
        """Log one line; never raises because of a value or the redactor."""
        target = logging.getLogger(logger)
        if not target.isEnabledFor(level):
            return
        try:
            text = self._render.text(event, dict(_unfold(self._clean, fields)))
        except Exception as error:  # what cannot be redacted is not shown
            text = f"{NOT_RENDERED} error={type(error).__name__}"
        target.log(level, "%s", text, stacklevel=3)  # the caller of the method of Log


def _unfold(clean: Cleaner, fields: Fields) -> Iterator[tuple[str, object]]:
    """Replace `exc` by the error's text and traceback."""
    for key, value in fields.items():
        if key == "exc" and isinstance(value, BaseException):
            yield "error", value
            yield "traceback", clean.traceback(value)
        elif key != "exc" or value is not None:
            yield key, value


def _text_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the caller's arguments do not fit its format
        return f"{record.msg} (arguments do not fit)"


def _fields_of(record: logging.LogRecord) -> Fields:
    if record.exc_info and record.exc_info[1] is not None:
        return {"exc": record.exc_info[1]}
    return {}


_ADDRESS_LIKE = re.compile(r"\S*@\S*")


def _hide_addresses(text: str) -> str:
    """Redaction before the installation's key is known."""
    return _ADDRESS_LIKE.sub("[redacted]", text)


# Until this process calls `configure`, it belongs to an application that embeds Pillarbox.
_sink: Sink | StandardLogging = StandardLogging(_hide_addresses)
_mail_level = INFO


def summarise_mails(enabled: bool) -> None:
    """Write lines about single mails at level debug, because a MailSummary counts the mails."""
    global _mail_level
    _mail_level = DEBUG if enabled else INFO


class Log:
    """A named log. `exc=error` adds an error with its traceback; `bind` adds fields."""

    __slots__ = ("_bound", "name")

    def __init__(self, name: str, bound: Fields | None = None) -> None:
        self.name = name
        self._bound = dict(bound or {})

    def bind(self, **fields: object) -> Log:
        """A log that adds these fields to every line."""
        return Log(self.name, {**self._bound, **fields})

    def debug(self, event: str, /, **fields: object) -> None:
        if _sink.level <= DEBUG:
            if self._bound:
                fields = {**self._bound, **fields}
            _sink.line(DEBUG, self.name, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        if _sink.level <= INFO:
            if self._bound:
                fields = {**self._bound, **fields}
            _sink.line(INFO, self.name, event, fields)

    def mail(self, event: str, /, **fields: object) -> None:
        """A line about one mail: info, or debug where a MailSummary counts all mails."""
        if _sink.level <= _mail_level:
            if self._bound:
                fields = {**self._bound, **fields}
            _sink.line(_mail_level, self.name, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        if _sink.level <= WARNING:
            if self._bound:
                fields = {**self._bound, **fields}
            _sink.line(WARNING, self.name, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        if _sink.level <= ERROR:
            _sink.line(ERROR, self.name, event, {**self._bound, **fields})


def get(name: str) -> Log:
    """The log of a module. Before `configure`, it writes to the standard logger of that name."""
    return Log(name)


def write_warnings() -> None:
    """Write warnings to stderr until `configure`: every command of Pillarbox begins with this."""
    global _sink
    _sink = Sink("console", WARNING, _hide_addresses)


def use_standard_logging(redact: Redact) -> None:
    """Pass lines on to the standard loggers, redacted with the installation's key."""
    global _sink
    _sink = StandardLogging(redact)


def configure(format: str, level: str, redact: Redact, stream: TextIO | None = None) -> Sink:
    """Write all lines of this process, those of other libraries included, to `stream` or stderr.

    It replaces every handler of `logging`: only for a process that is Pillarbox's own.
    """
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
    """Loggers with handlers of their own (uvicorn's) and warnings would not be redacted."""
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.captureWarnings(True)


def catch_uncaught() -> None:
    """Log errors that end the process or a thread: their texts need redaction, too."""
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
