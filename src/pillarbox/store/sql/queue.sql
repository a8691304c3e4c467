-- name: survey
-- The lanes in which something waits: a fresh mail, or a deferred one (with the seconds until it is due); at most $4, those
-- after tenant $2 and lane $3. Says of each who dispatches it: worker $1, another that is alive, or nobody; and how long a
-- rate limit of its tenant holds it back. A lane of a dead worker is still that worker's while mails which it claimed from it were not taken back. Jumps from lane to lane in the indexes: the
-- work is bounded by how many lanes have something, not by how much.
WITH RECURSIVE alive AS MATERIALIZED (
  SELECT id, lease_until, aside FROM pillarbox.workers WHERE reaped_at IS NULL AND lease_until > now()
), fresh AS (
  (SELECT d.tenant_id, d.lane FROM pillarbox.deliveries d
   WHERE d.state = 'queued' AND d.attempts = 0 AND (d.tenant_id, d.lane) > ($2::int4, $3::int2)
   ORDER BY d.tenant_id, d.lane LIMIT 1)
  UNION ALL
  SELECT next.tenant_id, next.lane FROM fresh f CROSS JOIN LATERAL (
    SELECT d.tenant_id, d.lane FROM pillarbox.deliveries d
    WHERE d.state = 'queued' AND d.attempts = 0 AND (d.tenant_id, d.lane) > (f.tenant_id, f.lane)
    ORDER BY d.tenant_id, d.lane LIMIT 1) next
), deferred AS (
  (SELECT d.tenant_id, d.lane, d.next_attempt_at FROM pillarbox.deliveries d
   WHERE d.state = 'queued' AND d.attempts > 0 AND (d.tenant_id, d.lane) > ($2::int4, $3::int2)
   ORDER BY d.tenant_id, d.lane, d.next_attempt_at LIMIT 1)
  UNION ALL
  SELECT next.tenant_id, next.lane, next.next_attempt_at FROM deferred f CROSS JOIN LATERAL (
    SELECT d.tenant_id, d.lane, d.next_attempt_at FROM pillarbox.deliveries d
    WHERE d.state = 'queued' AND d.attempts > 0 AND (d.tenant_id, d.lane) > (f.tenant_id, f.lane)
    ORDER BY d.tenant_id, d.lane, d.next_attempt_at LIMIT 1) next
), found AS (
  SELECT tenant_id, lane, bool_or(fresh) AS fresh, min(due) AS due
  FROM (SELECT * FROM (SELECT tenant_id, lane, true AS fresh, NULL::timestamptz AS due FROM fresh LIMIT $4) one
        UNION ALL
        SELECT * FROM (SELECT tenant_id, lane, false, next_attempt_at FROM deferred LIMIT $4) two) both_kinds
  GROUP BY tenant_id, lane ORDER BY tenant_id, lane LIMIT $4
)
SELECT f.tenant_id, f.lane, l.order_mode, f.fresh, extract(epoch FROM f.due - now())::float8 AS due_in, (l.worker = $1) IS TRUE AS mine,
  CASE WHEN l.worker <> $1 THEN coalesce(
    (SELECT extract(epoch FROM w.lease_until - now())::float8 FROM alive w WHERE w.id = l.worker),
    CASE WHEN (l.tenant_id, l.lane, l.worker) IN (
      SELECT d.tenant_id, d.lane, d.worker FROM pillarbox.deliveries d WHERE d.state = 'processing') THEN 0 END) END AS theirs_for,
  CASE WHEN l.limited THEN (
    SELECT greatest(pillarbox._wait(r.second_at, t.rate_per_second, 1, now()), pillarbox._wait(r.hour_at, t.rate_per_hour, 3600, now()),
                    pillarbox._wait(r.day_at, t.rate_per_day, 86400, now()))
    FROM pillarbox.tenants t, pillarbox.rates r WHERE t.id = f.tenant_id AND r.kind = 't' AND r.id = f.tenant_id) END AS limited_for,
  l.limited, (SELECT count(*) FROM alive WHERE NOT aside OR id = $1)::int AS workers
