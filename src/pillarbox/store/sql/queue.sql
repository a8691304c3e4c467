-- part: lane_states
-- How one worker sees the lanes of `found`: who dispatches each (this worker, another that is
-- alive, or nobody) and how long a rate limit of its tenant holds it back. A dead worker keeps a
-- lane until the mails which it claimed from it were taken back.
SELECT f.tenant_id, f.lane, l.order_mode, f.fresh,
  extract(epoch FROM f.due - now())::float8 AS due_in,
  (l.worker = :worker) IS TRUE AS is_own,
  CASE WHEN l.worker <> :worker THEN coalesce(
    (SELECT extract(epoch FROM w.lease_until - now())::float8 FROM alive w WHERE w.id = l.worker),
    CASE WHEN (l.tenant_id, l.lane, l.worker) IN (
      SELECT d.tenant_id, d.lane, d.worker FROM pillarbox.deliveries d WHERE d.state = 'processing')
    THEN 0 END) END AS other_lease_for,
  CASE WHEN l.limited THEN (
    SELECT greatest(pillarbox._wait(r.second_at, t.rate_per_second, 1, now()),
                    pillarbox._wait(r.hour_at, t.rate_per_hour, 3600, now()),
                    pillarbox._wait(r.day_at, t.rate_per_day, 86400, now()))
    FROM pillarbox.tenants t, pillarbox.rates r
    WHERE t.id = f.tenant_id AND r.kind = 't' AND r.id = f.tenant_id) END AS limited_for,
  l.limited,
  (SELECT count(*) FROM alive WHERE NOT aside OR id = :worker)::int AS workers
FROM found f
JOIN LATERAL (
  SELECT * FROM pillarbox.lanes WHERE tenant_id = f.tenant_id AND lane = f.lane LIMIT 1) l ON true
ORDER BY f.tenant_id, f.lane

-- name: survey
-- The lanes after (:tenant, :priority) with waiting mails: fresh ones, or deferred ones with the
-- seconds until the first is due; at most :limit lanes. Jumps from lane to lane in the indexes: the
-- work is bounded by the number of lanes with waiting mails, not by the number of mails.
WITH RECURSIVE alive AS MATERIALIZED (
  SELECT id, lease_until, aside FROM pillarbox.workers
  WHERE reaped_at IS NULL AND lease_until > now()
), fresh AS (
  (SELECT d.tenant_id, d.lane FROM pillarbox.deliveries d
   WHERE d.state = 'queued' AND d.attempts = 0
     AND (d.tenant_id, d.lane) > (:tenant::int4, :priority::int2)
   ORDER BY d.tenant_id, d.lane LIMIT 1)
  UNION ALL
  SELECT next.tenant_id, next.lane FROM fresh f CROSS JOIN LATERAL (
    SELECT d.tenant_id, d.lane FROM pillarbox.deliveries d
    WHERE d.state = 'queued' AND d.attempts = 0 AND (d.tenant_id, d.lane) > (f.tenant_id, f.lane)
    ORDER BY d.tenant_id, d.lane LIMIT 1) next
), deferred AS (
  (SELECT d.tenant_id, d.lane, d.next_attempt_at FROM pillarbox.deliveries d
   WHERE d.state = 'queued' AND d.attempts > 0
     AND (d.tenant_id, d.lane) > (:tenant::int4, :priority::int2)
   ORDER BY d.tenant_id, d.lane, d.next_attempt_at LIMIT 1)
  UNION ALL
  SELECT next.tenant_id, next.lane, next.next_attempt_at FROM deferred f CROSS JOIN LATERAL (
    SELECT d.tenant_id, d.lane, d.next_attempt_at FROM pillarbox.deliveries d
    WHERE d.state = 'queued' AND d.attempts > 0 AND (d.tenant_id, d.lane) > (f.tenant_id, f.lane)
    ORDER BY d.tenant_id, d.lane, d.next_attempt_at LIMIT 1) next
), found AS (
  SELECT tenant_id, lane, bool_or(fresh) AS fresh, min(due) AS due
  FROM (SELECT * FROM (
          SELECT tenant_id, lane, true AS fresh, NULL::timestamptz AS due
          FROM fresh LIMIT :limit) fresh_lanes
        UNION ALL
        SELECT * FROM (
          SELECT tenant_id, lane, false, next_attempt_at
          FROM deferred LIMIT :limit) deferred_lanes) lanes
  GROUP BY tenant_id, lane ORDER BY tenant_id, lane LIMIT :limit
)
-- use: lane_states

