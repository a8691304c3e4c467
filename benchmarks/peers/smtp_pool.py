"""Open aiosmtplib connections, and finished mails: what every peer sends with. Needs no Pillarbox."""

import asyncio
import json
import sys
import time
from pathlib import Path

import aiosmtplib


def finished(path):
    """The mails as bytes."""
    return [mail.encode("ascii") for mail in json.loads(Path(path).read_text())]


class Pool:
    """Hands out open connections; whoever finds none free waits."""

    def __init__(self, port, size):
        self._port, self._size = port, size
        self._free = asyncio.Queue()

    async def open(self):
        for _ in range(self._size):
            client = aiosmtplib.SMTP(
                hostname="127.0.0.1", port=self._port, start_tls=False, use_tls=False
            )
            await client.connect()
            await client.ehlo()
            self._free.put_nowait(client)

    async def send(self, mail):
        client = await self._free.get()
        try:
            await client.sendmail("orders@shop.example", ["reader@mail.example"], mail)
        finally:
            self._free.put_nowait(client)


async def measured(work):
    """Say that everything is ready, wait for a line, time the work."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    begun = time.perf_counter()
    await work()
    print(time.perf_counter() - begun, flush=True)