FROM found f
JOIN LATERAL (SELECT * FROM pillarbox.lanes WHERE tenant_id = f.tenant_id AND lane = f.lane LIMIT 1) l ON true
ORDER BY f.tenant_id, f.lane

-- name: take_lanes
-- Make worker $1 the dispatcher of those of the lanes (tenants $2, priorities $3) that have none. What a dead one claimed
-- must be taken back first: a worker that is late, not dead, may still begin with it, or give it back.
WITH alive AS MATERIALIZED (
  SELECT id FROM pillarbox.workers WHERE reaped_at IS NULL AND lease_until > now()
), free AS (
  SELECT l.tenant_id, l.lane
  FROM unnest($2::int4[], $3::int2[]) AS g(tenant_id, lane)
  JOIN pillarbox.lanes l ON l.tenant_id = g.tenant_id AND l.lane = g.lane
  WHERE $1 IN (SELECT id FROM alive) AND (l.worker IS NULL OR l.worker NOT IN (SELECT id FROM alive)
    AND (l.tenant_id, l.lane, l.worker) NOT IN (
      SELECT d.tenant_id, d.lane, d.worker FROM pillarbox.deliveries d WHERE d.state = 'processing' AND d.worker IS NOT NULL))
  ORDER BY l.tenant_id, l.lane FOR UPDATE OF l SKIP LOCKED
)
UPDATE pillarbox.lanes l SET worker = $1 FROM free
WHERE l.tenant_id = free.tenant_id AND l.lane = free.lane
RETURNING l.tenant_id, l.lane

