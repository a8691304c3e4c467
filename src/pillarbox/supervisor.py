"""Supervision of background tasks: an unexpected error is logged, counted, and the task goes on after a pause.

A task that must not go on raises through its role: then `app.serve` stops the other roles, which
drain, and the process ends with status 1.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pillarbox.errors import PillarboxError, TaskEnded
from pillarbox.loops import backoff, wait
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.tasks")
# Pauses after failures double from the first to the longest; half a minute is soon enough to notice
# recovery.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
# Tasks without which a worker delivers nothing: readiness fails while one of them fails.
ESSENTIAL = ("claim", "settle", "heartbeat")
# Seconds that an essential task may fail before readiness does: a deadlock or a lost connection is
# over by then.
MOMENT = 1.0


class Supervisor:
    """Watches the background tasks of one process, and answers its liveness and readiness probes."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._failing: dict[str, float] = {}  # since when, by task
        self._ended: list[str] = []

    # -- running tasks

    async def run_every(
        self,
        name: str,
        seconds: float,
        run_once: Callable[[], Awaitable[object]],
        stop: asyncio.Event,
        *,
        longest: float | None = None,
    ) -> None:
        """Call `run_once` every `seconds` (± 10 %, so that processes do not march in step) until `stop` is set.

        After a failure it is called again sooner, then with pauses that double up to `longest`
        (LONGEST_PAUSE).
        """
        first, longest = min(seconds, FIRST_PAUSE), max(seconds, longest or LONGEST_PAUSE)
        pauses = backoff(first, longest)
        while not stop.is_set():
            try:
                await run_once()
            except Exception as error:
                self.failed(name, error)
                pause = next(pauses)
            else:
                self.succeeded(name)
                pauses = backoff(first, longest)
                pause = seconds * random.uniform(0.9, 1.1)  # noqa: S311 -- jitter, not a secret
            await wait(stop, pause)

    async def keep(
        self, name: str, run: Callable[[], Awaitable[object]], stop: asyncio.Event
    ) -> None:
        """Keep `run` running until `stop` is set: when it raises or returns before, run it again after a pause."""
        pauses = backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while not stop.is_set():
            began = self._clock()
            error: Exception = TaskEnded("it returned before it was asked to stop")
            try:
                await run()
            except Exception as raised:
                error = raised
            else:
                if stop.is_set():
                    break
            self.failed(name, error)
            if self._clock() - began > LONGEST_PAUSE:
                pauses = backoff(FIRST_PAUSE, LONGEST_PAUSE)
            await wait(stop, next(pauses))
        self.succeeded(name)

    def watch(self, name: str, task: asyncio.Task[None]) -> None:
        """Report the error of a short task that is not awaited."""
        task.add_done_callback(lambda task: self._report_task(name, task))

    def _report_task(self, name: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.report(name, error)

    @contextmanager
    def catching_unhandled(self) -> Iterator[None]:
        """Within, errors of tasks that are not awaited are reported as task `other`: none ends silently."""
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()
        loop.set_exception_handler(self._unhandled)
        try:
            yield
        finally:
            loop.set_exception_handler(before)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and ("task" in context or "future" in context):
            self.report("other", error)
        else:
            loop.default_exception_handler(context)

    # -- what tasks say

    def report(self, name: str, error: Exception) -> None:
        """Log and count an error that a task survives."""
        self._metrics.task_failures.labels(name).inc()
        if isinstance(error, PillarboxError):
            log.warning("a task failed; it will be tried again", task=name, error=str(error))
        else:
            log.error(
                "a task failed; it will be tried again", task=name, error=repr(error), exc=error
            )

    def failed(self, name: str, error: Exception) -> None:
        """Report an error of a task that fails until it says `succeeded`."""
        self.report(name, error)
        self._failing.setdefault(name, self._clock())

    def succeeded(self, name: str) -> None:
        """A task works, perhaps again."""
        if self._failing.pop(name, None) is not None:
            log.info("a task works again", task=name)

    def ended(self, name: str, error: Exception) -> None:
        """A task ended for good: this process cannot go on."""
        self._metrics.task_failures.labels(name).inc()
        self._ended.append(name)
        while (
            isinstance(error, ExceptionGroup) and len(error.exceptions) == 1
        ):  # a task group wraps what ended it
            error = error.exceptions[0]
        unexpected = None if isinstance(error, PillarboxError) else error
        log.error(
            "a task ended for good; stopping the process",
            task=name,
            error=str(error),
            exc=unexpected,
        )

    # -- what probes ask

    @property
    def failing(self) -> frozenset[str]:
        """The tasks whose last try failed."""
        return frozenset(self._failing)

    def dead(self) -> str | None:
        """The task that ended for good, if one did: only a restart helps."""
        return self._ended[0] if self._ended else None

    def not_ready(self) -> str | None:
        """The essential task that has failed for longer than a moment, if one has."""
        now = self._clock()
        for name in ESSENTIAL:
            since = self._failing.get(name)
            if since is not None and now - since >= MOMENT:
                return name
        return None
