"""How fast tokens become mails, or lines on standard output; beside the original's statement and
the C collector.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from functools import partial

import psycopg

from benchmarks import harness
from benchmarks.harness import Bench, Sample
from benchmarks.report import Finding, Report, Table, compare, number
from pillarbox.lifecycle.signing import sign
from pillarbox.store import lifecycle_schema

KEY = "deadbeef" * 8
# Tokens per second of seed 003's C collector on the machine where it was measured (PERF.md), by its
# batch limit.
ORIGINAL = {100: 3_392, 1000: 24_500}
TARGET = 5_000  # mails per second that tokens must become at least
ABOUT = """Accounts are inserted, each with its activation token; then `pillarbox collect` as a
process collects all of them. Mails: signed links, the template rendered, stored and queued (HTML of
7.5 KB). `--stdout`: signed and written to /dev/null. From the first batch to the last, without the
start of the process. The reference in the same run is the original's own dequeue statement, driven
by psycopg, its rows signed and written likewise: it moves one number, and loses tokens that commit
late. The C collector's numbers are those of PERF.md, measured before. `after a history`: so many
tokens were handled before."""
STOCK = """INSERT INTO lifecycle.accounts (email, login)
  SELECT 'user' || md5($2::text || g) || '@fake.mail', 'user' || substr(md5(g || $2::text), 1, 20)
  FROM generate_series(1, $1::int) g"""
DEQUEUE = """WITH token_data AS (
  SELECT t.account, t.secret, t.code, t.expires_at, t.id, t.action, a.email, a.login
  FROM lifecycle.jobs
  JOIN lifecycle.tokens t ON t.id > jobs.last_seq AND t.expires_at > EXTRACT(EPOCH FROM NOW()) AND t.consumed_at IS NULL
    AND t.action IN ('activation', 'password_recovery')
  JOIN lifecycle.accounts a ON a.id = t.account AND (
    (t.action = 'activation' AND a.status = 'provisioned') OR (t.action = 'password_recovery' AND a.status = 'active'))
  WHERE jobs.job_type = 'mailroom' ORDER BY id ASC LIMIT %s
), updated_jobs AS (
  UPDATE lifecycle.jobs SET last_seq = (SELECT MAX(id) FROM token_data) WHERE EXISTS (SELECT 1 FROM token_data)
  RETURNING last_seq
)
SELECT td.action, td.email, td.login, td.secret, td.code FROM token_data td"""
# A batch's time is its transaction's beginning, so all but the last are counted.
SPEED = """WITH mine AS (SELECT at, max(at) OVER () AS ended FROM lifecycle.collected WHERE token > $1)
  SELECT count(*) FILTER (WHERE at < ended) / nullif(extract(epoch FROM max(ended) - min(at)), 0)::float8 FROM mine"""
TRUNCATE = "TRUNCATE lifecycle.accounts, lifecycle.tokens, lifecycle.waiting, lifecycle.collected"


async def run(bench: Bench) -> Report:
    count, history = bench.scale(100_000, 3_000), bench.scale(300_000, 3_000)
    async with bench.schema("collector") as url:
        async with harness.connected(url) as connection:
            await lifecycle_schema.install(connection, "lifecycle")
        one = partial(_measure, bench, url, count)
        variants = {
            "the original's statement, 100": partial(_reference, url, count, 100),
            "--stdout, 100": partial(one, 100, stdout=True),
            "the original's statement, 1000": partial(_reference, url, count, 1000),
            "--stdout, 1000": partial(one, 1000, stdout=True),
            "--stdout, 1000, after a history": partial(one, 1000, stdout=True, history=history),
            "mails, 1000": partial(one, 1000),
            "mails, 1000, after a history": partial(one, 1000, history=history),
        }
        results = await bench.rounds_of("collector", variants)
    return _report({name: harness.median(runs) for name, runs in results.items()}, count, history)


def _report(middle: Mapping[str, Sample], count: int, history: int) -> Report:
    table = Table(f"{count:,} tokens that wait", ("how, and batch limit", "tokens/s", "µs CPU per token: collector",
                                                  "PostgreSQL"))  # fmt: skip
    for name, sample in middle.items():
        cpu = [
            number(sample.per_mail(kind)) if sample.cpu else "–"
            for kind in ("collector", "PostgreSQL")
        ]
        table.rows.append([name, number(sample.rate), *cpu])
    unit, stdout, mails = "tokens/s", middle["--stdout, 1000"].rate, middle["mails, 1000"].rate
    findings = [
        compare("collect --stdout, limit 100", middle["--stdout, 100"].rate, ORIGINAL[100], "C collector", 1, unit,),
        compare("collect --stdout, limit 1000", stdout, ORIGINAL[1000], "C collector", 1, unit,),
        compare("collect --stdout, limit 1000", stdout, middle["the original's statement, 1000"].rate,
                "its statement, psycopg", None, unit,),
        Finding("collect: tokens to mails, limit 1000", mails, "mails/s", TARGET, "target", "≥ 1 ×", mails >= TARGET,),
        compare("collect: mails after a history", middle["mails, 1000, after a history"].rate, mails, "none", 0.8,),
        compare("collect --stdout after a history", middle["--stdout, 1000, after a history"].rate, stdout, "none", 0.8,
                unit,),
    ]  # fmt: skip
    return Report(
        "collector",
        ABOUT,
        [table],
        findings,
        [f"The history: {history:,} tokens."],
    )


async def _stock(url: str, count: int, history: int) -> int:
    """Tokens that wait, after others that were handled; returns the last of those."""
    await harness.empty(url)
    async with harness.connected(url) as connection:
        await connection.execute(TRUNCATE)
        last = 0
        if history:
            await connection.execute(STOCK, history, "old")
            await connection.execute("INSERT INTO lifecycle.collected (token, outcome) SELECT token, 'written' FROM"
                                     " lifecycle.waiting")  # fmt: skip
            await connection.execute("DELETE FROM lifecycle.waiting")
            last = await connection.fetchval("SELECT max(id) FROM lifecycle.tokens")
        await connection.execute("UPDATE lifecycle.jobs SET last_seq = 0")
        await connection.execute(STOCK, count, "new")
        await connection.execute(
            "VACUUM ANALYZE lifecycle.accounts, lifecycle.tokens, lifecycle.waiting"
        )
        await connection.execute("CHECKPOINT")
    return last or 0


async def _measure(
    bench: Bench,
    url: str,
    count: int,
    limit: int,
    *,
    stdout: bool = False,
    history: int = 0,
) -> Sample:
    last = await _stock(url, count, history)
    settings = {
        "lifecycle_keys": KEY, "lifecycle_sender": "Hub <no-reply@hub.example>", "log_level": "warning",
        "lifecycle_batch_limit": str(limit), "lifecycle_url": "https://hub.example",
    }  # fmt: skip
    before = bench.postgres_cpu()
    with open(os.devnull, "wb") as nowhere:
        options = {"stdout": nowhere, "env": _environment(url, settings)}
        command = (sys.executable, "-m", "pillarbox", "collect", *(["--stdout"] if stdout else []))
        async with harness.process(
            *command, log=bench.directory / "collector.log", **options
        ) as child:
            async with harness.connected(url) as watch:
                await harness.until(
                    watch, "SELECT NOT EXISTS (SELECT FROM lifecycle.waiting)", True, child
                )
                rate = await watch.fetchval(SPEED, last)
            cpu = {"collector": child.cpu, "PostgreSQL": bench.postgres_cpu() - before}
    return Sample(float(rate or 0), count, cpu)


def _environment(url: str, settings: Mapping[str, str]) -> dict[str, str]:
    given = {f"PILLARBOX_{name.upper()}": value for name, value in settings.items()}
    foreign = (*harness.FOREIGN, "MAILROOM_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**clean, "PILLARBOX_DATABASE_URL": url, **given}


async def _reference(url: str, count: int, limit: int) -> Sample:
    await _stock(url, count, 0)
    return await asyncio.to_thread(_dequeue, url, count, limit)


def _dequeue(url: str, count: int, limit: int) -> Sample:
    """The original's loop, as far as its speed goes."""
    key, left = bytes.fromhex(KEY), count
    with (
        psycopg.connect(url, autocommit=True) as connection,
        open(os.devnull, "wb", buffering=0) as nowhere,
    ):
        begun = time.perf_counter()
        while left > 0:
            rows = connection.execute(DEQUEUE, (limit,), prepare=True).fetchall()
            left -= len(rows)
            line = ",".join(f"1,{email},{login},{sign(action, secret, code, key)},{code}"
                            for action, email, login, secret, code in rows)  # fmt: skip
            nowhere.write(line.encode() + b"\n")
        seconds = time.perf_counter() - begun
    return Sample(count / seconds, count)