-- name: survey_lanes
-- The same for named lanes (:tenants, :priorities), of which a broker holds references; without
-- those in which nothing waits.
WITH alive AS MATERIALIZED (
  SELECT id, lease_until, aside FROM pillarbox.workers
  WHERE reaped_at IS NULL AND lease_until > now()
), found AS (
  SELECT g.tenant_id, g.lane, g.fresh, g.due
  FROM (SELECT n.tenant_id, n.lane,
          (SELECT true FROM pillarbox.deliveries d
           WHERE d.tenant_id = n.tenant_id AND d.lane = n.lane AND d.state = 'queued'
             AND d.attempts = 0
           LIMIT 1) IS TRUE AS fresh,
          (SELECT d.next_attempt_at FROM pillarbox.deliveries d
           WHERE d.tenant_id = n.tenant_id AND d.lane = n.lane AND d.state = 'queued'
             AND d.attempts > 0
           ORDER BY d.next_attempt_at LIMIT 1) AS due
        FROM unnest(:tenants::int4[], :priorities::int2[]) AS n(tenant_id, lane)) g
  WHERE g.fresh OR g.due IS NOT NULL
)
-- use: lane_states

-- name: take_lanes
-- Make the worker the dispatcher of those lanes (:tenants, :priorities) that have none. Claims of a
-- dead dispatcher must be taken back first: a worker that is late, not dead, may still begin with
-- them or give them back.
WITH alive AS MATERIALIZED (
  SELECT id FROM pillarbox.workers WHERE reaped_at IS NULL AND lease_until > now()
), free AS (
  SELECT l.tenant_id, l.lane
  FROM unnest(:tenants::int4[], :priorities::int2[]) AS g(tenant_id, lane)
  JOIN pillarbox.lanes l ON l.tenant_id = g.tenant_id AND l.lane = g.lane
  WHERE :worker IN (SELECT id FROM alive)
    AND (l.worker IS NULL OR l.worker NOT IN (SELECT id FROM alive)
    AND (l.tenant_id, l.lane, l.worker) NOT IN (
      SELECT d.tenant_id, d.lane, d.worker FROM pillarbox.deliveries d
      WHERE d.state = 'processing' AND d.worker IS NOT NULL))
  ORDER BY l.tenant_id, l.lane FOR UPDATE OF l SKIP LOCKED
)
UPDATE pillarbox.lanes l SET worker = :worker FROM free
WHERE l.tenant_id = free.tenant_id AND l.lane = free.lane
RETURNING l.tenant_id, l.lane

-- name: give_lanes
-- Let other workers dispatch lanes (:tenants, :priorities) of this worker, and notify them.
WITH given AS (
  UPDATE pillarbox.lanes l SET worker = NULL
  FROM unnest(:tenants::int4[], :priorities::int2[]) AS g(tenant_id, lane)
  WHERE l.tenant_id = g.tenant_id AND l.lane = g.lane AND l.worker = :worker RETURNING l.lane
)
SELECT pg_notify('pillarbox_wake', '') WHERE EXISTS (SELECT FROM given)

-- name: step_aside
-- Let other workers dispatch lanes (:tenants, :priorities) of this worker, which has no room and
-- takes no lanes for now. No row, and no effect, if there are no other workers.
WITH others AS (
  SELECT FROM pillarbox.workers
  WHERE id <> :worker AND reaped_at IS NULL AND lease_until > now() LIMIT 1
), given AS (
  UPDATE pillarbox.lanes l SET worker = NULL
  FROM unnest(:tenants::int4[], :priorities::int2[]) AS g(tenant_id, lane)
  WHERE l.tenant_id = g.tenant_id AND l.lane = g.lane AND l.worker = :worker
    AND EXISTS (SELECT FROM others)
), marked AS (
  UPDATE pillarbox.workers SET aside = true
  WHERE id = :worker AND NOT aside AND EXISTS (SELECT FROM others)
)
SELECT pg_notify('pillarbox_wake', '') FROM others

-- name: come_back
-- Count the worker again among those that take lanes.
UPDATE pillarbox.workers SET aside = false WHERE id = :worker

-- part: open_lanes
-- The quotas of lanes from which the worker may claim: its lease is alive, it dispatches the lane
-- (or the lane is `parallel`), and no mail of a strict lane is in flight. `blocking_seq` is the one
-- message that a strict lane may give: one that was given back, or is due again, comes before all
-- others. `yields` is 1 when a lane lets lower ones go first: while a rate limit cuts a tenant
-- short, its lower lanes must not starve.
SELECT q.*, l.order_mode, l.limited,
  (l.limited AND random() < (ARRAY[0.25, 0.2, 0])[q.lane + 1])::int AS yields,
  CASE WHEN l.order_mode = 'strict' THEN (
    SELECT d.seq FROM pillarbox.deliveries d
    WHERE d.message_id = l.message_id AND d.state::text = 'queued' LIMIT 1) END AS blocking_seq
FROM quotas q
JOIN LATERAL (
  SELECT * FROM pillarbox.lanes WHERE tenant_id = q.tenant_id AND lane = q.lane LIMIT 1) l ON true
