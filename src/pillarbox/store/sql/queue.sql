-- name: claim
-- Take due messages whole for a worker ($1) whose lease is alive: at most $2 messages and $3 bytes; with $4 the first
-- may be larger than that. Deferred ones get at most half the places while fresh ones wait, so that neither starves
-- the other. A message is taken by its first due delivery (its head): whoever locks the head gets the rest.
-- `= ANY (ARRAY(…))` keeps the planner on the indexes whatever the statistics say, and `state::text` away from the
-- partial ones, which it would walk whole where it thinks that they are empty.
WITH alive AS (
  SELECT FROM pillarbox.workers WHERE id = $1 AND reaped_at IS NULL AND lease_until > now()
), retry AS (
  SELECT d.message_id, d.size, d.next_attempt_at
  FROM pillarbox.deliveries d
  WHERE d.state = 'queued' AND d.attempts > 0 AND d.next_attempt_at <= now() AND EXISTS (SELECT FROM alive)
    AND (d.n = 0 OR NOT EXISTS (
      SELECT FROM pillarbox.deliveries h
      WHERE h.message_id = d.message_id AND h.n < d.n AND h.state = 'queued' AND h.next_attempt_at <= now()))
  ORDER BY d.next_attempt_at
  LIMIT ($2::int + 1) / 2
  FOR UPDATE SKIP LOCKED
), fresh AS (
  SELECT d.message_id, d.size, d.lane, d.seq
  FROM pillarbox.deliveries d
  WHERE d.state = 'queued' AND d.attempts = 0 AND EXISTS (SELECT FROM alive)
    AND (d.n = 0 OR NOT EXISTS (
      SELECT FROM pillarbox.deliveries h
      WHERE h.message_id = d.message_id AND h.n < d.n AND h.state = 'queued' AND h.next_attempt_at <= now()))
  ORDER BY d.lane, d.seq, d.n
  LIMIT $2::int - (SELECT count(*) FROM retry)
  FOR UPDATE SKIP LOCKED
), placed AS (
  SELECT message_id, size, row_number() OVER (ORDER BY lane, seq, next_attempt_at) AS place
  FROM (SELECT message_id, size, lane, seq, NULL::timestamptz AS next_attempt_at FROM fresh
        UNION ALL SELECT message_id, size, NULL, NULL, next_attempt_at FROM retry) heads
), chosen AS (
  SELECT message_id
  FROM (SELECT message_id, place, sum(size) OVER (ORDER BY place) AS total FROM placed) counted
  WHERE total <= $3::bigint OR (place = 1 AND $4::bool)
), fence AS MATERIALIZED (
  SELECT nextval('pillarbox.claim_seq') AS claim
), claimed AS (
  UPDATE pillarbox.deliveries d
  SET state = 'processing', claim = (SELECT claim FROM fence), worker = $1, claimed_at = now()
  WHERE d.message_id = ANY (ARRAY(SELECT message_id FROM chosen)) AND d.state::text = 'queued'
    AND d.next_attempt_at <= now()
  RETURNING d.message_id, d.n, d.recipient, d.attempts, d.claim, d.lane, d.seq
)
SELECT r.message_id, r.claim, r.ns, r.recipients, r.attempts, m.tenant_id, m.size, m.class, m.kind, m.sender, m."to", m.cc,
  m.reply_to, m.subject, m.headers, m.created_at, m.max_attempts,
  m.expires_at <= now() AS expired, m.expires_at, extract(epoch FROM now() - m.created_at)::float8 AS age,
  c.message_id IS NOT NULL AS has_content, c.text, c.html, c.raw, c.attachments
FROM (SELECT message_id, claim, array_agg(n ORDER BY n) AS ns, array_agg(recipient ORDER BY n) AS recipients,
        array_agg(attempts ORDER BY n) AS attempts, min(lane) AS lane, min(seq) AS seq
      FROM claimed GROUP BY message_id, claim) r
JOIN LATERAL (SELECT * FROM pillarbox.messages WHERE id = r.message_id LIMIT 1) m ON true
LEFT JOIN LATERAL (SELECT * FROM pillarbox.contents WHERE message_id = r.message_id LIMIT 1) c ON true
ORDER BY r.lane, r.seq

