"""procrastinate: finished mails as arguments, sent over pooled aiosmtplib connections."""

import logging
import sys
from itertools import cycle, islice

import procrastinate
import uvloop
from smtp_pool import Pool, finished, measured


async def main(
    port,
    path,
    count,
    connections,
    url,
):
    logging.disable(logging.INFO)
    pool = Pool(int(port), int(connections))
    await pool.open()
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=20)
    )

    @app.task(name="mail")
    async def mail(content):
        await pool.send(content.encode("ascii"))

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        mails = [
            {"content": one.decode("ascii")} for one in islice(cycle(finished(path)), int(count))
        ]
        for start in range(0, len(mails), 1000):
            await mail.batch_defer_async(*mails[start : start + 1000])

        async def drain():
            await app.run_worker_async(
                wait=False, concurrency=int(connections), install_signal_handlers=False
            )

        await measured(drain)


uvloop.run(main(*sys.argv[1:]))
