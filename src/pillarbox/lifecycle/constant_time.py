"""Answers that leave at even times, so that nobody can tell by the clock what was done for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# Longer than finding an account, rendering a mail and a commit take; shorter than anybody minds.
DEFAULT_INTERVAL = 0.25


@asynccontextmanager
async def constant_time(seconds: float = DEFAULT_INTERVAL) -> AsyncIterator[None]:
    """End, well or badly, a multiple of `seconds` after the beginning: the first, unless the work takes longer."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    try:
        yield
    except Exception:
        await asyncio.sleep(time_left(clock() - begun, seconds))
        raise
    await asyncio.sleep(time_left(clock() - begun, seconds))


def time_left(taken: float, seconds: float) -> float:
    """How long it is until the next multiple of `seconds`."""
    return -taken % seconds if seconds else 0.0