-- name: settle
-- Write the outcomes of attempts whose claims are still held, and record the attempts: one array element per delivery.
-- Returns what was settled; what is missing from the answer was lost to the reaper, or settled before. Only a delivery
-- in `processing` has a claim.
WITH settled AS (
  UPDATE pillarbox.deliveries d
  SET state = r.state::pillarbox.state, reason = r.reason, retry = coalesce(r.retry, d.retry),
      attempts = d.attempts + 1, provider_id = coalesce(r.provider_id, d.provider_id),
      next_attempt_at = CASE WHEN r.delay IS NULL THEN d.next_attempt_at
                             ELSE least(now() + r.delay * interval '1 second', r.expires_at) END,
      settled_at = CASE WHEN r.delay IS NULL THEN clock_timestamp() END,
      claim = NULL, worker = NULL
  FROM unnest($2::uuid[], $3::int2[], $4::int8[], $5::text[], $6::text[], $7::text[], $8::float8[], $9::int4[],
              $10::text[], $11::int2[], $12::text[], $13::text[], $14::float8[], $15::float8[], $16::timestamptz[])
    AS r(message_id, n, claim, state, reason, retry, delay, provider_id, verdict, code, reply, provider_message_id,
         ended_ago, took, expires_at)
  WHERE d.message_id = r.message_id AND d.n = r.n AND d.claim = r.claim
  RETURNING d.message_id, d.n, r.claim, r.provider_id, r.verdict, r.reason, r.code, r.reply, r.provider_message_id,
    clock_timestamp() - r.ended_ago * interval '1 second' AS ended_at, r.took * interval '1 second' AS took
), recorded AS (
  INSERT INTO pillarbox.attempts (message_id, n, claim, worker, provider_id, started_at, ended_at, verdict, reason, code,
                                  reply, provider_message_id)
  SELECT message_id, n, claim, $1::bigint, provider_id, ended_at - took, ended_at, verdict, reason, code, reply,
    provider_message_id
  FROM settled
), told AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
  SELECT message_id, n, 'unknown', jsonb_build_object('claim', claim, 'reason', reason) FROM settled WHERE verdict = 'unknown'
)
SELECT message_id, n, claim FROM settled

-- name: keep_conversations
-- Store the conversations of attempts that were not plainly accepted.
INSERT INTO pillarbox.conversations (message_id, claim, lines)
SELECT * FROM unnest($1::uuid[], $2::int8[], $3::text[])
ON CONFLICT DO NOTHING

-- name: drop_secret_contents
-- Drop the bodies of secret classes once nothing of the message is left to send.
DELETE FROM pillarbox.contents c
WHERE c.message_id = ANY ($1::uuid[])
  AND NOT EXISTS (SELECT FROM pillarbox.deliveries d
                  WHERE d.message_id = c.message_id AND d.state IN ('pending', 'queued', 'processing', 'held'))

-- name: release
-- Give claims back untouched: nothing of them was sent. Fenced like settling.
UPDATE pillarbox.deliveries d
SET state = 'queued', claim = NULL, worker = NULL, claimed_at = NULL
FROM unnest($1::uuid[], $2::int8[]) AS r(message_id, claim)
WHERE d.message_id = r.message_id AND d.claim = r.claim

-- name: release_strays
-- Give back what worker $1 claimed but never learned of, because the answer was lost: everything but the claims in $2.
UPDATE pillarbox.deliveries
SET state = 'queued', claim = NULL, worker = NULL, claimed_at = NULL
WHERE state = 'processing' AND worker = $1 AND claim <> ALL ($2::int8[])

-- name: promote
-- Queue scheduled deliveries whose time has come, at most $1 of them.
UPDATE pillarbox.deliveries SET state = 'queued'
WHERE state = 'pending' AND (message_id, n) IN (
  SELECT message_id, n FROM pillarbox.deliveries WHERE state = 'pending' AND next_attempt_at <= now()
  ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED)