-- name: claim
-- Take due messages whole for a worker ($1) whose lease is alive, from the lanes of tenants $2 and priorities $3 that it
-- dispatches: from each at most $4 messages, of which $5 deferred ones; together at most $6 and $7 bytes; with $8 the first may
-- be larger than that. The tenants' limits are kept, and used up by what is taken. Of a strict lane comes one message, once
-- the one before is settled; one that was given back, or is due again, comes before all others. A message is taken by its
-- first due delivery (its head): whoever locks the head gets the rest. Recipients on the tenant's suppression list are named.
-- `= ANY (ARRAY(…))` keeps the planner on the indexes whatever the statistics say, and `state::text` away from the
-- partial ones, which it would walk whole where it thinks that they are empty; `(SELECT true … LIMIT 1)`, unlike EXISTS, is never
-- answered by reading the table once.
-- The estimated cost must not follow the backlog (ADR 0018): above `jit_above_cost` PostgreSQL compiles the statement, for
-- seconds. So estimates are bounded, in three ways that change no result:
-- * The planner expects a LIMIT that is no constant to return a tenth of all rows. The constant one around it, LARGEST_CLAIM in
--   queue/postgres.py, bounds that. It locks nothing more: rows are locked as they are returned.
-- * It expects one lane in 200 to meet `most BETWEEN 1 AND 1000000`, which every lane that was asked for does.
-- * It expects one row in 200 to meet `only IS NULL OR …`, and so to read 200 rows for each; of a CASE it expects half. `only` is the
--   seq of the one message that a strict lane may give. Of fresh mails it bounds the part of the index that is read: while that
--   message is deferred, nothing is read of those that wait behind it.
WITH asked AS MATERIALIZED (
  SELECT a.tenant_id, a.lane, a.most, a.deferred, a.place, l.order_mode = 'strict' AS strict, l.limited,
    -- While a limit cuts a tenant short, its higher lanes let the lower ones go first now and then, lest these starve.
    (l.limited AND random() < (ARRAY[0.25, 0.2, 0])[a.lane + 1])::int AS late,
    CASE WHEN l.order_mode = 'strict' THEN (
      SELECT d.seq FROM pillarbox.deliveries d WHERE d.message_id = l.message_id AND d.state::text = 'queued' LIMIT 1) END AS only
  FROM unnest($2::int4[], $3::int2[], $4::int4[], $5::int4[]) WITH ORDINALITY AS a(tenant_id, lane, most, deferred, place)
  JOIN LATERAL (SELECT * FROM pillarbox.lanes WHERE tenant_id = a.tenant_id AND lane = a.lane LIMIT 1) l ON true
  WHERE a.most BETWEEN 1 AND 1000000
    AND EXISTS (SELECT FROM pillarbox.workers WHERE id = $1 AND reaped_at IS NULL AND lease_until > now())
    AND (l.worker = $1 OR l.order_mode = 'parallel')
    AND (l.order_mode <> 'strict' OR (
      SELECT true FROM pillarbox.deliveries d WHERE d.message_id = l.message_id AND d.state::text = 'processing' LIMIT 1) IS NULL)
), allowed AS MATERIALIZED (
  -- Locked in one order, so that two workers cannot wait for each other.
  SELECT r.id, least(pillarbox._allowance(r.second_at, t.rate_per_second, 1, now()),
                     pillarbox._allowance(r.hour_at, t.rate_per_hour, 3600, now()),
                     pillarbox._allowance(r.day_at, t.rate_per_day, 86400, now())) AS most
  FROM pillarbox.rates r JOIN pillarbox.tenants t ON t.id = r.id
  WHERE r.kind = 't' AND r.id = ANY (ARRAY(SELECT tenant_id FROM asked WHERE limited))
  ORDER BY r.id FOR UPDATE OF r
), retry AS MATERIALIZED (
  SELECT a.place, r.*, a.late + row_number() OVER (PARTITION BY a.place ORDER BY r.next_attempt_at) AS nth
  FROM asked a CROSS JOIN LATERAL (SELECT * FROM (
    SELECT d.message_id, d.size, d.tenant_id, d.next_attempt_at
    FROM pillarbox.deliveries d
    WHERE d.tenant_id = a.tenant_id AND d.lane = a.lane AND d.state = 'queued' AND d.attempts > 0 AND d.next_attempt_at <= now()
      AND CASE WHEN a.only IS NULL THEN true ELSE d.seq = a.only END
      AND (d.n = 0 OR NOT EXISTS (
        SELECT FROM pillarbox.deliveries h
        WHERE h.message_id = d.message_id AND h.n < d.n AND h.state = 'queued' AND h.next_attempt_at <= now()))
    ORDER BY d.next_attempt_at LIMIT a.deferred FOR UPDATE SKIP LOCKED) locked LIMIT 500) r
), fresh AS MATERIALIZED (
  SELECT a.place, f.*, a.late + row_number() OVER (PARTITION BY a.place ORDER BY f.seq) AS nth
  FROM asked a CROSS JOIN LATERAL (SELECT * FROM (
    SELECT d.message_id, d.size, d.tenant_id, d.seq
    FROM pillarbox.deliveries d
    WHERE d.tenant_id = a.tenant_id AND d.lane = a.lane AND d.state = 'queued' AND d.attempts = 0
      AND d.seq >= coalesce(a.only, 0) AND d.seq <= coalesce(a.only, 9223372036854775807)
      AND (d.n = 0 OR NOT EXISTS (
        SELECT FROM pillarbox.deliveries h
        WHERE h.message_id = d.message_id AND h.n < d.n AND h.state = 'queued' AND h.next_attempt_at <= now()))
    ORDER BY d.seq, d.n LIMIT a.most - (SELECT count(*) FROM retry r WHERE r.place = a.place)
    FOR UPDATE SKIP LOCKED) locked LIMIT 500) f
), heads AS (
  SELECT message_id, size, tenant_id, nth, place, false AS again FROM fresh
  UNION ALL SELECT message_id, size, tenant_id, nth, place, true FROM retry
), within AS (
  SELECT * FROM heads WHERE NOT EXISTS (SELECT FROM allowed)
  UNION ALL
  SELECT h.message_id, h.size, h.tenant_id, h.nth, h.place, h.again
  FROM (SELECT *, row_number() OVER (PARTITION BY tenant_id ORDER BY nth, place, again) AS of_tenant
        FROM heads WHERE EXISTS (SELECT FROM allowed)) h
  LEFT JOIN allowed a ON a.id = h.tenant_id
  WHERE a.most IS NULL OR h.of_tenant <= a.most
), chosen AS MATERIALIZED (
  SELECT message_id, tenant_id
  FROM (SELECT message_id, tenant_id, row_number() OVER turns AS place, sum(size) OVER turns AS total
        FROM within WINDOW turns AS (ORDER BY nth, place, again ROWS UNBOUNDED PRECEDING)) counted
  WHERE place <= $6::int4 AND (total <= $7::bigint OR (place = 1 AND $8::bool))
), spent AS (
  UPDATE pillarbox.rates r
  SET second_at = pillarbox._used(r.second_at, n.rate_per_second, 1, now(), n.count),
      hour_at = pillarbox._used(r.hour_at, n.rate_per_hour, 3600, now(), n.count),
      day_at = pillarbox._used(r.day_at, n.rate_per_day, 86400, now(), n.count)
  FROM (SELECT t.id, t.rate_per_second, t.rate_per_hour, t.rate_per_day, c.count
        FROM (SELECT tenant_id, count(*) FROM chosen WHERE EXISTS (SELECT FROM allowed) GROUP BY tenant_id) c
        JOIN pillarbox.tenants t ON t.id = c.tenant_id) n
  WHERE r.kind = 't' AND r.id = n.id AND r.id IN (SELECT id FROM allowed)
), begun AS (
  UPDATE pillarbox.lanes l SET message_id = c.message_id
  FROM asked a JOIN heads h ON h.place = a.place JOIN chosen c ON c.message_id = h.message_id
  WHERE a.strict AND l.tenant_id = a.tenant_id AND l.lane = a.lane
), fence AS MATERIALIZED (
  SELECT nextval('pillarbox.claim_seq') AS claim
), claimed AS (
  UPDATE pillarbox.deliveries d
  SET state = 'processing', claim = (SELECT claim FROM fence), worker = $1, claimed_at = now()
  WHERE d.message_id = ANY (ARRAY(SELECT message_id FROM chosen)) AND d.state::text = 'queued'
    AND d.next_attempt_at <= now()
  RETURNING d.message_id, d.n, d.recipient, d.attempts, d.claim, d.seq, d.via, (
    SELECT coalesce(s.expires_at > now(), true) FROM pillarbox.suppressions s
    WHERE s.tenant_id = d.tenant_id AND s.address = lower(d.recipient) LIMIT 1) AS suppressed
)
SELECT r.message_id, r.claim, r.ns, r.recipients, r.attempts, r.via, r.suppressed, m.tenant_id, m.lane, m.size, m.class, m.kind,
  m.tags, m.sender, m."to", m.cc, m.reply_to, m.subject, m.headers, m.created_at, m.max_attempts,
  m.expires_at <= now() AS expired, m.expires_at, extract(epoch FROM now() - m.created_at)::float8 AS age,
  c.message_id IS NOT NULL AS has_content, c.text, c.html, c.raw, c.attachments
