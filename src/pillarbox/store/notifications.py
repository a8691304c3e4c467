"""Listens for notifications of PostgreSQL: hints that may be lost; polling is the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pillarbox.loops import wait_for_any
from pillarbox.store.database import Database, translated

# Seconds between tests of a silent connection: a dead one would leave only polling.
PROBE_INTERVAL = 30.0


async def listen(
    database: Database,
    listeners: Mapping[str, Callable[[], None]],
    stop: asyncio.Event,
    probe: float = PROBE_INTERVAL,
) -> None:
    """Call the listener of a channel at each notification, until `stop`.

    Every listener is called once at first, for what was committed before. Returns when the
    connection is lost, so that the caller's loop opens a new one; a silent connection is tested
    every `probe` seconds.
    """
    lost = asyncio.Event()
    async with database.listening(listeners) as connection:
        connection.add_termination_listener(lambda _: lost.set())
        for notify in listeners.values():
            notify()
        while not (stop.is_set() or lost.is_set()):
            if not await wait_for_any(stop, lost, seconds=probe):
                with translated():
                    await connection.execute("SELECT 1", timeout=10)
