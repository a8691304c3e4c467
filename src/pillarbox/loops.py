"""Waiting for events, and backoff between retries."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator


def backoff(first: float, longest: float) -> Iterator[float]:
    """Exponential backoff: pauses that double from `first` to `longest`, with ± 10 % jitter."""
    for failures in itertools.count():
        pause = min(first * 2.0 ** min(failures, 30), longest)
        yield pause * random.uniform(0.9, 1.1)  # noqa: S311 -- jitter, not a secret


async def wait(event: asyncio.Event, seconds: float) -> bool:
    """Wait for `event`, at most `seconds`; returns whether it was set."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def wait_for_any(*events: asyncio.Event, seconds: float | None = None) -> bool:
    """Wait until one of the events is set, at most `seconds`; returns whether one was."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiting in waits:
            waiting.cancel()
    return bool(done)