FROM (SELECT message_id, claim, array_agg(n ORDER BY n) AS ns, array_agg(recipient ORDER BY n) AS recipients,
        array_agg(attempts ORDER BY n) AS attempts, array_agg(via ORDER BY n) AS via,
        array_agg(n ORDER BY n) FILTER (WHERE suppressed) AS suppressed, min(seq) AS seq FROM claimed GROUP BY message_id, claim) r
JOIN LATERAL (SELECT * FROM pillarbox.messages WHERE id = r.message_id LIMIT 1) m ON true
LEFT JOIN LATERAL (SELECT * FROM pillarbox.contents WHERE message_id = r.message_id LIMIT 1) c ON true
ORDER BY r.seq

-- name: give_lanes
-- Let other workers dispatch lanes (tenants $2, priorities $3) of worker $1, and tell them.
WITH given AS (
  UPDATE pillarbox.lanes l SET worker = NULL
  FROM unnest($2::int4[], $3::int2[]) AS g(tenant_id, lane)
  WHERE l.tenant_id = g.tenant_id AND l.lane = g.lane AND l.worker = $1 RETURNING l.lane
)
SELECT pg_notify('pillarbox_wake', '') WHERE EXISTS (SELECT FROM given)

-- name: step_aside
-- Let other workers dispatch lanes (tenants $2, priorities $3) of worker $1, which has no room and takes none for now.
-- No row, and nothing done, when there are no others.
WITH others AS (
  SELECT FROM pillarbox.workers WHERE id <> $1 AND reaped_at IS NULL AND lease_until > now() LIMIT 1
), given AS (
  UPDATE pillarbox.lanes l SET worker = NULL
  FROM unnest($2::int4[], $3::int2[]) AS g(tenant_id, lane)
  WHERE l.tenant_id = g.tenant_id AND l.lane = g.lane AND l.worker = $1 AND EXISTS (SELECT FROM others)
), marked AS (
  UPDATE pillarbox.workers SET aside = true WHERE id = $1 AND NOT aside AND EXISTS (SELECT FROM others)
)
SELECT pg_notify('pillarbox_wake', '') FROM others