WHERE q.max_messages BETWEEN 1 AND 1000000
  AND EXISTS (
    SELECT FROM pillarbox.workers WHERE id = :worker AND reaped_at IS NULL AND lease_until > now())
  AND (l.worker = :worker OR l.order_mode = 'parallel')
  AND (l.order_mode <> 'strict' OR (
    SELECT true FROM pillarbox.deliveries d
    WHERE d.message_id = l.message_id AND d.state::text = 'processing' LIMIT 1) IS NULL)

-- part: tenant_allowances
-- How many mails the rate limits of tenants allow now. Rows are locked in one order, so that two
-- workers cannot wait for each other.
SELECT r.id, least(pillarbox._allowance(r.second_at, t.rate_per_second, 1, now()),
                   pillarbox._allowance(r.hour_at, t.rate_per_hour, 3600, now()),
                   pillarbox._allowance(r.day_at, t.rate_per_day, 86400, now())) AS max_messages
FROM pillarbox.rates r JOIN pillarbox.tenants t ON t.id = r.id
WHERE r.kind = 't' AND r.id = ANY (ARRAY(SELECT tenant_id FROM open_lanes WHERE limited))
ORDER BY r.id FOR UPDATE OF r

-- part: is_head
-- A message is claimed by its first due delivery, its head: the statement that locks the head gets
-- the rest.
(d.n = 0 OR NOT EXISTS (
  SELECT FROM pillarbox.deliveries h
  WHERE h.message_id = d.message_id AND h.n < d.n AND h.state = 'queued'
    AND h.next_attempt_at <= now()))

-- part: due_retries
-- Heads of deferred messages of lane `q` that are due, the longest due first.
SELECT * FROM (
  SELECT d.message_id, d.size, d.tenant_id, d.next_attempt_at
  FROM pillarbox.deliveries d
  WHERE d.tenant_id = q.tenant_id AND d.lane = q.lane AND d.state = 'queued' AND d.attempts > 0
    AND d.next_attempt_at <= now()
    AND CASE WHEN q.blocking_seq IS NULL THEN true ELSE d.seq = q.blocking_seq END
    AND
    -- use: is_head
  ORDER BY d.next_attempt_at LIMIT q.max_deferred FOR UPDATE SKIP LOCKED) locked LIMIT 500

-- part: due_fresh
-- Heads of fresh messages of lane `q`, in the order of acceptance: as many as its retries leave
-- room for, and not beyond the newest message to which a broker referred, if one did.
SELECT * FROM (
  SELECT d.message_id, d.size, d.tenant_id, d.seq
  FROM pillarbox.deliveries d
  WHERE d.tenant_id = q.tenant_id AND d.lane = q.lane AND d.state = 'queued' AND d.attempts = 0
    AND d.seq >= coalesce(q.blocking_seq, 0)
    AND d.seq <= coalesce(q.blocking_seq, q.newest_seq, 9223372036854775807)
    AND
    -- use: is_head
  ORDER BY d.seq, d.n
  LIMIT q.max_messages - (SELECT count(*) FROM retries r WHERE r.position = q.position)
  FOR UPDATE SKIP LOCKED) locked LIMIT 500

-- part: referenced_retries
-- As due_retries, of the messages to which a broker referred; a strict lane gives the one that
-- blocks it, referenced or not.
SELECT * FROM (
  SELECT d.message_id, d.size, d.tenant_id, d.next_attempt_at
  FROM pillarbox.deliveries d
  WHERE d.message_id = ANY (ARRAY(
      SELECT r.message_id FROM referenced r WHERE r.position = q.position
      UNION ALL
      SELECT l.message_id FROM pillarbox.lanes l
      WHERE q.blocking_seq IS NOT NULL AND l.tenant_id = q.tenant_id AND l.lane = q.lane))
    AND d.tenant_id = q.tenant_id AND d.lane = q.lane AND d.state::text = 'queued'
    AND d.attempts > 0
    AND d.next_attempt_at <= now()
    AND CASE WHEN q.blocking_seq IS NULL THEN true ELSE d.seq = q.blocking_seq END
    AND
    -- use: is_head
  ORDER BY d.next_attempt_at LIMIT q.max_deferred FOR UPDATE SKIP LOCKED) locked LIMIT 500

-- part: referenced_fresh
-- As due_fresh, of the messages to which a broker referred: for lanes whose order does not matter.
SELECT * FROM (
  SELECT d.message_id, d.size, d.tenant_id, d.seq
  FROM pillarbox.deliveries d
  WHERE d.message_id = ANY (ARRAY(
      SELECT r.message_id FROM referenced r WHERE r.position = q.position))
    AND d.tenant_id = q.tenant_id AND d.lane = q.lane AND d.state::text = 'queued'
    AND d.attempts = 0
    AND
    -- use: is_head
  ORDER BY d.seq, d.n
  LIMIT q.max_messages - (SELECT count(*) FROM retries r WHERE r.position = q.position)
  FOR UPDATE SKIP LOCKED) locked LIMIT 500

