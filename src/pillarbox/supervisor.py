"""Supervision of background tasks: errors are logged and counted, and the task is retried.

A task that cannot continue raises through its role: `app.serve` then stops the other roles, which
drain, and the process ends with status 1.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pillarbox.errors import PillarboxError, TaskEnded
from pillarbox.loops import backoff, wait
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.tasks")
# The backoff after failures; half a minute is soon enough to notice recovery.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
# Tasks without which a worker delivers nothing: readiness fails while one of them fails.
ESSENTIAL = ("claim", "settle", "heartbeat")
# Seconds that an essential task may fail before readiness does: a retry after a deadlock or a lost
# connection has succeeded by then.
READINESS_GRACE = 1.0


class Supervisor:
    """Watches the background tasks of one process; answers its liveness and readiness probes."""

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
        """Call `run_once` every `seconds` (± 10 % jitter) until `stop` is set.

        After a failure it is called with exponential backoff, up to `longest` (LONGEST_PAUSE).
        """
        first = min(seconds, FIRST_PAUSE)
        longest = max(seconds, longest or LONGEST_PAUSE)
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
        """Keep `run` running until `stop`: restart it with backoff if it raises or returns."""
        pauses = backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while not stop.is_set():
            began = self._clock()
            error: Exception = TaskEnded("the task returned before it was stopped")
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

    async def run_roles(
        self, roles: Sequence[tuple[str, Coroutine[Any, Any, None]]], stop: asyncio.Event
    ) -> None:
        """Run named roles until `stop`. One that fails or returns early stops the others.

        Raises the error of the role that ended first.
        """
        with self.catching_unhandled():
            tasks = [asyncio.create_task(self._run_role(*role, stop)) for role in roles]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in sorted(tasks, key=lambda task: task not in done):
            task.result()

    async def _run_role(
        self, name: str, role: Coroutine[Any, Any, None], stop: asyncio.Event
    ) -> None:
        try:
            await role
            if not stop.is_set():
                raise TaskEnded(f"the role {name} returned before it was stopped")
        except Exception as error:
            self.ended(name, error)
            raise

    def watch(self, name: str, task: asyncio.Task[None]) -> None:
        """Report the error of a short task that is not awaited."""
        task.add_done_callback(lambda task: self._report_task(name, task))

    def _report_task(self, name: str, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Exception):
            self.report(name, error)

    @contextmanager
    def catching_unhandled(self) -> Iterator[None]:
        """Report errors of tasks that are not awaited, as task `other`: no task ends silently."""
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

    # -- reports of tasks

    def report(self, name: str, error: Exception) -> None:
        """Log and count an error after which the task continues."""
        self._metrics.task_failures.labels(name).inc()
        if isinstance(error, PillarboxError):
            log.warning("task failed; it will be retried", task=name, error=str(error))
        else:
            log.error("task failed; it will be retried", task=name, error=repr(error), exc=error)

    def failed(self, name: str, error: Exception) -> None:
        """Report an error; the task counts as failing until `succeeded`."""
        self.report(name, error)
        self._failing.setdefault(name, self._clock())

    def succeeded(self, name: str) -> None:
        """Record that a run of the task succeeded."""
        if self._failing.pop(name, None) is not None:
            log.info("task recovered", task=name)

    def ended(self, name: str, error: Exception) -> None:
        """Record that a task has ended permanently: this process must stop."""
        self._metrics.task_failures.labels(name).inc()
        self._ended.append(name)
        # A task group wraps the error of its task.
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        fields: dict[str, object] = {"task": name, "error": str(error)}
        if not isinstance(error, PillarboxError):
            fields["exc"] = error
        log.error("task ended permanently; stopping the process", **fields)

    # -- probes

    @property
    def failing(self) -> frozenset[str]:
        """The tasks whose last run failed."""
        return frozenset(self._failing)

    def dead(self) -> str | None:
        """The first task that has ended permanently, or None: only a restart helps."""
        return next(iter(self._ended), None)

    def not_ready(self) -> str | None:
        """An essential task that has failed for longer than READINESS_GRACE, or None."""
        now = self._clock()
        for name in ESSENTIAL:
            since = self._failing.get(name)
            if since is not None and now - since >= READINESS_GRACE:
                return name
        return None