-- name: come_back
-- Count worker $1 again among those that take lanes.
UPDATE pillarbox.workers SET aside = false WHERE id = $1

-- name: settle
-- Write the outcomes of attempts whose claims are still held, and record the attempts: one array element per delivery.
-- Returns what was settled; what is missing from the answer was lost to the reaper, or settled before. Only a delivery
-- in `processing` has a claim. Everything else that belongs to these outcomes is written by the same statement, so that all of
-- it is there or nothing: conversations (messages $17, claims $18, lines $19) and events (messages $20, claims $21, kinds $22,
-- data $23) of what was settled; the contents of messages of secret classes ($24) are dropped when nothing of them is left to
-- send. Customers with webhooks are told; where there are none, that is one look into an empty index. A mail that failed over has
-- earlier tries in the same claim ($26 to $37); $25 is the number of the last one.
WITH settled AS (
  UPDATE pillarbox.deliveries d
  SET state = r.state::pillarbox.state, reason = r.reason, retry = coalesce(r.retry, d.retry),
      attempts = d.attempts + 1, provider_id = coalesce(r.provider_id, d.provider_id),
      next_attempt_at = CASE WHEN r.delay IS NULL THEN d.next_attempt_at
                             ELSE least(now() + r.delay * interval '1 second', r.expires_at) END,
      settled_at = CASE WHEN r.delay IS NULL THEN clock_timestamp() END,
      claim = NULL, worker = NULL, waiting_since = NULL
  FROM unnest($2::uuid[], $3::int2[], $4::int8[], $5::text[], $6::text[], $7::text[], $8::float8[], $9::int4[],
              $10::text[], $11::int2[], $12::text[], $13::text[], $14::float8[], $15::float8[], $16::timestamptz[],
              $25::int2[])
    AS r(message_id, n, claim, state, reason, retry, delay, provider_id, verdict, code, reply, provider_message_id,
         ended_ago, took, expires_at, step)
  WHERE d.message_id = r.message_id AND d.n = r.n AND d.claim = r.claim
  RETURNING d.message_id, d.n, r.claim, r.step, r.provider_id, r.verdict, r.reason, r.code, r.reply, r.provider_message_id,
    now() - r.ended_ago * interval '1 second' AS ended_at, r.took * interval '1 second' AS took,
    d.tenant_id, r.state, d.attempts, CASE WHEN r.delay IS NOT NULL THEN d.next_attempt_at END AS next_attempt_at
), recorded AS (
  INSERT INTO pillarbox.attempts (message_id, n, claim, step, worker, provider_id, started_at, ended_at, verdict, reason, code,
                                  reply, provider_message_id)
  SELECT message_id, n, claim, step, $1::bigint, provider_id, ended_at - took, ended_at, verdict, reason, code, reply,
    provider_message_id
  FROM settled
  UNION ALL
  SELECT t.message_id, t.n, t.claim, t.step, $1::bigint, t.provider_id,
    now() - (t.ended_ago + t.took) * interval '1 second', now() - t.ended_ago * interval '1 second',
    t.verdict, t.reason, t.code, t.reply, t.provider_message_id
  FROM unnest($26::uuid[], $27::int2[], $28::int8[], $29::int2[], $30::int4[], $31::text[], $32::text[], $33::int2[], $34::text[],
              $35::text[], $36::float8[], $37::float8[])
    AS t(message_id, n, claim, step, provider_id, verdict, reason, code, reply, provider_message_id, ended_ago, took)
  WHERE (t.message_id, t.n, t.claim) IN (SELECT message_id, n, claim FROM settled)
), kept AS (
  INSERT INTO pillarbox.conversations (message_id, claim, lines)
  SELECT c.message_id, c.claim, c.lines
  FROM unnest($17::uuid[], $18::int8[], $19::text[]) AS c(message_id, claim, lines)
  WHERE (c.message_id, c.claim) IN (SELECT message_id, claim FROM settled)
  ON CONFLICT DO NOTHING
), told AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
  SELECT e.message_id, NULL::int2, e.kind, e.data
  FROM unnest($20::uuid[], $21::int8[], $22::text[], $23::jsonb[]) AS e(message_id, claim, kind, data)
  WHERE (e.message_id, e.claim) IN (SELECT message_id, claim FROM settled)
  UNION ALL
  SELECT message_id, n, 'unknown', jsonb_build_object('claim', claim, 'reason', reason) FROM settled WHERE verdict = 'unknown'
), customers AS (
  SELECT pillarbox._tell_customers(
    array_agg(s.message_id), array_agg(s.n), array_agg(CASE s.state WHEN 'queued' THEN 'message.deferred' ELSE 'message.' || s.state END),
    array_agg(s.ended_at), array_agg(jsonb_build_object('state', s.state, 'reason', s.reason, 'attempt', s.attempts, 'code', s.code,
                                                        'next_attempt_at', s.next_attempt_at)))
  FROM settled s
  WHERE EXISTS (SELECT FROM pillarbox.webhook_endpoints WHERE enabled)
    AND EXISTS (SELECT FROM pillarbox.webhook_endpoints e WHERE e.enabled AND e.tenant_id = s.tenant_id)
  HAVING count(*) > 0
), dropped AS (
  SELECT pillarbox._drop_secret_contents(ARRAY(SELECT DISTINCT message_id FROM settled WHERE message_id = ANY ($24::uuid[])))
  WHERE cardinality($24::uuid[]) > 0
)
SELECT message_id, n, claim FROM settled
WHERE (SELECT count(*) FROM customers) >= 0 AND (SELECT count(*) FROM dropped) >= 0  -- so that both are carried out

