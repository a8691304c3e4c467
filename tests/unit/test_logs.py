"""Logs: every line is whole, nothing secret leaves, and a broken stream breaks nothing else."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.model.outcome import Reason, Verdict
from pillarbox.model.secret import Secret
from pillarbox.telemetry import logs

ALICE = "alice@example.com"
log = logs.get("deliver.worker")


def redact(text: str) -> str:
    return re.sub(r"\S+@\S+", "<redacted>", text)


@pytest.fixture(autouse=True)
def _restore(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logs, "_sink", logs._sink)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def out() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("json", "debug", redact, stream)
    return stream


@pytest.fixture
def console() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("console", "debug", redact, stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_time_level_logger_event_and_fields(out: io.StringIO) -> None:
    message = uuid4()
    log.info(
        "delivered",
        message=message,
        delivery=7,
        outcome=Verdict.ACCEPTED,
        reason=None,
        seconds=0.25,
        ok=True,
    )
    (line,) = lines(out)
    written = datetime.fromisoformat(line.pop("ts"))
    assert abs((datetime.now(UTC) - written).total_seconds()) < 60
    assert line == {
        "level": "info",
        "logger": "deliver.worker",
        "event": "delivered",
        "message": str(message),
        "delivery": 7,
        "outcome": "accepted",
        "reason": None,
        "seconds": 0.25,
        "ok": True,
    }


def test_bound_fields_come_first_and_can_be_overridden(out: io.StringIO) -> None:
    bound = log.bind(worker="w-1", attempt=1).bind(provider="main")
    bound.warning("deferred", attempt=2)
    (line,) = lines(out)
    assert list(line)[4:] == ["worker", "attempt", "provider"]
    assert line["attempt"] == 2


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)]
)
def test_levels(level: str, shown: int) -> None:
    stream = io.StringIO()
    logs.configure("json", level, redact, stream)
    for write in (log.debug, log.info, log.warning, log.error):
        write("word")
        logging.getLogger("foreign").log(
            10 * (1 + [log.debug, log.info, log.warning, log.error].index(write)), "x"
        )
    assert len(lines(stream)) == 2 * shown


def test_addresses_are_redacted_wherever_they_stand(out: io.StringIO) -> None:
    log.info(
        f"mail for {ALICE}",
        text=f"550 <{ALICE}> unknown",
        message=ALICE,  # a safe field that does not look safe
        reason=f"said {ALICE}",
        many=[ALICE, {"to": (ALICE,), ALICE: 1}],
        error=ValueError(ALICE),
        thing=type("Thing", (), {"__str__": lambda self: ALICE})(),
    )
    assert "alice" not in out.getvalue()
    assert out.getvalue().count("<redacted>") >= 7


def test_our_ids_and_words_are_left_alone() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", lambda text: "changed", stream)
    log.info(
        "x",
        message="0197-ab",
        provider="ses:eu-1",
        reason=Reason.MAILBOX_FULL,
        kind="plain",
        number=5,
    )
    (line,) = lines(stream)
    assert [line[key] for key in ("message", "provider", "reason", "kind", "number")] == [
        "0197-ab",
        "ses:eu-1",
        "mailbox_full",
        "plain",
        5,
    ]


def test_the_line_of_a_delivered_mail_is_never_redacted_twice() -> None:
    calls: list[str] = []
    logs.configure("json", "info", lambda text: calls.append(text) or text, io.StringIO())  # type: ignore[func-returns-value]
    for number in range(50):
        log.info(
            "delivered",
            message=uuid4(),
            delivery=number,
            provider="main",
            outcome=Verdict.ACCEPTED,
            ms=3.5,
        )
    assert calls == ["delivered"]


@pytest.mark.req("REQ-QUEUE-N003")
def test_secrets_never_show(out: io.StringIO) -> None:
    secret = Secret("hunter2")
    log.error("x", provider=secret, many=[{"a": secret}], raw=b"hunter2", exc=ValueError(secret))
    assert "hunter2" not in out.getvalue()
    assert lines(out)[0]["provider"] == "****"
    assert lines(out)[0]["raw"] == "<7 bytes>"


def test_an_error_brings_its_text_and_traceback_redacted(out: io.StringIO) -> None:
    try:
        try:
            raise KeyError(ALICE)
        except KeyError as cause:
            raise RuntimeError(f"for {ALICE}") from cause
    except RuntimeError as error:
        log.error("broke", exc=error, attempt=1)
    (line,) = lines(out)
    assert line["error"] == "RuntimeError: for <redacted>"
    assert "test_logs.py" in line["traceback"]
    assert "KeyError" in line["traceback"]
    assert "alice" not in out.getvalue()
    assert line["attempt"] == 1


def test_no_error_is_no_field(out: io.StringIO) -> None:
    log.info("fine", exc=None)
    assert "exc" not in lines(out)[0]


@pytest.mark.parametrize(
    "name", ["uvicorn.access", "asyncio", "aiosmtplib", "asyncpg", "new.library"]
)
def test_records_of_other_libraries_are_redacted_too(name: str) -> None:
    own, stream = io.StringIO(), io.StringIO()
    foreign = logging.getLogger(name)
    foreign.addHandler(logging.StreamHandler(own))  # as uvicorn does
    foreign.propagate = False
    logs.configure("json", "info", redact, stream)
    try:
        raise ValueError(ALICE)
    except ValueError:
        foreign.exception("rcpt %s", ALICE)
    (line,) = lines(stream)
    assert (line["logger"], line["level"], line["event"]) == (name, "error", "rcpt <redacted>")
    assert "ValueError: <redacted>" in line["traceback"]
    assert own.getvalue() == ""


def test_a_foreign_record_whose_arguments_do_not_fit_still_leaves(out: io.StringIO) -> None:
    record = logging.LogRecord("foreign", logging.WARNING, "f.py", 1, "%d mails", ("many",), None)
    logs._sink.handle(record)  # not by a logger: pytest's own handlers would raise
    logging.getLogger("foreign").log(15, "odd level")
    assert lines(out)[0]["event"] == "%d mails (arguments do not fit)"
    assert lines(out)[1]["level"] == "level 15"


def test_warnings_pass_redaction(out: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn(f"about {ALICE}", stacklevel=1)
        logging.captureWarnings(False)
    assert "py.warnings" in out.getvalue()
    assert "alice" not in out.getvalue()


def test_a_redactor_that_fails_shows_nothing() -> None:
    stream = io.StringIO()

    def broken(text: str) -> str:
        raise ZeroDivisionError(text)

    logs.configure("json", "info", broken, stream)
    log.info("x", text=ALICE)
    assert lines(stream)[0]["error"] == "ZeroDivisionError"
    assert "alice" not in stream.getvalue()


def test_a_value_that_cannot_be_shown_breaks_nothing(out: io.StringIO) -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError(ALICE)

    log.info("x", bad=Bad())
    log.info("y")
    assert [line["event"] for line in lines(out)] == ["a log line could not be rendered", "y"]


def test_long_texts_are_cut_after_redaction(out: io.StringIO) -> None:
    log.info(
        "x",
        text=f"{'a' * (logs.TEXT_LIMIT - 5)} {ALICE} end",
        huge=f"{ALICE} " * 50_000,
        one="b" * 10**6,
    )
    (line,) = lines(out)
    assert all(len(line[key]) <= logs.TEXT_LIMIT + 1 for key in ("text", "huge", "one"))
    assert "alice" not in out.getvalue()


def test_deep_and_cyclic_values_end(out: io.StringIO) -> None:
    cycle: list[object] = list(range(1000))
    cycle[0] = cycle
    log.info("x", cycle=cycle)
    assert len(lines(out)[0]["cycle"]) == logs.ITEMS_LIMIT


class Number(IntEnum):
    ONE = 1


class Odd(Enum):
    PAIR = (1, 2)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (Number.ONE, 1),
        (Odd.PAIR, "(1, 2)"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (10**30, 10**30),
        ({"a": math.nan}, {"a": "nan"}),
        ("line\nbreak\u2028\x1b[2J", "line\nbreak\u2028\x1b[2J"),
        ("\ud800", "\ud800"),
    ],
)
def test_unusual_values(out: io.StringIO, value: object, shown: object) -> None:
    log.info("x", value=value)
    log.info("x", value=value)  # the second time takes the cached way
    assert [line["value"] for line in lines(out)] == [shown, shown]


def test_a_uuid_of_the_database_driver_is_known(out: io.StringIO) -> None:
    class DriverUUID(UUID):
        pass

    value = DriverUUID(int=5)
    log.info("x", a=value)
    log.info("x", a=value)
    assert [line["a"] for line in lines(out)] == [str(value)] * 2


def test_reserved_and_odd_field_names_cannot_forge_a_line(out: io.StringIO) -> None:
    log.info("x", ts=1, level="low", **{'a"b': 2})
    (line,) = lines(out)
    assert (line["level"], line["ts_"], line["level_"], line['a"b']) == ("info", 1, "low", 2)


def test_formatted_events_do_not_fill_memory(out: io.StringIO) -> None:
    for number in range(logs.CACHED + 50):
        log.info(f"event {number}", **{f"field{number}": 1})
    render: Any = logs._sink._render
    assert len(render._heads) == len(render._keys) == logs.CACHED
    assert len(lines(out)) == logs.CACHED + 50


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.just(ALICE)
    | st.uuids()
)
hidden = st.just(Secret("hunter2")) | st.binary(max_size=9) | st.builds(ValueError, st.just(ALICE))
values = st.recursive(
    plain | hidden,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.just(ALICE), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.text(),
    st.dictionaries(st.sampled_from([*logs.SAFE_FIELDS, "text", "ts", "é"]), values, max_size=5),
)
def test_any_values_make_one_whole_line_without_secrets(event: str, fields: dict[str, Any]) -> None:
    for form in ("json", "console"):
        stream = io.StringIO()
        logs.configure(form, "info", redact, stream).line(logging.INFO, "any", event, fields)
        text = stream.getvalue()
        assert text.endswith("\n")
        assert "\n" not in text[:-1]
        assert "alice@" not in text
        assert "hunter2" not in text
        if form == "json":
            assert "could not be made" not in json.loads(text)["event"]


def test_console_lines_are_for_people(console: io.StringIO) -> None:
    log.info("mail sent", provider="main", said="250 queued", empty="", to=ALICE, many=[1, "é"])
    assert re.fullmatch(
        r'\d\d:\d\d:\d\d\.\d{3} info    deliver\.worker: mail sent provider=main said="250 queued" empty=""'
        r' to=<redacted> many=\[1, "é"\]\n',
        console.getvalue(),
    )


def test_rows_that_the_database_shows_in_its_errors_stay_out(out: io.StringIO) -> None:
    """PostgreSQL tells which row it refused: whole bodies of mails, in which no rule sees anything personal."""
    refused = asyncpg.CheckViolationError("the row violates a check")
    refused.detail = "Failing row contains (7, The key is\nunder the mat)."
    try:
        raise RuntimeError("not stored") from ExceptionGroup("several", [refused])
    except RuntimeError as error:
        log.error("it broke", exc=error, also=refused)
    [line] = lines(out)
    assert "violates a check" in line["traceback"]
    assert "under the mat" not in out.getvalue()


def test_console_shows_tracebacks_below_and_control_characters_escaped(
    console: io.StringIO,
) -> None:
    log.error("a\x1b[2Jb\nforged", exc=ValueError(f"one\n{ALICE}"), text="x\ry")
    first, *below = console.getvalue().splitlines()
    assert r"a\u001b[2Jb\nforged" in first
    assert r'text="x\ry"' in first
    assert below[-1] == "    <redacted>"
    assert all(line.startswith("    ") for line in below)


def test_auto_is_console_on_a_terminal_and_json_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    logs.configure("auto", "info", redact, terminal)
    log.info("x")
    logs.configure("auto", "info", redact, file)
    log.info("x")
    assert " info " in terminal.getvalue()
    assert file.getvalue().startswith("{")


def test_a_full_disk_loses_lines_and_nothing_else() -> None:
    stream = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    sink = logs.configure("json", "info", redact, stream)
    for _ in range(1000):
        log.info("x", text="y" * 100)
    logging.getLogger("foreign").error("z")
    assert sink.dropped == 1001
    with pytest.raises(OSError):
        stream.close()


def test_a_broken_pipe_loses_lines_and_nothing_else() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    sink = logs.configure("json", "info", redact, stream)
    log.info("x")
    log.info("y")
    assert sink.dropped == 2
    with pytest.raises(BrokenPipeError):
        stream.close()
    log.info("closed")
    assert sink.dropped == 3


def test_no_stderr_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    sink = logs.configure("auto", "info", redact)
    log.info("x")
    assert sink.dropped == 1


def test_a_stream_that_lacks_a_letter_gets_an_escape() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    logs.configure("console", "info", redact, stream)
    log.info("größe")
    assert b"gr\\xf6\\xdfe" in stream.buffer.getvalue()  # type: ignore[attr-defined]


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        logs.configure("json", "info", redact, stream)

        def work(number: int) -> None:
            for count in range(200):
                log.info("ours", thread=number, count=count)
                logging.getLogger("foreign").info("theirs %d", count)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len([json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]) == 1600


def test_a_command_writes_warnings_before_it_is_configured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.write_warnings()
    log.info("not shown")
    log.warning("shown", to=ALICE)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "shown to=[redacted]" in shown


# --- as a library in an application


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[logging.LogRecord]]:
    """The records that a handler of the application gets, once Pillarbox was imported and used."""
    monkeypatch.setattr(logs, "_sink", logs.StandardLogging(redact))
    records: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler, root = Handler(), logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield records
    assert handler in root.handlers
    root.removeHandler(handler)


def test_handlers_of_an_application_get_our_lines_redacted(
    embedded: list[logging.LogRecord],
) -> None:
    log.debug("below the application's level")
    log.info("sent", message=UUID(int=7), to=ALICE)
    [record] = embedded
    assert (record.name, record.levelname) == ("deliver.worker", "INFO")
    assert record.getMessage() == f"sent message={UUID(int=7)} to=<redacted>"
    assert record.funcName == "test_handlers_of_an_application_get_our_lines_redacted"


def test_levels_of_an_application_apply(embedded: list[logging.LogRecord]) -> None:
    logger = logging.getLogger("deliver.worker")
    logger.setLevel(logging.ERROR)
    try:
        log.warning("not wanted")
        log.error("wanted")
    finally:
        logger.setLevel(logging.NOTSET)
    assert [record.getMessage() for record in embedded] == ["wanted"]


def test_errors_reach_an_application_with_their_traceback_redacted(
    embedded: list[logging.LogRecord],
) -> None:
    try:
        raise ValueError(ALICE)
    except ValueError as error:
        log.error("failed", exc=error)
    [record] = embedded
    assert record.exc_info is None
    assert "ValueError: <redacted>" in record.getMessage()
    assert "Traceback" in record.getMessage()
    assert "alice" not in record.getMessage()


def test_a_line_that_cannot_be_redacted_is_not_shown_to_an_application(
    embedded: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(text: str) -> str:
        raise RuntimeError(text)

    logs.use_standard_logging(broken)
    log.warning("failed", to=ALICE)
    assert embedded[0].getMessage() == "a log line could not be rendered error=RuntimeError"


def test_using_the_library_changes_no_handler_and_no_level() -> None:
    """In a new process: `import pillarbox` and its lines leave the application's logging alone."""
    program = """
import io, logging
stream = io.StringIO()
logging.basicConfig(stream=stream, level=logging.INFO, format="%(name)s %(message)s")
before = logging.root.handlers[:], logging.root.level
import pillarbox, pillarbox.app
from pillarbox.telemetry import logs
logging.getLogger("application").info("its own line")
logs.get("pillarbox.test").warning("a line", to="alice@example.com")
assert (logging.root.handlers, logging.root.level) == before
assert stream.getvalue() == "application its own line\\npillarbox.test a line to=[redacted]\\n"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_uncaught_errors_leave_redacted(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    logs.catch_uncaught()
    sys.excepthook(ValueError, ValueError(ALICE), None)
    thread = threading.Thread(target=lambda: [][len(ALICE)])
    thread.start()
    thread.join()
    assert [line["event"] for line in lines(out)] == [
        "uncaught error",
        "uncaught error in a thread",
    ]
    assert "alice" not in out.getvalue()


def test_an_interrupt_is_no_error(
    out: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    logs.catch_uncaught()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert out.getvalue() == ""
    assert "KeyboardInterrupt" in capsys.readouterr().err
