"""The first SIGINT or SIGTERM drains; the second aborts at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pillarbox.cli import output
from pillarbox.cli.command import INTERRUPTED

# Seconds that an aborted command has to stop its embedded database before the process exits.
ABORT_TIMEOUT = 3.0


@contextmanager
def foreground() -> Iterator[None]:
    """Under make, receive Ctrl-C alone: make would report it as a failure of its own."""
    if "MAKELEVEL" not in os.environ or not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = os.tcgetpgrp(terminal)
    os.setpgid(0, 0)
    # A background process that takes the terminal gets SIGTTOU.
    old_handler = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(terminal, os.getpgrp())
    try:
        yield
    finally:
        os.tcsetpgrp(terminal, before)
        signal.signal(signal.SIGTTOU, old_handler)


@contextmanager
def stopping(stop: asyncio.Event) -> Iterator[None]:
    """Inside, a signal sets `stop`; a second one cancels the current task."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def received() -> None:
        if not stop.is_set():
            output.note("stopping: finishing the mails in flight (again to abort)")
            stop.set()
            return
        output.note("aborting")
        task.cancel()
        loop.call_later(ABORT_TIMEOUT, os._exit, INTERRUPTED)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, received)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
