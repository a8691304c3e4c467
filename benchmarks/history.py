"""Whether a long history slows the queue down: claiming and settling with millions of finished
mails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial

from benchmarks import harness, mails
from benchmarks.harness import Bench, Sample
from benchmarks.report import Report, Table, compare, number
from pillarbox.model.delivery import State
from pillarbox.model.outcome import accepted
from pillarbox.queue.dispatcher import Dispatcher
from pillarbox.queue.ledger import Ledger
from pillarbox.queue.ready_queues.postgres import PostgresReadyQueue
from pillarbox.queue.records import ClaimedMessage, Settlement, SettlementBatch
from pillarbox.store.database import Database

ABOUT = """One dispatcher claims waiting mails of 4 KB and settles them as sent (attempts written),
batch by batch and nothing in between; in a database with a history of finished deliveries, their
messages and attempts, and in one without. Ratio: with the history to without."""
SIZES = (100, 10, 500)  # mails per claim and per settlement
# Finished an hour ago and before, a millisecond apart; contents are as short as retention leaves
# room for.
FINISHED = """
WITH mail AS MATERIALIZED (
  SELECT i AS seq, now() - interval '1 hour' - ($2 - i) * interval '1 ms' AS at,
    (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - 3600000 - $2 + i), 12, '0')
      || '7' || left(h, 3) || '8' || substr(h, 4, 15))::uuid AS id
  FROM generate_series($1::bigint + 1, least($1::bigint + 100000, $2::bigint)) AS i, md5(i::text) AS h
), messages AS (
  INSERT INTO pillarbox.messages (id, tenant_id, size, lane, created_at, class, sender, "to", subject)
  SELECT id, 1, 4096, 1, at, 'transactional', 'orders@shop.example', '{reader@mail.example}', 'Order ' || seq
  FROM mail
), contents AS (
  INSERT INTO pillarbox.contents (message_id, text) SELECT id, 'Your order was shipped.' FROM mail
), attempts AS (
  INSERT INTO pillarbox.attempts
    (message_id, claim, worker, started_at, ended_at, provider_id, n, code, verdict, reply)
  SELECT id, nextval('pillarbox.claim_seq'), 1, at, at, 1, 0, 250, 'accepted', '2.0.0 OK' FROM mail
)
INSERT INTO pillarbox.deliveries
  (message_id, seq, claimed_at, next_attempt_at, settled_at, state, tenant_id, size, provider_id, n, attempts,
   lane, role, recipient)
SELECT id, nextval('pillarbox.message_seq'), at, at, at, 'sent', 1, 4096, 1, 0, 1, 1, 't', 'a@mail.example'
FROM mail
"""  # fmt: skip


async def run(bench: Bench) -> Report:
    finished = bench.scale(3_000_000, 100_000)
    count = bench.scale(50_000, 3_000)
    async with bench.schema("fresh") as none, bench.schema("history") as much:
        await _remember(bench, much, finished)
        for url in (none, much):
            async with harness.connected(url) as connection:
                await mails.stock(connection, mails.samples())
        variants = {
            f"{size}, {name}": partial(
                _claim_and_settle,
                bench,
                url,
                size,
                count if size > 10 else count // 5,
            )
            for size in SIZES
            for name, url in (("none", none), ("history", much))
        }
        results = await bench.rounds_of("history", variants)
    return _report({name: harness.median(runs) for name, runs in results.items()}, finished)


def _report(middle: Mapping[str, Sample], finished: int) -> Report:
    table = Table(
        f"Claim and settle, deliveries/s, without and with {finished:,} finished deliveries",
        ("batch", "none", "history", "ratio", "µs CPU of PostgreSQL each: none", "history"),
    )
    findings = []
    for size in SIZES:
        none, much = middle[f"{size}, none"], middle[f"{size}, history"]
        cpu = [number(sample.per_mail("PostgreSQL")) for sample in (none, much)]
        ratio = f"{much.rate / none.rate:.2f} ×"
        table.rows.append([str(size), number(none.rate), number(much.rate), ratio, *cpu])
        what = f"claim + settle by {size}, {finished:,} finished"
        findings.append(
            compare(
                what,
                much.rate,
                none.rate,
                "none finished",
                0.9,
                "deliveries/s",
            )
        )
    return Report("history", ABOUT, [table], findings)


async def _remember(bench: Bench, url: str, finished: int) -> None:
    task = bench.progress.add_task(
        f"history: making {finished:,} finished deliveries", total=finished
    )
    async with harness.connected(url) as connection:
        for start in range(0, finished, 100_000):
            await connection.execute(FINISHED, start, finished)
            bench.progress.advance(task, 100_000)
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    bench.progress.remove_task(task)


async def _claim_and_settle(
    bench: Bench,
    url: str,
    size: int,
    count: int,
) -> Sample:
    if "/fresh?" in url:
        await harness.empty(url)
    async with harness.connected(url) as connection:
        await connection.execute("CHECKPOINT")
        await mails.fill(connection, count)
        # As autovacuum leaves the table after such an influx.
        await connection.execute("VACUUM ANALYZE pillarbox.deliveries")
    database = await Database.connect(url, least=0, most=1)
    own = await database.for_queue(most=1)  # as a worker does
    ledger = Ledger(own)
    dispatcher = Dispatcher(ledger, PostgresReadyQueue(own, ledger))
    await dispatcher.register("benchmark", 3600)
    try:
        before, begun, done = bench.postgres_cpu(), time.perf_counter(), 0
        while claims := await dispatcher.claim(size, 2**40, True):
            for claimed in claims:
                dispatcher.begin(claimed)
            await ledger.settle(SettlementBatch([sent(claimed) for claimed in claims]))
            for claimed in claims:
                dispatcher.end(claimed)
            done += len(claims)
        seconds = time.perf_counter() - begun
        cpu = bench.postgres_cpu() - before
    finally:
        await dispatcher.retire()  # else its lanes stay its own until the lease runs out
        await own.close()
        await database.close()
    return Sample(done / seconds, done, {"PostgreSQL": cpu})


def sent(claimed: ClaimedMessage) -> Settlement:
    now = asyncio.get_running_loop().time()
    message = claimed.message.id
    outcome = accepted(250, "2.0.0 OK")
    return Settlement(
        message,
        0,
        claimed.claim,
        State.SENT,
        outcome,
        provider_id=1,
        reply="2.0.0 OK",
        ended=now,
    )
