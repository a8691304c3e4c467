"""README and tutorial, followed literally, in this order, on one machine: every command block works.

Each block of `sh` runs in the second terminal, one bash for each document; `sql` goes to the session that
`pillarbox sql` opened there; a block of `python` is saved under the name that the text gives it.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.places import temporary_directory

from pillarbox.store.embedded import EmbeddedPostgres

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/tutorial/first-mail.md")
# Blocks that cannot run here, by a line of theirs, and why.
NOT_RUN = {
    "pillarbox provider add smtp relay --host smtp.example.com --username me": "needs a mail server of the reader's",
}
# Lines that are replaced; everything else runs as it stands. The ports are those of this test, and
# 20,000 mails would only take longer.
REPLACED = {
    "make test    # run all tests": "true  # this is one of them",
    "--count 20000": "--count 500",
    "--count 5000": "--count 200",
    "pillarbox template preview ": "pillarbox template preview --http 127.0.0.1:0 ",
}
# Commands that go on until Ctrl-C. They get it once they have said something.
ENDLESS = ("pillarbox queue stats --watch", "pillarbox template preview")
# In a terminal of their own, to the end of the document.
IN_THE_BACKGROUND = (".venv/bin/python moody.py",)
DEADLINE = 300
# Prints a mark and the exit code of what came before, on a line of its own.
SHELL_END = "printf '\\n%s %%s\\n' $?"


@dataclass
class Block:
    kind: str
    text: str
    before: str
    after: str


def blocks(document: str) -> list[Block]:
    text = (ROOT / document).read_text("utf-8")
    found = list(re.finditer(r"^```(\w*)\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL))
    edges = [0, *(one.end() for one in found)]
    starts = [*(one.start() for one in found[1:]), len(text)]
    return [
        Block(
            one[1],
            one[2],
            text[edges[n] : one.start()],
            text[one.end() : starts[n]] + _next_output(found, n),
        )
        for n, one in enumerate(found)
        if one[1]
    ]


def _next_output(found: list[re.Match[str]], n: int) -> str:
    """The block of plain text that follows a block: what it is said to print."""
    return found[n + 1][2] if n + 1 < len(found) and not found[n + 1][1] else ""


def wait_for(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Talk:
    """A program that reads from a terminal or a pipe, and what it has said so far."""

    def __init__(
        self, command: list[str], directory: Path, environment: dict[str, str], terminal: bool
    ) -> None:
        self.said = directory / f"said-{uuid.uuid4().hex}"
        ours, theirs = pty.openpty() if terminal else os.pipe()[::-1]
        with self.said.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=directory, env=environment, stdin=theirs, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        os.close(theirs)
        self._input = ours

    def output(self) -> str:
        return self.said.read_text("utf-8", "replace")

    def tell(self, text: str) -> None:
        os.write(self._input, text.encode())

    def ask(self, text: str, end: str) -> tuple[str, str]:
        """Say something, then let it print a mark by `end`: what it said meanwhile, and what stands after the mark."""
        mark, before = f"done-{uuid.uuid4().hex}", len(self.output())
        self.tell(f"{text}\n{end % mark}\n")
        pattern = re.compile(rf"^{mark}(.*)$", re.MULTILINE)
        wait_for(
            lambda: (
                pattern.search(self.output(), before) is not None or self.process.poll() is not None
            ),
            lambda: f"{text}\n{self.output()[before:]}",
        )
        found = pattern.search(self.output(), before)
        assert found, f"it ended: {text}\n{self.output()}"
        return self.output()[before : found.start()], found[1].strip()

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(DEADLINE)


@dataclass
class Desk:
    """One machine with three terminals."""

    directory: Path
    ports: dict[str, int]
    background: list[Talk] = field(default_factory=list)
    up: Talk | None = None
    shell: Talk | None = None
    sql: Talk | None = None
    printed: str = ""

    @property
    def environment(self) -> dict[str, str]:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PILLARBOX_", "MAILROOM_"))
        }
        ports = {
            "PILLARBOX_HTTP": f"127.0.0.1:{self.ports['8025']}",
            "PILLARBOX_SMTP": f"127.0.0.1:{self.ports['1025']}",
        }
        return clean | ports

    def follow(self, document: str) -> None:
        self.shell = Talk(["bash"], self.directory, self.environment, terminal=False)
        exports = ""
        for block in blocks(document):
            text = self.replaced(block.text)
            if any(line in block.text for line in NOT_RUN):
                continue
            if block.kind == "python":
                [name] = re.findall(r"[Ss]ave this as `([\w.]+)`", block.before)
                (self.directory / name).write_text(text)
            elif block.kind == "sql":
                self.run_sql(text, block.after)
            else:
                assert block.kind == "sh", f"{document}: a block of {block.kind}"
                if "make up" in text:
                    self.start_up(exports + text)
                else:
                    exports += "".join(
                        line + "\n" for line in text.splitlines() if line.startswith("export")
                    )
                    self.run(text)
        self.shell.end()

    def replaced(self, text: str) -> str:
        for old, new in REPLACED.items():
            text = text.replace(old, new)
        for old, port in self.ports.items():
            text = re.sub(rf"\b{old}\b", str(port), text)
        ids = re.findall(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", self.printed)
        if ids:
            text = re.sub(r"\bID\b", ids[-1], text)
        return re.sub(r"\bPID\b", str(self.up.process.pid), text) if self.up else text

    def run_sql(self, text: str, after: str) -> None:
        assert self.sql is not None
        said, _ = self.sql.ask(text, "\\echo %s")
        expected = "ERROR:" in after
        assert ("ERROR:" in said) is expected, f"{text}\n{said}"
        if expected:
            for line in re.findall(r"^(?:ERROR|DETAIL|HINT): .*$", after, re.MULTILINE):
                assert line in said

    def start_up(self, text: str) -> None:
        """`make up` in the first terminal, without installing what is installed."""
        if self.up is not None:
            self.up.end(signal.SIGINT)
        script = text.replace("make up", "exec .venv/bin/pillarbox up", 1)
        self.up = Talk(
            ["bash", "-e", "-c", script], self.directory, self.environment, terminal=False
        )
        up = self.up
        wait_for(lambda: "Ctrl-C" in up.output() or up.process.poll() is not None, up.output)
        assert "Ctrl-C" in up.output(), up.output()

    def run(self, text: str) -> None:
        """A block in the second terminal: every line of it must succeed."""
        assert self.shell is not None
        if text.strip() == "pillarbox sql":
            self.shell.ask("export -p > exports", SHELL_END)
            script = ["bash", "-c", ". ./exports; exec pillarbox sql"]
            self.sql = Talk(script, self.directory, self.environment, terminal=True)
            return
        if text.strip() in IN_THE_BACKGROUND:
            server = Talk(
                ["bash", "-c", f"exec {text}"], self.directory, self.environment, terminal=False
            )
            self.background.append(server)
            wait_for(lambda: answers(self.ports["2525"]), server.output)
            return
        for command in ENDLESS:
            text = re.sub(rf"^{re.escape(command)}.*$", self.interrupted, text, flags=re.MULTILINE)
        said, code = self.shell.ask(text if "export" in text else f"(set -e\n{text}\n)", SHELL_END)
        assert code == "0", f"{text}\n{said}"
        assert "Traceback" not in said
        self.printed += said

    def interrupted(self, line: re.Match[str]) -> str:
        """A command that goes on, until it has said something, and then Ctrl-C."""
        command = line[0].partition("#")[0]
        return (
            f"{command} > endless 2>&1 & while [ ! -s endless ]; do kill -0 $!; sleep 0.1; done; "
            "kill -INT $!; wait $! || [ $? -eq 130 ]; rm endless"
        )

    def close(self) -> None:
        for one in (self.sql, self.shell, *self.background):
            if one is not None:
                one.end()
        if self.up is not None:
            self.up.end(signal.SIGTERM)


@pytest.fixture
def desk() -> Iterator[Desk]:
    with temporary_directory() as directory:
        (directory / ".venv").symlink_to(sys.prefix)
        probes = {name: socket.create_server(("127.0.0.1", 0)) for name in ("8025", "1025", "2525")}
        ports = {name: probe.getsockname()[1] for name, probe in probes.items()}
        for probe in probes.values():
            probe.close()
        desk = Desk(directory, ports)
        try:
            yield desk
        finally:
            desk.close()
            for data in (".pillarbox", ".tutorial"):
                EmbeddedPostgres(directory / data / "postgres").stop("immediate")


@pytest.mark.skipif(
    not shutil.which("bash") or not shutil.which("curl"), reason="the documents use bash and curl"
)
def test_readme_and_tutorial_work_as_written(desk: Desk) -> None:
    for document in DOCUMENTS:
        desk.follow(document)


def test_what_is_not_run_is_still_written() -> None:
    text = "".join((ROOT / document).read_text("utf-8") for document in DOCUMENTS)
    for line in (*NOT_RUN, *REPLACED, *ENDLESS):
        assert line in text, f"{line!r} is in no document any more: take it out of the table"
