"""A worker process, until `pillarbox worker` exists."""

import asyncio
import signal

import uvloop

from pillarbox.app import open_app, work
from pillarbox.settings import load


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_app(load()) as app:
        await work(app, stop)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