-- name: settled_before
-- Of these deliveries (messages $1, numbers $2, claims $3), those whose outcome (verdicts $4, reasons $5, providers $6) is
-- recorded already: by an earlier call whose answer was lost. The reaper's records name no provider.
SELECT r.message_id, r.n, r.claim
FROM unnest($1::uuid[], $2::int2[], $3::int8[], $4::text[], $5::text[], $6::int4[])
  AS r(message_id, n, claim, verdict, reason, provider_id)
WHERE EXISTS (
  SELECT FROM pillarbox.attempts a
  WHERE a.message_id = r.message_id AND a.n = r.n AND a.claim = r.claim AND a.verdict = r.verdict
    AND a.reason IS NOT DISTINCT FROM r.reason AND a.provider_id IS NOT DISTINCT FROM r.provider_id)

-- name: release
-- Give claims back untouched: nothing of them was sent. Fenced like settling.
UPDATE pillarbox.deliveries d
SET state = 'queued', claim = NULL, worker = NULL
FROM unnest($1::uuid[], $2::int8[]) AS r(message_id, claim)
WHERE d.message_id = r.message_id AND d.claim = r.claim

-- name: postpone
-- Let claimed messages of which nothing was sent wait for $3 seconds each, because of $4; not longer than they may. Fenced.
-- With 0 seconds they stay the next of their lane. Those that found no provider are marked with when that began.
UPDATE pillarbox.deliveries d
SET state = CASE WHEN r.wait > 0 THEN 'pending' ELSE 'queued' END::pillarbox.state, reason = r.reason,
    claim = NULL, worker = NULL,
    waiting_since = CASE WHEN r.reason = 'no_provider' THEN coalesce(d.waiting_since, now()) END,
    next_attempt_at = CASE WHEN r.wait > 0 THEN least(now() + r.wait * interval '1 second',
      (SELECT m.expires_at FROM pillarbox.messages m WHERE m.id = d.message_id)) ELSE d.next_attempt_at END