-- part: claim_heads
-- Claim the messages of `fresh` and `retries`, in turns of the lanes: within the allowance of each
-- tenant, at most :max_messages and :max_bytes together; with :allow_oversized the first may be
-- larger. Uses up the allowances, notes which message blocks a strict lane, and returns the
-- messages with their contents. Recipients on the tenant's suppression list are named.
heads AS (
  SELECT message_id, size, tenant_id, turn, position, false AS is_retry FROM fresh
  UNION ALL SELECT message_id, size, tenant_id, turn, position, true FROM retries
), allowed_heads AS (
  SELECT * FROM heads WHERE NOT EXISTS (SELECT FROM allowances)
  UNION ALL
  SELECT h.message_id, h.size, h.tenant_id, h.turn, h.position, h.is_retry
  FROM (SELECT *,
          row_number() OVER (PARTITION BY tenant_id ORDER BY turn, position, is_retry) AS of_tenant
        FROM heads WHERE EXISTS (SELECT FROM allowances)) h
  LEFT JOIN allowances a ON a.id = h.tenant_id
  WHERE a.max_messages IS NULL OR h.of_tenant <= a.max_messages
), chosen AS MATERIALIZED (
  SELECT message_id, tenant_id
  FROM (SELECT message_id, tenant_id, row_number() OVER turns AS number,
          sum(size) OVER turns AS bytes
        FROM allowed_heads
        WINDOW turns AS (ORDER BY turn, position, is_retry ROWS UNBOUNDED PRECEDING)) counted
  WHERE number <= :max_messages::int4
    AND (bytes <= :max_bytes::bigint OR (number = 1 AND :allow_oversized::bool))
), spent AS (
  UPDATE pillarbox.rates r
  SET second_at = pillarbox._used(r.second_at, u.rate_per_second, 1, now(), u.count),
      hour_at = pillarbox._used(r.hour_at, u.rate_per_hour, 3600, now(), u.count),
      day_at = pillarbox._used(r.day_at, u.rate_per_day, 86400, now(), u.count)
  FROM (SELECT t.id, t.rate_per_second, t.rate_per_hour, t.rate_per_day, c.count
        FROM (SELECT tenant_id, count(*) FROM chosen
              WHERE EXISTS (SELECT FROM allowances) GROUP BY tenant_id) c
        JOIN pillarbox.tenants t ON t.id = c.tenant_id) u
  WHERE r.kind = 't' AND r.id = u.id AND r.id IN (SELECT id FROM allowances)
), blocked AS (
  UPDATE pillarbox.lanes l SET message_id = c.message_id
  FROM open_lanes o
  JOIN heads h ON h.position = o.position
  JOIN chosen c ON c.message_id = h.message_id
  WHERE o.order_mode = 'strict' AND l.tenant_id = o.tenant_id AND l.lane = o.lane
), fence AS MATERIALIZED (
  SELECT nextval('pillarbox.claim_seq') AS claim
), claimed AS (
  UPDATE pillarbox.deliveries d
  SET state = 'processing', claim = (SELECT claim FROM fence), worker = :worker, claimed_at = now()
  WHERE d.message_id = ANY (ARRAY(SELECT message_id FROM chosen)) AND d.state::text = 'queued'
    AND d.next_attempt_at <= now()
  RETURNING d.message_id, d.n, d.recipient, d.attempts, d.claim, d.seq, d.via, (
    SELECT coalesce(s.expires_at > now(), true) FROM pillarbox.suppressions s
    WHERE s.tenant_id = d.tenant_id AND s.address = lower(d.recipient) LIMIT 1) AS suppressed
)
SELECT g.message_id, g.claim, g.recipient_numbers, g.recipients, g.attempts, g.via, g.suppressed,
  m.tenant_id, m.lane, m.size, m.class, m.kind, m.tags, m.sender, m."to", m.cc, m.reply_to,
    m.subject,
  m.headers, m.created_at, m.max_attempts, m.expires_at <= now() AS expired, m.expires_at,
  extract(epoch FROM now() - m.created_at)::float8 AS age,
  c.message_id IS NOT NULL AS has_content, c.text, c.html, c.raw, c.attachments
FROM (SELECT message_id, claim, array_agg(n ORDER BY n) AS recipient_numbers,
        array_agg(recipient ORDER BY n) AS recipients, array_agg(attempts ORDER BY n) AS attempts,
        array_agg(via ORDER BY n) AS via,
        array_agg(n ORDER BY n) FILTER (WHERE suppressed) AS suppressed,
        min(seq) AS seq FROM claimed GROUP BY message_id, claim) g
JOIN LATERAL (SELECT * FROM pillarbox.messages WHERE id = g.message_id LIMIT 1) m ON true
LEFT JOIN LATERAL (
  SELECT * FROM pillarbox.contents WHERE message_id = g.message_id LIMIT 1) c ON true
ORDER BY g.seq

