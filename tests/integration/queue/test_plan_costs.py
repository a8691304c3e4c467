"""No statement's estimated cost reaches `jit_above_cost`, with a million rows in every table that grows.

Above it PostgreSQL compiles the statement first, where JIT is on (as Debian has it): for hundreds
of milliseconds, at every execution. What the planner estimates can be tested without JIT, and
without a million rows: it takes the number of rows from the size of the file.
"""

from __future__ import annotations

import json
import os
import re
from importlib import resources
from pathlib import Path

import asyncpg
import pytest

from pillarbox.queue.ledger import LARGEST_CLAIM
from pillarbox.store import lifecycle_schema, sql
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from tests.contract.queues import postgres_worker
from tests.harness import enqueue
from tests.integration.queue.test_query_plans import explain, plan_of, remember

SAMPLE = 5_000  # rows that are there …
TIMES = 200  # … and how many times as large the files are made: a million rows
JIT_ABOVE_COST = 100_000  # PostgreSQL's default
# State and attempts of a million deliveries, in five tenants.
LOADS = {
    "waiting": ("queued", 0),
    "deferred": ("queued", 3),
    "scheduled": ("pending", 0),
    "dead": ("failed", 10),
    "finished": ("sent", 1),
}
# Statements on the way of every mail, token and webhook call.
HOT = (
    "queue.survey", "queue.survey_lanes", "queue.take_lanes", "queue.claim", "queue.claim_referenced",
    "queue.unclaimable", "queue.settle", "queue.release", "queue.postpone",
    "queue.promote", "queue.reap", "queue.heartbeat", "lifecycle.take", "lifecycle.settle", "webhooks.claim",
    "feedback.catch_up",
)  # fmt: skip
# Statements with LARGEST_CLAIM in their text.
BOUNDED = ("claim", "claim_referenced")
# Other statements, such as LOCK, have no plan.
PLANNED = re.compile(r"(?:--.*\n)*(?:SELECT|WITH|INSERT|UPDATE|DELETE)\b")
FILL = """
SET session_replication_role = replica;
INSERT INTO pillarbox.tenants (id, name) OVERRIDING SYSTEM VALUE SELECT 1 + k, 't' || k FROM generate_series(1, 4) k;
INSERT INTO pillarbox.lanes (tenant_id, lane, order_mode, limited)
  SELECT t, l, 'fifo', false FROM generate_series(2, 5) t, generate_series(0, 2) l;
INSERT INTO pillarbox.workers (name, lease_until) VALUES ('w', now() + interval '1 hour');
CREATE TEMP TABLE mail AS SELECT k, 1 + k % 5 AS tenant, now() - k * interval '1 second' AS at,
  (lpad(to_hex(k), 12, '0') || '7' || left(md5(k::text), 3) || '8' || substr(md5(k::text), 4, 15))::uuid AS id
  FROM generate_series(1, {count}) k;
INSERT INTO pillarbox.messages (id, tenant_id, size, lane, created_at, class, sender, "to", subject)
  SELECT id, tenant, 1000, 1, at, 'transactional', 's@x.example', '{{a@x.example}}', 'Hello ' || k FROM mail;
INSERT INTO pillarbox.contents SELECT id, repeat('text ', 100) FROM mail;
INSERT INTO pillarbox.deliveries
    (message_id, seq, next_attempt_at, state, tenant_id, size, n, lane, role, recipient, attempts, settled_at)
  SELECT id, k, at, '{state}', tenant, 1000, 0, 1, 't', 'r@x.example', {attempts},
    CASE WHEN '{state}' IN ('failed', 'sent') THEN at END FROM mail;
INSERT INTO pillarbox.attempts (message_id, claim, started_at, ended_at, n, verdict)
  SELECT id, k, at, at, 0, 'accepted' FROM mail;
INSERT INTO pillarbox.conversations SELECT id, k, 'MAIL FROM' FROM mail;
INSERT INTO pillarbox.events (message_id, kind) SELECT id, 'unknown' FROM mail;
INSERT INTO pillarbox.idempotency_keys SELECT tenant, k::text, id, '\\x00' FROM mail;
INSERT INTO pillarbox.captured (provider_id, message_id, sender, recipients, content)
  SELECT 1, id, 's@x.example', '{{}}', '\\x00' FROM mail;
INSERT INTO pillarbox.suppressions (tenant_id, address, reason, expires_at)
  SELECT tenant, k || '@x.example', 'manual', at + interval '1 hour' FROM mail;
INSERT INTO pillarbox.feedback (provider_id, event_id, message_id, n, kind, at, hard, data, waiting)
  SELECT 1, k::text, id, 0, 'delivered', at, false, '{{}}', k % 2 = 0 FROM mail;
INSERT INTO pillarbox.feedback_tokens SELECT 1, k::text, '\\x00', at FROM mail;
INSERT INTO pillarbox.provider_events (provider_id, kind) SELECT 1, 'opened' FROM mail;
INSERT INTO pillarbox.webhook_endpoints (id, tenant_id, url, secret)
  SELECT gen_random_uuid(), 1 + k % 5, 'https://x.example', '\\x00' FROM generate_series(1, 20) k;
INSERT INTO pillarbox.webhook_calls
    (id, seq, endpoint_id, message_id, n, kind, at, payload, state, next_at) OVERRIDING SYSTEM VALUE
  SELECT id, k, (ARRAY(SELECT id FROM pillarbox.webhook_endpoints))[1 + k % 20], id, 0, 'message.sent', at, '{{}}',
    CASE k % 2 WHEN 0 THEN 'waiting' ELSE 'delivered' END, at FROM mail;
INSERT INTO pillarbox.challenges (id, realm, token, asked, code_hash, expires_at)
  SELECT id, 'lifecycle', k, int8send(k), '\\x00', at FROM mail;
INSERT INTO pillarbox.admin_sessions (id, admin, expires_at) SELECT sha256(int8send(k)), k, at FROM mail;
INSERT INTO lifecycle.accounts (id, email, login) OVERRIDING SYSTEM VALUE
  SELECT k, k || '@x.example', k::text FROM mail;
INSERT INTO lifecycle.tokens (id, action, account, secret) OVERRIDING SYSTEM VALUE
  SELECT k, 'activation', k, int8send(k) FROM mail;
INSERT INTO lifecycle.waiting (token, lane, held, held_until)
  SELECT k, 1, CASE k % 2 WHEN 1 THEN 'rendering' END, CASE k % 2 WHEN 1 THEN at END FROM mail;
INSERT INTO lifecycle.collected (token, message_id, outcome) SELECT k, id, 'mailed' FROM mail;
"""
RELATIONS = """
SELECT pg_relation_filepath(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('pillarbox', 'lifecycle') AND c.relkind IN ('r', 'i') AND c.reltuples > {small}
"""