FROM unnest($1::uuid[], $2::int8[], $3::float8[], $4::text[]) AS r(message_id, claim, wait, reason)
WHERE d.message_id = r.message_id AND d.claim = r.claim

-- name: release_strays
-- Give back what worker $1 claimed but never learned of, because the answer was lost: everything but the claims in $2.
UPDATE pillarbox.deliveries
SET state = 'queued', claim = NULL, worker = NULL
WHERE state = 'processing' AND worker = $1 AND claim <> ALL ($2::int8[])

-- name: promote
-- Queue scheduled deliveries whose time has come, at most $1 of them, and 1000 (see `claim` on constant limits).
UPDATE pillarbox.deliveries d SET state = 'queued'
FROM (SELECT * FROM (
  SELECT message_id, n FROM pillarbox.deliveries WHERE state = 'pending' AND next_attempt_at <= now()
  ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED) locked LIMIT 1000) due
WHERE d.message_id = due.message_id AND d.n = due.n AND d.state::text = 'pending'

-- name: register_worker
-- Begin a lease of $2 seconds under a new id.
INSERT INTO pillarbox.workers (name, lease_until, lease) VALUES ($1, now() + $2 * interval '1 second', $2) RETURNING id

-- name: heartbeat
-- Extend a worker's lease by $2 seconds from now, also when it has run out; no row when its claims were taken away.
UPDATE pillarbox.workers SET lease_until = now() + $2 * interval '1 second', lease = $2
WHERE id = $1 AND reaped_at IS NULL RETURNING id

-- name: retire_worker
-- End a lease that holds nothing any more, and tell the others that its lanes are free.
WITH ended AS (
  UPDATE pillarbox.workers
  SET stopped_at = now(), reaped_at = coalesce(reaped_at, now()), lease_until = least(lease_until, now())
  WHERE id = $1 RETURNING id
)
SELECT pg_notify('pillarbox_wake', '') FROM ended

-- name: forget_workers
-- Delete workers that ended long ago and hold nothing.
DELETE FROM pillarbox.workers w
WHERE reaped_at < now() - interval '7 days'
  AND NOT EXISTS (SELECT FROM pillarbox.deliveries d WHERE d.state = 'processing' AND d.worker = w.id)