-- name: claim
-- Claim due messages whole: at most :lane_limits messages of each lane (:tenants, :priorities), of
-- which :deferred_limits may be deferred ones.
-- `= ANY (ARRAY(…))` keeps the planner on the indexes whatever the statistics say, and
-- `state::text` away from the partial ones, which it would read whole where it believes that they
-- are empty; `(SELECT true … LIMIT 1)`, unlike EXISTS, is never answered by scanning the table.
-- The estimated cost must not follow the backlog (ADR 0018): above `jit_above_cost` PostgreSQL
-- compiles the statement, for seconds. So estimates are bounded, in three ways that change no
-- result:
-- * The planner expects a LIMIT that is no constant to return a tenth of all rows. The constant one
--   around it, LARGEST_CLAIM in queue/ledger.py, bounds that. It locks nothing more: rows are
--   locked as they are returned.
-- * It expects one lane in 200 to meet `max_messages BETWEEN 1 AND 1000000`, which every quota
--   does.
-- * It expects one row in 200 to meet `blocking_seq IS NULL OR …`, and so to read 200 rows for
--   each; of a CASE it expects half. Of fresh mails, blocking_seq bounds the part of the index that
--   is read: while that message is deferred, nothing is read of those that wait behind it.
WITH quotas AS (
  SELECT *, NULL::bigint AS newest_seq
  FROM unnest(:tenants::int4[], :priorities::int2[], :lane_limits::int4[], :deferred_limits::int4[])
    WITH ORDINALITY AS q(tenant_id, lane, max_messages, max_deferred, position)
), open_lanes AS MATERIALIZED (
  -- use: open_lanes
), allowances AS MATERIALIZED (
  -- use: tenant_allowances
), retries AS MATERIALIZED (
  SELECT q.position, r.*,
    q.yields + row_number() OVER (PARTITION BY q.position ORDER BY r.next_attempt_at) AS turn
  FROM open_lanes q CROSS JOIN LATERAL (
    -- use: due_retries
  ) r
), fresh AS MATERIALIZED (
  SELECT q.position, f.*,
    q.yields + row_number() OVER (PARTITION BY q.position ORDER BY f.seq) AS turn
  FROM open_lanes q CROSS JOIN LATERAL (
    -- use: due_fresh
  ) f
),
-- use: claim_heads

-- name: claim_referenced
-- As `claim`, with references of a broker as a hint: :newest_seqs is the newest referenced message
-- of each lane, null for a lane that is claimed from directly. A lane whose order matters gives its
-- oldest due messages up to that one, referenced or not; a `parallel` lane gives the referenced
-- ones (:referenced_messages, each with the position of its lane among the quotas, counted from 1),
-- and so does every lane of its retries.
WITH quotas AS (
  SELECT * FROM unnest(:tenants::int4[], :priorities::int2[], :lane_limits::int4[],
                       :deferred_limits::int4[], :newest_seqs::int8[])
    WITH ORDINALITY AS q(tenant_id, lane, max_messages, max_deferred, newest_seq, position)
), referenced AS MATERIALIZED (
  SELECT * FROM unnest(:referenced_positions::int8[], :referenced_messages::uuid[])
    AS r(position, message_id)
), open_lanes AS MATERIALIZED (
  -- use: open_lanes
), allowances AS MATERIALIZED (
  -- use: tenant_allowances
), retries AS MATERIALIZED (
  SELECT q.position, r.*,
    q.yields + row_number() OVER (PARTITION BY q.position ORDER BY r.next_attempt_at) AS turn
  FROM open_lanes q CROSS JOIN LATERAL (
    -- use: due_retries
  ) r WHERE q.newest_seq IS NULL
  UNION ALL
  SELECT q.position, r.*,
    q.yields + row_number() OVER (PARTITION BY q.position ORDER BY r.next_attempt_at) AS turn
  FROM open_lanes q CROSS JOIN LATERAL (
    -- use: referenced_retries
  ) r WHERE q.newest_seq IS NOT NULL
), fresh AS MATERIALIZED (
  SELECT q.position, f.*,
    q.yields + row_number() OVER (PARTITION BY q.position ORDER BY f.seq) AS turn
  FROM open_lanes q CROSS JOIN LATERAL (
    -- use: due_fresh
  ) f WHERE q.newest_seq IS NULL OR q.order_mode <> 'parallel'
  UNION ALL
  SELECT q.position, f.*,
    q.yields + row_number() OVER (PARTITION BY q.position ORDER BY f.seq) AS turn
  FROM open_lanes q CROSS JOIN LATERAL (
    -- use: referenced_fresh
  ) f WHERE q.newest_seq IS NOT NULL AND q.order_mode = 'parallel'
),
-- use: claim_heads

-- name: unclaimable
-- Of these messages, the ones with nothing queued and due: references to them can be deleted.
SELECT m.id FROM unnest(:message_ids::uuid[]) AS m(id)
WHERE (SELECT true FROM pillarbox.deliveries d
       WHERE d.message_id = m.id AND d.state::text = 'queued'
         AND d.next_attempt_at <= now() LIMIT 1) IS NULL

