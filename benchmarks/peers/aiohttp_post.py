"""The reference: aiohttp as it is, under uvloop, posting finished requests from memory over kept
connections.
"""

import asyncio
import json
import sys
from itertools import cycle, islice
from pathlib import Path

import aiohttp
import uvloop
from smtp_pool import measured
from yarl import URL


async def main(path, count, connections):
    told = json.loads(Path(path).read_text())
    made = [(URL(one["url"]), one["headers"], one["body"].encode("latin-1")) for one in told]
    calls = iter(list(islice(cycle(made), int(count))))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=int(connections))
    ) as session:

        async def one():
            for url, headers, body in calls:
                async with session.post(url, headers=headers, data=body) as answer:
                    await answer.read()
                    answer.raise_for_status()

        async def all_of_them():
            await asyncio.gather(*(one() for _ in range(int(connections))))

        await measured(all_of_them)


uvloop.run(main(*sys.argv[1:]))