-- name: next_due
-- Seconds until the next deferred delivery is due, negative when it is overdue; null when there is none.
SELECT extract(epoch FROM min(next_attempt_at) - clock_timestamp())::float8
FROM pillarbox.deliveries WHERE state = 'queued' AND attempts > 0

-- name: register_worker
-- Begin a lease of $2 seconds under a new id.
INSERT INTO pillarbox.workers (name, lease_until) VALUES ($1, now() + $2 * interval '1 second') RETURNING id

-- name: heartbeat
-- Extend a worker's lease by $2 seconds from now; no row when its claims were taken away.
UPDATE pillarbox.workers SET lease_until = now() + $2 * interval '1 second'
WHERE id = $1 AND reaped_at IS NULL RETURNING id

-- name: retire_worker
-- End a lease that holds nothing any more.
UPDATE pillarbox.workers SET stopped_at = now(), reaped_at = coalesce(reaped_at, now()), lease_until = least(lease_until, now())
WHERE id = $1

-- name: forget_workers
-- Delete workers that ended long ago and hold nothing.
DELETE FROM pillarbox.workers w
WHERE reaped_at < now() - interval '7 days'
  AND NOT EXISTS (SELECT FROM pillarbox.deliveries d WHERE d.state = 'processing' AND d.worker = w.id)

-- name: reap
-- Take back up to $1 claims of workers whose lease ran out. Nobody saw how these attempts ended: they are recorded as
-- unknown, and go back to the queue or are held as their class says. After a restart of PostgreSQL workers get $2
-- seconds to report what they know before anything is taken.
WITH dead AS (
  UPDATE pillarbox.workers SET reaped_at = now()
  WHERE reaped_at IS NULL AND lease_until < now() AND pg_postmaster_start_time() < now() - $2 * interval '1 second'
  RETURNING id
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
      attempts = d.attempts + 1, next_attempt_at = now(), claim = NULL, worker = NULL, reason = 'lost',
      settled_at = CASE WHEN k.unknown = 'hold' THEN now() END
  FROM lost l
  LEFT JOIN LATERAL (SELECT class FROM pillarbox.messages WHERE id = l.message_id LIMIT 1) m ON true
  LEFT JOIN pillarbox.classes k ON k.name = m.class
  WHERE d.message_id = l.message_id AND d.n = l.n AND d.claim = l.claim
  RETURNING d.message_id, d.n, l.claim, l.worker, l.claimed_at
), recorded AS (
  INSERT INTO pillarbox.attempts (message_id, n, claim, worker, started_at, ended_at, verdict, reason)
  SELECT message_id, n, claim, worker, claimed_at, now(), 'unknown', 'lost' FROM taken
  ON CONFLICT DO NOTHING
), told AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
  SELECT message_id, n, 'unknown', jsonb_build_object('claim', claim, 'reason', 'lost', 'worker', worker) FROM taken
)
SELECT count(*) FROM taken

-- name: depth
-- Live deliveries by state, and the age of the oldest that is due.
SELECT 'pending' AS state, count(*) AS count, NULL::float8 AS oldest FROM pillarbox.deliveries WHERE state = 'pending'
UNION ALL
SELECT 'queued', count(*), extract(epoch FROM now() - min(next_attempt_at))::float8 FROM pillarbox.deliveries
WHERE state = 'queued' AND attempts = 0
UNION ALL
SELECT 'deferred', count(*), greatest(0, extract(epoch FROM now() - min(next_attempt_at)))::float8 FROM pillarbox.deliveries
WHERE state = 'queued' AND attempts > 0
UNION ALL
SELECT 'processing', count(*), extract(epoch FROM now() - min(claimed_at))::float8 FROM pillarbox.deliveries
WHERE state = 'processing'
UNION ALL
SELECT state::text, count(*), NULL FROM pillarbox.deliveries WHERE state IN ('failed', 'held') GROUP BY state

-- name: workers_alive
-- How many workers hold a lease.
SELECT count(*) FROM pillarbox.workers WHERE reaped_at IS NULL AND lease_until > now()

-- name: hint
-- Wake every worker that listens.
SELECT pg_notify('pillarbox_wake', '')