-- name: settle
-- Write the outcomes of attempts whose claims are still held, and record the attempts: one array
-- element per delivery. Returns what was settled; a delivery that is missing was lost to the
-- reaper, or settled before. Only a delivery in `processing` has a claim. Everything else that
-- belongs to these outcomes is written by the same statement, so that all of it is written or
-- nothing: transcripts and events of what was settled; the contents of messages of secret classes
-- are dropped when none of their deliveries is left to send. Webhooks are queued; without any, that
-- is one look into an empty index. A mail that failed over has earlier attempts in the same claim;
-- `step` numbers the last one.
WITH settled AS (
  UPDATE pillarbox.deliveries d
  SET state = r.state::pillarbox.state, reason = r.reason, retry = coalesce(r.retry, d.retry),
      attempts = d.attempts + 1, provider_id = coalesce(r.provider_id, d.provider_id),
      next_attempt_at = CASE WHEN r.delay IS NULL THEN d.next_attempt_at
                             ELSE least(now() + r.delay * interval '1 second', r.expires_at) END,
      settled_at = CASE WHEN r.delay IS NULL THEN clock_timestamp() END,
      claim = NULL, worker = NULL, waiting_since = NULL
  FROM unnest(:message_ids::uuid[], :recipient_numbers::int2[], :claims::int8[], :states::text[],
              :reasons::text[], :retries::text[], :delays::float8[], :provider_ids::int4[],
              :verdicts::text[], :codes::int2[], :replies::text[], :provider_message_ids::text[],
              :ended_ago::float8[], :took::float8[], :expires_at::timestamptz[], :steps::int2[])
    AS r(message_id, n, claim, state, reason, retry, delay, provider_id, verdict, code, reply,
         provider_message_id, ended_ago, took, expires_at, step)
  WHERE d.message_id = r.message_id AND d.n = r.n AND d.claim = r.claim
  RETURNING d.message_id, d.n, r.claim, r.step, r.provider_id, r.verdict, r.reason, r.code, r.reply,
    r.provider_message_id, now() - r.ended_ago * interval '1 second' AS ended_at,
    r.took * interval '1 second' AS took, d.tenant_id, r.state, d.attempts,
    CASE WHEN r.delay IS NOT NULL THEN d.next_attempt_at END AS next_attempt_at
), recorded AS (
  INSERT INTO pillarbox.attempts (message_id, n, claim, step, worker, provider_id, started_at,
                                  ended_at, verdict, reason, code, reply, provider_message_id)
  SELECT message_id, n, claim, step, :worker::bigint, provider_id, ended_at - took, ended_at,
    verdict, reason, code, reply, provider_message_id
  FROM settled
  UNION ALL
  SELECT t.message_id, t.n, t.claim, t.step, :worker::bigint, t.provider_id,
    now() - (t.ended_ago + t.took) * interval '1 second', now() - t.ended_ago * interval '1 second',
    t.verdict, t.reason, t.code, t.reply, t.provider_message_id
  FROM unnest(:earlier_message_ids::uuid[], :earlier_recipient_numbers::int2[],
              :earlier_claims::int8[], :earlier_steps::int2[], :earlier_provider_ids::int4[],
              :earlier_verdicts::text[], :earlier_reasons::text[], :earlier_codes::int2[],
              :earlier_replies::text[],
              :earlier_provider_message_ids::text[], :earlier_ended_ago::float8[],
              :earlier_took::float8[])
    AS t(message_id, n, claim, step, provider_id, verdict, reason, code, reply,
         provider_message_id, ended_ago, took)
  WHERE (t.message_id, t.n, t.claim) IN (SELECT message_id, n, claim FROM settled)
), transcribed AS (
  INSERT INTO pillarbox.conversations (message_id, claim, lines)
  SELECT c.message_id, c.claim, c.lines
  FROM unnest(:transcript_message_ids::uuid[], :transcript_claims::int8[], :transcripts::text[])
    AS c(message_id, claim, lines)
  WHERE (c.message_id, c.claim) IN (SELECT message_id, claim FROM settled)
  ON CONFLICT DO NOTHING
), logged AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
  SELECT e.message_id, NULL::int2, e.kind, e.data
  FROM unnest(:event_message_ids::uuid[], :event_claims::int8[], :event_kinds::text[],
              :event_data::jsonb[])
    AS e(message_id, claim, kind, data)
  WHERE (e.message_id, e.claim) IN (SELECT message_id, claim FROM settled)
  UNION ALL
  SELECT message_id, n, 'unknown', jsonb_build_object('claim', claim, 'reason', reason)
  FROM settled WHERE verdict = 'unknown'
), notified AS (
  SELECT pillarbox._tell_customers(
    array_agg(s.message_id), array_agg(s.n),
    array_agg(CASE s.state WHEN 'queued' THEN 'message.deferred' ELSE 'message.' || s.state END),
    array_agg(s.ended_at),
    array_agg(jsonb_build_object('state', s.state, 'reason', s.reason, 'attempt', s.attempts,
                                 'code', s.code, 'next_attempt_at', s.next_attempt_at)))
  FROM settled s
  WHERE EXISTS (SELECT FROM pillarbox.webhook_endpoints WHERE enabled)
    AND EXISTS (
      SELECT FROM pillarbox.webhook_endpoints e WHERE e.enabled AND e.tenant_id = s.tenant_id)
  HAVING count(*) > 0
), dropped AS (
  SELECT pillarbox._drop_secret_contents(
    ARRAY(SELECT DISTINCT message_id FROM settled
          WHERE message_id = ANY (:secret_message_ids::uuid[])))
  WHERE cardinality(:secret_message_ids::uuid[]) > 0
)
SELECT message_id, n, claim FROM settled
-- So that both are executed.
WHERE (SELECT count(*) FROM notified) >= 0 AND (SELECT count(*) FROM dropped) >= 0

