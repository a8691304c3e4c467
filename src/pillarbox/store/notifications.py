"""Hearing notifications: hints, which may be lost with the connection; polling is the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pillarbox.loops import wait_for_any
from pillarbox.store.database import Database, translated

# How often a silent connection is proven alive: a dead one would leave polling alone.
PROBE_INTERVAL = 30.0


async def hear(
    database: Database,
    told: Mapping[str, Callable[[], None]],
    stop: asyncio.Event,
    probe: float = PROBE_INTERVAL,
) -> None:
    """Tell of every notification whoever waits for its channel, until `stop`.

    Everybody is told once at first, for what was committed while nobody listened. Returns when the
    connection is lost, so that the caller's loop opens a new one; a silent one is tried every
    `probe` seconds.
    """
    lost = asyncio.Event()
    async with database.listening(told) as connection:
        connection.add_termination_listener(lambda _: lost.set())
        for one in told.values():
            one()
        while not (stop.is_set() or lost.is_set()):
            if not await wait_for_any(stop, lost, seconds=probe):
                with translated():
                    await connection.execute("SELECT 1", timeout=10)
