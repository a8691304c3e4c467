"""Running the command: in this process where it answers and ends, as a process of its own where it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

import psycopg
from typer.testing import CliRunner

from pillarbox.cli.main import root
from tests import PATIENCE


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """The command on one database."""

    def __init__(self, database_url: str) -> None:
        self.database_url = database_url
        self.env: dict[str, str | None] = {"PILLARBOX_DATABASE_URL": database_url, "COLUMNS": "200"}

    def __call__(self, *arguments: str, code: int = 0, stdin: str | None = None) -> Answer:
        """Run and expect this exit code."""
        result = CliRunner().invoke(root, list(arguments), input=stdin, env=self.env)
        answer = Answer(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)
        assert answer.code == code, f"{arguments}: {answer} {result.exception!r}"
        assert "Traceback" not in answer.err
        return answer

    def json(self, *arguments: str, code: int = 0) -> Any:
        return self(*arguments, "--json", code=code).json

    def send(self, *arguments: str, to: str = "reader@mail.example") -> str:
        """Enqueue a mail; returns its id."""
        return self("send", "--from", "sender@shop.example", "--to", to, *arguments).out.strip()

    def sql(self, query: str, *values: object) -> list[Any]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            done = connection.execute(query, values)
            return done.fetchall() if done.description else []


@contextmanager
def process(
    *arguments: str, env: dict[str, str] | None = None, stdout: int | None = None
) -> Iterator[Process]:
    """The command as a process of its own; killed at the end if it still runs."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PILLARBOX_", "MAILROOM_"))
    }
    with tempfile.TemporaryFile("w+") as printed:
        popen = subprocess.Popen(
            [sys.executable, "-m", "pillarbox", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=printed if stdout is None else stdout,
            stderr=printed,
            env=clean | (env or {}),
            start_new_session=True,
        )
        try:
            yield Process(popen, printed)
        finally:
            popen.kill()
            popen.wait()


class Process:
    """A running command, and what it has printed."""

    def __init__(self, popen: subprocess.Popen[bytes], printed: TextIO) -> None:
        self.popen = popen
        self._printed = printed

    @property
    def output(self) -> str:
        return os.pread(
            self._printed.fileno(), 10**6, 0
        ).decode()  # leaves the position to the process

    def wait_for(self, text: str, seconds: float = PATIENCE, times: int = 1) -> str:
        """Wait until it has printed this so many times; returns everything printed so far."""
        deadline = time.monotonic() + seconds
        while (printed := self.output).count(text) < times:
            assert self.popen.poll() is None, f"ended before it said {text!r}:\n{printed}"
            assert time.monotonic() < deadline, f"never said {text!r}:\n{printed}"
            time.sleep(0.02)
        return printed

    def signal(self, number: int = signal.SIGINT) -> None:
        self.popen.send_signal(number)

    def end(self, seconds: float = PATIENCE) -> int:
        """Wait for its end; returns the exit code."""
        return self.popen.wait(seconds)
