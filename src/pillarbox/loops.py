"""Waiting: for events, and between tries."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator


def backoff(first: float, longest: float) -> Iterator[float]:
    """Pauses between tries: doubling from `first` to `longest`, ± 10 % so that processes do not march in step."""
    for failures in itertools.count():
        pause = min(first * 2.0 ** min(failures, 30), longest)
        yield pause * random.uniform(0.9, 1.1)  # noqa: S311 -- jitter, not a secret


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