-- name: reap
-- Take back up to $1 claims of workers whose lease ran out. Nobody saw how these attempts ended: they are recorded as
-- unknown, and go back to the queue or are held as their class says. A worker is dead when it did not renew its lease although
-- the database was available for as long as the lease (its own, or $2 if that is longer): after a time in which the database
-- was not, workers can first report what they know.
WITH available AS MATERIALIZED (
  SELECT pillarbox._available_for($2) AS seconds
), dead AS (
  UPDATE pillarbox.workers w SET reaped_at = now()
  WHERE w.reaped_at IS NULL AND w.lease_until < now()
    AND (SELECT seconds FROM available) >= greatest(w.lease, $2)
  RETURNING w.id
), lost AS MATERIALIZED (
  SELECT d.message_id, d.n, d.claim, d.worker, d.claimed_at
  FROM pillarbox.deliveries d
  WHERE d.state = 'processing'
    AND (d.worker = ANY (ARRAY(SELECT id FROM dead))
         OR NOT EXISTS (SELECT FROM pillarbox.workers w WHERE w.id = d.worker AND w.reaped_at IS NULL))
  LIMIT $1
  FOR UPDATE SKIP LOCKED
), taken AS (
  UPDATE pillarbox.deliveries d
  SET state = CASE WHEN coalesce(k.unknown, 'resend') = 'hold' THEN 'held' ELSE 'queued' END::pillarbox.state,
      attempts = d.attempts + 1, claim = NULL, worker = NULL, reason = 'lost', waiting_since = NULL,
      next_attempt_at = now() + CASE WHEN k.unknown = 'wait' THEN interval '15 minutes' ELSE interval '0' END,
      settled_at = CASE WHEN k.unknown = 'hold' THEN now() END
  FROM lost l
  LEFT JOIN LATERAL (SELECT class FROM pillarbox.messages WHERE id = l.message_id LIMIT 1) m ON true
  LEFT JOIN pillarbox.classes k ON k.name = m.class
  WHERE d.message_id = l.message_id AND d.n = l.n AND d.claim = l.claim
  RETURNING d.message_id, d.n, l.claim, l.worker, l.claimed_at, d.tenant_id, d.state, d.attempts
), recorded AS (
  INSERT INTO pillarbox.attempts (message_id, n, claim, worker, started_at, ended_at, verdict, reason)
  SELECT message_id, n, claim, worker, claimed_at, now(), 'unknown', 'lost' FROM taken
  ON CONFLICT DO NOTHING
), told AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
  SELECT message_id, n, 'unknown', jsonb_build_object('claim', claim, 'reason', 'lost', 'worker', worker) FROM taken
), customers AS (
  SELECT pillarbox._tell_customers(
    array_agg(t.message_id), array_agg(t.n), array_agg(CASE t.state WHEN 'held' THEN 'message.held' ELSE 'message.deferred' END),
    array_agg(now()), array_agg(jsonb_build_object('state', t.state, 'reason', 'lost', 'attempt', t.attempts)))
  FROM taken t
  WHERE EXISTS (SELECT FROM pillarbox.webhook_endpoints e WHERE e.enabled AND e.tenant_id = t.tenant_id)
  HAVING count(*) > 0
)
SELECT count(*) FROM taken WHERE (SELECT count(*) FROM customers) >= 0  -- so that they are told

-- name: touch
-- Note that the database is available to a process whose workers have a lease of $1 seconds.
SELECT pillarbox._available_for($1)

-- name: reap_wait
-- Seconds until every worker whose lease ran out may be reaped, the database staying available; null when there is none.
SELECT max(greatest(w.lease, $1)) - pillarbox._available_for($1) FROM pillarbox.workers w
WHERE w.reaped_at IS NULL AND w.lease_until < now()

-- name: depth
-- Live deliveries by state, and the age of the oldest that is due.
SELECT state, count, oldest FROM pillarbox._depth()

-- name: longest
-- The $1 tenants with most deliveries waiting (then those that came first), and how many wait in all the others.
SELECT id, name, count, others FROM pillarbox._longest($1)

-- name: workers_alive
-- How many workers hold a lease.
SELECT count(*) FROM pillarbox.workers WHERE reaped_at IS NULL AND lease_until > now()

-- name: hint
-- Wake every worker that listens.
SELECT pg_notify('pillarbox_wake', '')
