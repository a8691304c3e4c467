"""What accepting a mail costs, beside COPY into the same tables and a bare INSERT of the same
strings.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import cycle, islice
from typing import Any

import asyncpg
import psycopg

import pillarbox
from benchmarks import harness, mails
from benchmarks.harness import Bench, Sample
from benchmarks.report import Finding, Report, Table, compare, number

ABOUT = f"""Mails of 4 KB. Bulk: {mails.BATCH:,} mails per call and transaction, one connection; the
reference COPYs the same rows into the same three tables (messages with its trigger, contents,
deliveries) in one transaction each. Single: one `enqueue` per transaction; the reference is an
INSERT of the same strings into one table as anyone would make it, with a primary key, and beside it
one that does not compress its rows, as ours do not. A connection LISTENs for wake-ups all the
while."""
COLUMNS = """(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  sender text, recipient text, subject text, text text, html text)"""
BARE = f"CREATE TABLE bare {COLUMNS}; CREATE TABLE uncompressed {COLUMNS} WITH (toast_tuple_target = 8160)"
INSERT = "INSERT INTO {} (sender, recipient, subject, text, html) VALUES ($1, $2, $3, $4, $5) RETURNING id"
TRIGGER = "ALTER TABLE pillarbox.messages {} TRIGGER wake"
MESSAGES = ("id", "tenant_id", "size", "lane", "created_at", "class", "sender", "to", "subject")
DELIVERIES = (
    "message_id", "seq", "next_attempt_at", "state", "tenant_id", "size", "n", "lane", "role", "recipient",
)  # fmt: skip

Work = Callable[[asyncpg.Connection, mails.Sample], Awaitable[Any]]


async def run(bench: Bench) -> Report:
    samples = mails.samples()
    bulk, one, many = (
        bench.scale(50_000, 5_000),
        bench.scale(10_000, 1_000),
        bench.scale(40_000, 4_000),
    )
    async with bench.schema("enqueue") as url, harness.connected(url) as ear:
        await ear.execute(BARE)
        await ear.add_listener("pillarbox_wake", lambda *_: None)
        single = partial(_single, bench, url, samples)
        variants = {
            "COPY": partial(
                _bulk,
                bench,
                url,
                samples,
                bulk,
                _copy,
            ),
            "enqueue_many": partial(
                _bulk,
                bench,
                url,
                samples,
                bulk,
                pillarbox.enqueue_many,
            ),
            "enqueue_many, psycopg": partial(
                _psycopg_bulk,
                bench,
                url,
                samples,
                bulk,
            ),
            "INSERT, 1": partial(single, one, 1, _insert),
            "INSERT, 1, uncompressed": partial(single, one, 1, _insert_uncompressed),
            "enqueue, 1": partial(single, one, 1, pillarbox.enqueue),
            "enqueue, 1, psycopg": partial(
                _psycopg_single,
                bench,
                url,
                samples,
                one,
            ),
            "INSERT, 20": partial(single, many, 20, _insert),
            "INSERT, 20, uncompressed": partial(single, many, 20, _insert_uncompressed),
            "enqueue, 20": partial(single, many, 20, pillarbox.enqueue),
            "enqueue, 20, no NOTIFY": partial(
                single,
                many,
                20,
                pillarbox.enqueue,
                notify=False,
            ),
        }
        results = await bench.rounds_of("enqueue", variants)
    return _report({name: harness.median(runs) for name, runs in results.items()})


def _report(middle: Mapping[str, Sample]) -> Report:
    bulk = _table(
        "Bulk, one connection",
        "COPY",
        middle,
        "COPY",
        "enqueue_many",
        "enqueue_many, psycopg",
    )
    single = _table(
        "One per transaction, one connection",
        "INSERT, 1",
        middle,
        "INSERT, 1",
        "INSERT, 1, uncompressed",
        "enqueue, 1",
        "enqueue, 1, psycopg",
    )
    twenty = _table(
        "One per transaction, 20 connections",
        "INSERT, 20",
        middle,
        "INSERT, 20",
        "INSERT, 20, uncompressed",
        "enqueue, 20",
        "enqueue, 20, no NOTIFY",
    )
    findings = [
        _finding(middle, "enqueue_many", "COPY", 0.25),
        _finding(middle, "enqueue, 1", "INSERT, 1", 0.7),
        _finding(middle, "enqueue, 1", "INSERT, 1, uncompressed", 0.7),
        _finding(middle, "enqueue, 20", "INSERT, 20", 0.5),
        _finding(middle, "enqueue, 20", "INSERT, 20, uncompressed", 0.5),
        _finding(middle, "enqueue, 20", "enqueue, 20, no NOTIFY", 0.9),
    ]
    return Report("enqueue", ABOUT, [bulk, single, twenty], findings)


def _finding(
    middle: Mapping[str, Sample],
    ours: str,
    reference: str,
    target: float,
) -> Finding:
    return compare(
        _words(ours),
        middle[ours].rate,
        middle[reference].rate,
        _words(reference),
        target,
    )


def _words(name: str) -> str:
    return name.replace(", 20", ", 20 connections").replace(", 1", ", 1 connection")


def _table(title: str, reference: str, middle: Mapping[str, Sample], *names: str) -> Table:
    table = Table(title, ("how", "mails/s", "ratio", "µs CPU per mail: PostgreSQL", "client"))
    for name in (name for name in names if name in middle):
        sample = middle[name]
        cpu = [number(sample.per_mail(kind)) for kind in ("PostgreSQL", "client")]
        table.rows.append(
            [name, number(sample.rate), f"{sample.rate / middle[reference].rate:.2f} ×", *cpu]
        )
    return table


# --- measuring


async def _measured(bench: Bench, count: int, work: Callable[[], Awaitable[Any]]) -> Sample:
    before, own = bench.postgres_cpu(), time.process_time()
    begun = time.perf_counter()
    await work()
    seconds = time.perf_counter() - begun
    cpu = {"PostgreSQL": bench.postgres_cpu() - before, "client": time.process_time() - own}
    return Sample(count / seconds, count, cpu)


async def _bulk(
    bench: Bench,
    url: str,
    samples: Sequence[mails.Sample],
    count: int,
    store: Callable[..., Awaitable[Any]],
) -> Sample:
    await harness.empty(url)
    prepared = [
        _rows(batch) if store is _copy else mails.given(batch)
        for batch in mails.batches(samples, count)
    ]

    async def work() -> None:
        for batch in prepared:
            async with connection.transaction():
                await store(connection, batch)

    async with harness.connected(url) as connection:
        return await _measured(bench, count, work)


async def _single(
    bench: Bench,
    url: str,
    samples: Sequence[mails.Sample],
    count: int,
    connections: int,
    store: Work,
    notify: bool = True,
) -> Sample:
    await harness.empty(url)
    given = samples if store in (_insert, _insert_uncompressed) else mails.given(samples)
    waiting = iter(list(islice(cycle(given), count)))

    async def one(connection: asyncpg.Connection) -> None:
        for mail in waiting:
            await store(connection, mail)

    async with AsyncExitStack() as stack:
        crew = [await stack.enter_async_context(harness.connected(url)) for _ in range(connections)]
        await crew[0].execute("TRUNCATE bare, uncompressed")
        await crew[0].execute(TRIGGER.format("ENABLE" if notify else "DISABLE"))
        for connection in crew:  # plans and caches of a connection that has been open for a while
            await store(connection, given[0])
        try:
            return await _measured(bench, count, lambda: asyncio.gather(*map(one, crew)))
        finally:
            await crew[0].execute(TRIGGER.format("ENABLE"))


async def _insert(connection: asyncpg.Connection, mail: mails.Sample) -> None:
    await connection.fetchval(
        INSERT.format("bare"),
        mails.SENDER,
        mail.to,
        mail.subject,
        mail.text,
        mail.html,
    )


async def _insert_uncompressed(connection: asyncpg.Connection, mail: mails.Sample) -> None:
    await connection.fetchval(
        INSERT.format("uncompressed"),
        mails.SENDER,
        mail.to,
        mail.subject,
        mail.text,
        mail.html,
    )


# --- COPY of the same rows


def _rows(batch: Sequence[mails.Sample]) -> tuple[list[Any], list[Any], list[Any]]:
    now = datetime.now(UTC)
    ids = [_time_ordered_id() for _ in batch]
    sizes = [1024 + len(mail.subject) + len(mail.text) + len(mail.html) for mail in batch]
    mine = list(zip(ids, sizes, batch, strict=True))
    return (
        [
            (id, 1, size, 1, now, "transactional", mails.SENDER, [mail.to], mail.subject)
            for id, size, mail in mine
        ],
        [(id, mail.text, mail.html) for id, _, mail in mine],
        [
            (id, n, now, "queued", 1, size, 0, 1, b"t", mail.to)
            for n, (id, size, mail) in enumerate(mine)
        ],
    )


def _time_ordered_id() -> uuid.UUID:
    return uuid.UUID(int=(time.time_ns() // 10**6 << 80) | (uuid.uuid4().int & (1 << 80) - 1))


async def _copy(
    connection: asyncpg.Connection, rows: tuple[list[Any], list[Any], list[Any]]
) -> None:
    copy = partial(connection.copy_records_to_table, schema_name="pillarbox")
    await copy("messages", records=rows[0], columns=MESSAGES)
    await copy("contents", records=rows[1], columns=("message_id", "text", "html"))
    await copy("deliveries", records=rows[2], columns=DELIVERIES)


# --- the other driver


async def _psycopg_bulk(
    bench: Bench,
    url: str,
    samples: Sequence[mails.Sample],
    count: int,
) -> Sample:
    await harness.empty(url)
    prepared = [mails.given(batch) for batch in mails.batches(samples, count)]

    async def work() -> None:
        for batch in prepared:
            async with connection.transaction():
                await pillarbox.enqueue_many(connection, batch)

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        return await _measured(bench, count, work)


async def _psycopg_single(
    bench: Bench,
    url: str,
    samples: Sequence[mails.Sample],
    count: int,
) -> Sample:
    await harness.empty(url)
    prepared = list(islice(cycle(mails.given(samples)), count))

    async def work() -> None:
        for mail in prepared:
            await pillarbox.enqueue(connection, mail)

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        return await _measured(bench, count, work)
