"""Supervision: no background task ends silently, and probes learn which tasks fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pillarbox import supervisor as module
from pillarbox.errors import StoreError
from pillarbox.supervisor import ESSENTIAL, READINESS_GRACE, Supervisor
from pillarbox.telemetry.metrics import Metrics


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)


def failures(metrics: Metrics, task: str) -> float:
    return metrics.registry.get_sample_value("pillarbox_task_failures_total", {"task": task}) or 0.0


def failing(
    times: int, error: Exception, then: Callable[[], None]
) -> Callable[[], asyncio.Future[None]]:
    """A task that raises so many times, and then calls `then`."""
    left = times

    async def run() -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise error
        then()

    return run  # type: ignore[return-value]


@pytest.mark.parametrize("error", [StoreError("away"), ValueError("odd"), KeyError("x")])
async def test_a_loop_that_fails_goes_on_and_is_counted(error: Exception) -> None:
    metrics, stop = Metrics(), asyncio.Event()
    supervisor = Supervisor(metrics)
    async with asyncio.timeout(60):
        await supervisor.run_every("chore", 0.001, failing(3, error, stop.set), stop)
    assert failures(metrics, "chore") == 3


async def test_a_task_that_raises_or_returns_is_started_again() -> None:
    metrics, stop, runs = Metrics(), asyncio.Event(), list[int]()
    supervisor = Supervisor(metrics)

    async def run() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("odd")
        if len(runs) == 3:
            stop.set()

    async with asyncio.timeout(60):
        await supervisor.keep("task", run, stop)
    assert len(runs) == 3  # it raised, it returned too early, it ended as it should
    assert failures(metrics, "task") == 2


async def test_a_task_that_nobody_awaits_is_reported() -> None:
    metrics = Metrics()
    supervisor = Supervisor(metrics)

    async def broken() -> None:
        raise ValueError("odd")

    with supervisor.catching_unhandled():
        watched = asyncio.create_task(broken())
        supervisor.watch("short", watched)
        await asyncio.wait([watched])
        unwatched = asyncio.create_task(broken())
        await asyncio.wait([unwatched])
        del watched, unwatched
        await asyncio.sleep(0)
    assert (failures(metrics, "short"), failures(metrics, "other")) == (1, 1)


@pytest.mark.parametrize("task", ESSENTIAL)
def test_readiness_fails_while_an_essential_task_fails_for_longer_than_a_moment(task: str) -> None:
    clock = Clock()
    supervisor = Supervisor(Metrics(), clock)
    supervisor.failed(task, StoreError("away"))
    assert supervisor.not_ready() is None
    clock.now += READINESS_GRACE
    supervisor.failed(task, StoreError("away"))
    assert supervisor.not_ready() == task
    assert supervisor.dead() is None  # a restart would not help
    supervisor.succeeded(task)
    assert supervisor.not_ready() is None


def test_another_task_that_fails_does_not_fail_readiness() -> None:
    clock = Clock()
    supervisor = Supervisor(Metrics(), clock)
    supervisor.failed("measure", StoreError("away"))
    clock.now += 1000
    assert supervisor.not_ready() is None


def test_liveness_fails_when_a_task_has_ended_for_good() -> None:
    supervisor = Supervisor(Metrics())
    assert supervisor.dead() is None
    supervisor.ended("work", ValueError("odd"))
    assert supervisor.dead() == "work"