-- name: settled_before
-- Of these deliveries, the ones whose outcome is recorded already: by an earlier call whose answer
-- was lost. The reaper's records name no provider.
SELECT r.message_id, r.n, r.claim
FROM unnest(:message_ids::uuid[], :recipient_numbers::int2[], :claims::int8[], :verdicts::text[],
            :reasons::text[], :provider_ids::int4[])
  AS r(message_id, n, claim, verdict, reason, provider_id)
WHERE EXISTS (
  SELECT FROM pillarbox.attempts a
  WHERE a.message_id = r.message_id AND a.n = r.n AND a.claim = r.claim AND a.verdict = r.verdict
    AND a.reason IS NOT DISTINCT FROM r.reason AND a.provider_id IS NOT DISTINCT FROM r.provider_id)

-- name: release
-- Give claims back untouched: nothing of them was sent. Fenced like settling.
UPDATE pillarbox.deliveries d
SET state = 'queued', claim = NULL, worker = NULL
FROM unnest(:message_ids::uuid[], :claims::int8[]) AS r(message_id, claim)
WHERE d.message_id = r.message_id AND d.claim = r.claim

-- name: postpone
-- Let claimed messages of which nothing was sent wait for :seconds each, because of :reasons; not
-- beyond their expiry. Fenced. With 0 seconds they stay the next of their lane. Messages that found
-- no provider are marked with the time at which that began.
UPDATE pillarbox.deliveries d
SET state = CASE WHEN r.wait > 0 THEN 'pending' ELSE 'queued' END::pillarbox.state,
    reason = r.reason, claim = NULL, worker = NULL,
    waiting_since = CASE WHEN r.reason = 'no_provider' THEN coalesce(d.waiting_since, now()) END,
    next_attempt_at = CASE WHEN r.wait > 0 THEN least(
      now() + r.wait * interval '1 second',
      (SELECT m.expires_at FROM pillarbox.messages m WHERE m.id = d.message_id)
    ) ELSE d.next_attempt_at END
FROM unnest(:message_ids::uuid[], :claims::int8[], :seconds::float8[], :reasons::text[])
  AS r(message_id, claim, wait, reason)
WHERE d.message_id = r.message_id AND d.claim = r.claim

-- name: release_strays
-- Give back what the worker claimed but never learned of, because the answer was lost: everything
-- but :known_claims.
UPDATE pillarbox.deliveries
SET state = 'queued', claim = NULL, worker = NULL
WHERE state = 'processing' AND worker = :worker AND claim <> ALL (:known_claims::int8[])

-- name: promote
-- Queue scheduled deliveries whose time has come, at most :limit, and 1000 (see `claim` on constant
-- limits).
UPDATE pillarbox.deliveries d SET state = 'queued'
FROM (SELECT * FROM (
  SELECT message_id, n FROM pillarbox.deliveries
  WHERE state = 'pending' AND next_attempt_at <= now()
  ORDER BY next_attempt_at LIMIT :limit FOR UPDATE SKIP LOCKED) locked LIMIT 1000) due
WHERE d.message_id = due.message_id AND d.n = due.n AND d.state::text = 'pending'

-- name: register_worker
-- Begin a lease of :lease seconds under a new worker id.
INSERT INTO pillarbox.workers (name, lease_until, lease)
VALUES (:name, now() + :lease * interval '1 second', :lease) RETURNING id

-- name: heartbeat
-- Extend a worker's lease to :lease seconds from now, even if it has run out; no row when its
-- claims were taken away.
UPDATE pillarbox.workers SET lease_until = now() + :lease * interval '1 second', lease = :lease
WHERE id = :worker AND reaped_at IS NULL RETURNING id

-- name: retire_worker
-- End a lease that holds nothing any more, and notify other workers that its lanes are free.
WITH ended AS (
  UPDATE pillarbox.workers
  SET stopped_at = now(), reaped_at = coalesce(reaped_at, now()),
      lease_until = least(lease_until, now())
  WHERE id = :worker RETURNING id
)
SELECT pg_notify('pillarbox_wake', '') FROM ended

