"""The reference: aiosmtplib as it is, under uvloop, sending from memory over open connections."""

import asyncio
import sys
from itertools import cycle, islice

import uvloop
from smtp_pool import Pool, finished, measured


async def main(
    port,
    path,
    count,
    connections,
):
    pool = Pool(int(port), int(connections))
    await pool.open()
    mails = iter(list(islice(cycle(finished(path)), int(count))))

    async def one():
        for mail in mails:
            await pool.send(mail)

    async def all_of_them():
        await asyncio.gather(*(one() for _ in range(int(connections))))

    await measured(all_of_them)


uvloop.run(main(*sys.argv[1:]))
