"""The first SIGINT or SIGTERM asks to drain; the second aborts at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pillarbox.cli import output
from pillarbox.cli.command import INTERRUPTED

# Seconds an aborted command gets to stop its own database; then it ends whatever is left undone.
ABORT_TIMEOUT = 3.0


@contextmanager
def foreground() -> Iterator[None]:
    """Under make, take Ctrl-C alone: make would report it as its own failure, whatever we exit with."""
    if "MAKELEVEL" not in os.environ or not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = os.tcgetpgrp(terminal)
    os.setpgid(0, 0)
    asked = signal.signal(
        signal.SIGTTOU, signal.SIG_IGN
    )  # what the background gets for taking the terminal
    os.tcsetpgrp(terminal, os.getpgrp())
    try:
        yield
    finally:
        os.tcsetpgrp(terminal, before)
        signal.signal(signal.SIGTTOU, asked)


@contextmanager
def stopping(stop: asyncio.Event) -> Iterator[None]:
    """Within, signals set `stop`; a second one cancels the task that entered."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def heard() -> None:
        if not stop.is_set():
            output.note("stopping: finishing what is in flight (again to abort)")
            stop.set()
            return
        output.note("aborting")
        task.cancel()
        loop.call_later(ABORT_TIMEOUT, os._exit, INTERRUPTED)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