-- name: forget_workers
-- Delete workers that ended long ago and hold nothing.
DELETE FROM pillarbox.workers w
WHERE reaped_at < now() - interval '7 days'
  AND NOT EXISTS (
    SELECT FROM pillarbox.deliveries d WHERE d.state = 'processing' AND d.worker = w.id)

-- name: reap
-- Take back up to :limit claims of workers whose lease ran out. How these attempts ended is
-- unknown: they are recorded as such, and go back to the queue or are held, by the policy of their
-- class. A worker is dead when it did not renew its lease although the database was available for
-- as long as the lease (its own, or :lease if that is longer): after an outage of the database,
-- workers can first report what they know.
WITH available AS MATERIALIZED (
  SELECT pillarbox._available_for(:lease) AS seconds
), dead AS (
  UPDATE pillarbox.workers w SET reaped_at = now()
  WHERE w.reaped_at IS NULL AND w.lease_until < now()
    AND (SELECT seconds FROM available) >= greatest(w.lease, :lease)
  RETURNING w.id
), lost AS MATERIALIZED (
  SELECT d.message_id, d.n, d.claim, d.worker, d.claimed_at
  FROM pillarbox.deliveries d
  WHERE d.state = 'processing'
    AND (d.worker = ANY (ARRAY(SELECT id FROM dead))
         OR NOT EXISTS (
           SELECT FROM pillarbox.workers w WHERE w.id = d.worker AND w.reaped_at IS NULL))
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
), taken AS (
  UPDATE pillarbox.deliveries d
  SET state = CASE WHEN coalesce(k.unknown, 'resend') = 'hold' THEN 'held'
                   ELSE 'queued' END::pillarbox.state,
      attempts = d.attempts + 1, claim = NULL, worker = NULL, reason = 'lost', waiting_since = NULL,
      next_attempt_at = now() + CASE WHEN k.unknown = 'wait' THEN interval '15 minutes'
                                     ELSE interval '0' END,
      settled_at = CASE WHEN k.unknown = 'hold' THEN now() END
  FROM lost l
  LEFT JOIN LATERAL (SELECT class FROM pillarbox.messages WHERE id = l.message_id LIMIT 1) m ON true
  LEFT JOIN pillarbox.classes k ON k.name = m.class
  WHERE d.message_id = l.message_id AND d.n = l.n AND d.claim = l.claim
  RETURNING d.message_id, d.n, l.claim, l.worker, l.claimed_at, d.tenant_id, d.state, d.attempts
), recorded AS (
  INSERT INTO pillarbox.attempts (message_id, n, claim, worker, started_at, ended_at, verdict,
                                  reason)
  SELECT message_id, n, claim, worker, claimed_at, now(), 'unknown', 'lost' FROM taken
  ON CONFLICT DO NOTHING
), logged AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
  SELECT message_id, n, 'unknown',
    jsonb_build_object('claim', claim, 'reason', 'lost', 'worker', worker)
  FROM taken
), notified AS (
  SELECT pillarbox._tell_customers(
    array_agg(t.message_id), array_agg(t.n),
    array_agg(CASE t.state WHEN 'held' THEN 'message.held' ELSE 'message.deferred' END),
    array_agg(now()),
    array_agg(jsonb_build_object('state', t.state, 'reason', 'lost', 'attempt', t.attempts)))
  FROM taken t
  WHERE EXISTS (
    SELECT FROM pillarbox.webhook_endpoints e WHERE e.enabled AND e.tenant_id = t.tenant_id)
  HAVING count(*) > 0
)
SELECT count(*) FROM taken WHERE (SELECT count(*) FROM notified) >= 0  -- so that it is executed

-- name: touch
-- Note that the database is available to a process whose workers have leases of :lease seconds.
SELECT pillarbox._available_for(:lease)

-- name: reap_wait
-- Seconds until every worker whose lease ran out may be reaped, if the database stays available;
-- null when there is no such worker.
SELECT max(greatest(w.lease, :lease)) - pillarbox._available_for(:lease) AS seconds
FROM pillarbox.workers w
WHERE w.reaped_at IS NULL AND w.lease_until < now()

-- name: depth
-- Live deliveries by state, and the age of the oldest that is due.
SELECT state, count, oldest FROM pillarbox._depth()

-- name: longest_backlogs
-- The :limit tenants with the most deliveries waiting (then those that came first), and how many
-- wait in all the others.
SELECT id, name, count, others FROM pillarbox._longest(:limit)

-- name: workers_alive
-- How many workers hold a lease.
SELECT count(*) FROM pillarbox.workers WHERE reaped_at IS NULL AND lease_until > now()

-- name: wake_workers
-- Wake every worker that listens.
SELECT pg_notify('pillarbox_wake', '')
