"""Constant-time answers: the time that an answer takes does not reveal what was done for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# Longer than finding an account, rendering a mail and a commit take; too short to annoy a person.
DEFAULT_INTERVAL = 0.25


@asynccontextmanager
async def constant_time(seconds: float = DEFAULT_INTERVAL) -> AsyncIterator[None]:
    """End a multiple of `seconds` after the start, also with an exception.

    It is the first multiple unless the work takes longer.
    """
    clock = asyncio.get_running_loop().time
    started = clock()
    try:
        yield
    except Exception:
        await asyncio.sleep(time_left(clock() - started, seconds))
        raise
    await asyncio.sleep(time_left(clock() - started, seconds))


def time_left(elapsed: float, seconds: float) -> float:
    """The time until the next multiple of `seconds`."""
    if not seconds:
        return 0.0
    return -elapsed % seconds
