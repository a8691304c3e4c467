"""The shared runner of background loops: interval, jitter, errors, stopping."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from pillarbox.errors import StoreError
from pillarbox.telemetry import logs

log = logs.get("pillarbox.loops")
# After this many failures in a row the pause stops growing; half a minute is soon enough to notice recovery.
LONGEST_PAUSE = 30.0


async def run_every(
    name: str,
    seconds: float,
    run_once: Callable[[], Awaitable[object]],
    stop: asyncio.Event,
    *,
    longest: float = LONGEST_PAUSE,
) -> None:
    """Call `run_once` every `seconds` (± 10 %, so that processes do not march in step) until `stop` is set.

    After failures the pause grows up to `longest`.
    """
    failures = 0
    while not stop.is_set():
        try:
            await run_once()
            failures = 0
        except StoreError as error:
            failures += 1
            log.warning("the store is away; will try again", loop=name, error=str(error), failures=failures)
        except Exception as error:
            failures += 1
            log.error("a background loop failed; will try again", loop=name, error=repr(error), exc=error)
        pause = min(seconds * 2 ** min(failures, 10), max(seconds, longest))
        await wait(stop, pause * random.uniform(0.9, 1.1))  # noqa: S311 -- jitter, not a secret


async def wait(event: asyncio.Event, seconds: float) -> bool:
    """Wait for `event`, at most `seconds`; says whether it was set."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def wait_for_any(*events: asyncio.Event, seconds: float | None = None) -> bool:
    """Wait until one of the events is set, at most `seconds`; says whether one was."""
    waits = [asyncio.ensure_future(one.wait()) for one in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
    return bool(done)
