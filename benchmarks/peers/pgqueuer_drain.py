"""pgqueuer: finished mails as payloads, sent over pooled aiosmtplib connections."""

import sys
from itertools import cycle, islice

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from smtp_pool import Pool, finished, measured

BATCH = 100  # jobs per dequeue: ten times its default, as large as our own default


async def main(
    port,
    path,
    count,
    connections,
    url,
):
    pool = Pool(int(port), int(connections))
    await pool.open()
    connection = await asyncpg.connect(url)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    await queries.install()
    queuer, left = PgQueuer(driver), int(count)
    mails = list(islice(cycle(finished(path)), left))
    for start in range(0, left, 1000):
        some = mails[start : start + 1000]
        await queries.enqueue(["mail"] * len(some), some, [0] * len(some))

    @queuer.entrypoint("mail")
    async def mail(job):
        nonlocal left
        await pool.send(job.payload)
        left -= 1
        if not left:
            queuer.shutdown.set()

    async def drain():
        await queuer.run(batch_size=BATCH)

    await measured(drain)


uvloop.run(main(*sys.argv[1:]))