async def fill(server: EmbeddedPostgres, database: Database, load: str) -> None:
    """A million rows in every table that grows with what was sent, or so the planner believes."""
    state, attempts = LOADS[load]
    async with database.connection() as connection:
        await lifecycle_schema.install(connection, "lifecycle")
        await connection.execute(FILL.format(count=SAMPLE, state=state, attempts=attempts))
        await connection.execute("VACUUM ANALYZE")
        for row in await connection.fetch(RELATIONS.format(small=SAMPLE // 3)):
            path: Path = server.directory / row[0]
            os.truncate(path, path.stat().st_size * TIMES)  # pages of zeros are empty ones


def queries() -> dict[str, str]:
    """Every named query, as `file.name`."""
    files = sorted(file.name for file in resources.files("pillarbox.store.sql").iterdir())
    names = [file.removesuffix(".sql") for file in files if file.endswith(".sql")]
    return {
        f"{file}.{name}": text.replace("{schema}", "lifecycle")
        for file in names
        for name, text in sql.load(file).items()
        if PLANNED.match(text)
    }


def claim_one_lane(worker: int, limit: int, deferred: int) -> tuple[object, ...]:
    """The statement that claims from the only lane, with its arguments."""
    return sql.load("queue").claim(
        worker=worker,
        tenants=[1],
        priorities=[1],
        lane_limits=[limit],
        deferred_limits=[deferred],
        max_messages=limit,
        max_bytes=2**40,
        allow_oversized=True,
    )


@pytest.mark.parametrize("load", LOADS)
async def test_no_statement_is_worth_compiling(
    postgres_server: EmbeddedPostgres, database: Database, load: str
) -> None:
    await fill(postgres_server, database, load)
    async with database.transaction() as connection:
        believed = await explain(connection, "SELECT FROM pillarbox.deliveries")
        assert believed["Plan Rows"] == pytest.approx(SAMPLE * TIMES, rel=0.1)
        costs = {
            name: (await explain(connection, query))["Total Cost"]
            for name, query in queries().items()
        }
    assert {name: cost for name, cost in costs.items() if cost > JIT_ABOVE_COST} == {}
    # What every mail, call and token waits for must stay far below it.
    assert {name: costs[name] for name in HOT if costs[name] > JIT_ABOVE_COST / 5} == {}


@pytest.mark.parametrize("statistics", ["none", "of an empty table"])
async def test_plans_made_while_the_queue_was_empty_are_good_for_a_long_one(
    database: Database, statistics: str
) -> None:
    if statistics != "none":
        await database.execute("VACUUM ANALYZE")
    own = await database.for_queue()
    for name in ("survey", "claim", "settle", "release", "postpone", "release_strays"):
        found = await plan_of(own, sql.load("queue")[name])
        assert "all of deliveries" not in found, name
    await own.close()


async def test_sessions_begin_without_compiling(
    database: Database, connection: asyncpg.Connection
) -> None:
    """Those of Pillarbox alone: roles and databases are shared with applications."""
    own = await database.for_queue()
    assert await database.fetchval("SHOW jit") == "off"
    assert await own.fetchval("SHOW jit") == "off"
    assert await own.fetchval("SHOW plan_cache_mode") == "force_generic_plan"
    assert await connection.fetchval("SHOW jit") == "on"
    assert await connection.fetchval("SELECT count(*) FROM pg_db_role_setting") == 0
    await own.close()


async def test_what_counts_the_backlog_is_never_compiled(database: Database) -> None:
    """Its cost must follow the backlog. Behind a pooler a session cannot begin with `jit = off`; a function can."""
    for name in ("_depth", "_longest", "_depth_by_tenant", "_recent"):
        found = await database.fetchval(
            "SELECT proconfig FROM pg_proc WHERE oid = $1::regproc", f"pillarbox.{name}"
        )
        assert found == ["jit=off"], name


async def test_a_claim_locks_what_it_takes_and_no_more(
    database: Database, connection: asyncpg.Connection
) -> None:
    for n in range(20):
        await enqueue(database, f"r{n}@x.example")
    queue = postgres_worker(database)
    await queue.register("first", 60)
    await queue.claim(1, 2**40, True)  # takes the lane
    async with connection.transaction():
        taken = await connection.fetch(*claim_one_lane(queue.worker, 5, 0))
        assert len(taken) == 5
        free = await database.fetch(
            "SELECT FROM pillarbox.deliveries WHERE state = 'queued' FOR UPDATE SKIP LOCKED"
        )
        assert len(free) == 14


async def test_a_claim_is_bounded_and_the_next_goes_on(database: Database) -> None:
    mails = [
        {"sender": "a@x.example", "to": "b@x.example", "text": str(n)}
        for n in range(LARGEST_CLAIM + 7)
    ]
    await database.execute("SELECT pillarbox.enqueue_many($1::jsonb)", json.dumps(mails))
    queue = postgres_worker(database)
    await queue.register("one", 60)
    counts = [len(await queue.claim(10_000, 2**40, True, look=look)) for look in (True, False)]
    assert counts == [LARGEST_CLAIM, 7]
    statements = sql.load("queue")
    limits = [statements[name].count(f"LIMIT {LARGEST_CLAIM}\n") for name in BOUNDED]
    assert limits == [2, 4]


async def test_a_strict_lane_reads_nothing_behind_a_deferred_mail(database: Database) -> None:
    """Its first mail waits for its next attempt, and nothing may overtake it, however many there are."""
    await remember(database)
    await database.execute("UPDATE pillarbox.deliveries SET state = 'queued'")
    await database.execute("UPDATE pillarbox.tenants SET order_mode = 'strict'")
    first = await database.fetchval(
        """UPDATE pillarbox.deliveries SET attempts = 1, next_attempt_at = now() + interval '1 hour'
           WHERE seq = (SELECT min(seq) FROM pillarbox.deliveries) RETURNING message_id"""
    )
    await database.execute("VACUUM ANALYZE pillarbox.deliveries")
    queue = postgres_worker(database)
    await queue.register("one", 60)
    lane = (
        "UPDATE pillarbox.lanes SET message_id = $1, worker = $2 WHERE tenant_id = 1 AND lane = 1"
    )
    await database.execute(lane, first, queue.worker)
    claim, *arguments = claim_one_lane(queue.worker, 100, 50)
    text = await database.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {claim}", *arguments)
    plan = json.loads(text)[0]["Plan"]
    assert plan["Actual Rows"] == 0
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 100
