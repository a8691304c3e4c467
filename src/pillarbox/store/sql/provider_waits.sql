-- name: report
-- Report that a worker runs, and that it finds a provider for some mails (:usable is true), for no
-- mail (false), or does not know yet (null). A silence of all workers that is longer than
-- :longest_silence seconds is recorded: it does not count as waiting.
WITH before AS (
  SELECT worked_until FROM pillarbox.installation FOR UPDATE
), reported AS (
  UPDATE pillarbox.installation i
  SET worked_until = now(),
    no_provider_since = CASE
      WHEN :usable::bool THEN NULL
      WHEN NOT :usable THEN coalesce(i.no_provider_since, now())
      ELSE i.no_provider_since END
  FROM before
  RETURNING before.worked_until
), forgotten AS (
  DELETE FROM pillarbox.worker_gaps WHERE ended < now() - interval '400 days'
)
INSERT INTO pillarbox.worker_gaps (began, ended)
SELECT worked_until, now() FROM reported
WHERE worked_until < now() - :longest_silence::float8 * interval '1 second'

-- name: outage
-- Whether workers run and no worker finds a provider for any mail.
SELECT no_provider_since IS NOT NULL FROM pillarbox.installation

-- name: outage_since
-- Since when running workers find no provider for any mail. Null: a worker finds one, or no worker
-- runs (no worker has reported for :longest_silence seconds).
SELECT no_provider_since FROM pillarbox.installation
WHERE worked_until > now() - :longest_silence::float8 * interval '1 second'

-- name: marked
-- The next deliveries that wait for a provider of their own route, after the given one; only
-- deliveries that may have waited long enough.
SELECT waiting_since, message_id, n FROM pillarbox.deliveries
WHERE (waiting_since, message_id, n) > (:waiting_since::timestamptz, :message_id::uuid, :n::int2)
  AND waiting_since <= now() - (SELECT min(max_wait) FROM pillarbox.classes)
ORDER BY waiting_since, message_id, n
LIMIT :limit

-- name: fresh
-- The next deliveries that were not tried yet, after the given one, in the order of the index. The
-- index has no message_id: the first row comparison, without it, bounds the scan.
SELECT tenant_id, lane, seq, message_id, n FROM pillarbox.deliveries
WHERE state = 'queued' AND attempts = 0
  AND (tenant_id, lane, seq) >= (:tenant_id::int4, :lane::int2, :seq::int8)
  AND (tenant_id, lane, seq, message_id, n)
    > (:tenant_id, :lane, :seq, :message_id::uuid, :n::int2)
ORDER BY tenant_id, lane, seq, message_id, n
LIMIT :limit

-- name: deferred
-- The next deliveries that were tried before, after the given one, in the order of the index.
SELECT tenant_id, lane, next_attempt_at, message_id, n FROM pillarbox.deliveries
WHERE state = 'queued' AND attempts > 0
  AND (tenant_id, lane, next_attempt_at)
    >= (:tenant_id::int4, :lane::int2, :next_attempt_at::timestamptz)
  AND (tenant_id, lane, next_attempt_at, message_id, n)
    > (:tenant_id, :lane, :next_attempt_at, :message_id::uuid, :n::int2)
ORDER BY tenant_id, lane, next_attempt_at, message_id, n
LIMIT :limit

-- name: give_up
-- End the given deliveries that have waited for a provider as long as their class allows: since
-- their own mark, or since they were due in the present outage of all providers. Only time in which
-- workers ran counts. For a message with an `expires_at` only that time decides. As when an attempt
-- ends a delivery, customers' webhooks are called and contents of secret classes are dropped.
WITH overdue AS MATERIALIZED (
  SELECT d.message_id, d.n, w.waited,
    CASE WHEN m.expires_at IS NULL THEN 'no_provider' ELSE 'expired' END AS reason
  FROM unnest(:message_ids::uuid[], :recipient_numbers::int2[]) AS r(message_id, n)
  JOIN pillarbox.deliveries d ON d.message_id = r.message_id AND d.n = r.n
  CROSS JOIN pillarbox.installation i
  JOIN LATERAL (
    SELECT class, expires_at FROM pillarbox.messages WHERE id = r.message_id LIMIT 1) m ON true
  LEFT JOIN pillarbox.classes k ON k.name = m.class
  CROSS JOIN LATERAL (
    SELECT pillarbox._worked_since(least(
      d.waiting_since,
      CASE WHEN i.no_provider_since IS NOT NULL
           THEN greatest(i.no_provider_since, d.next_attempt_at) END)) AS waited) w
  WHERE d.state::text IN ('pending', 'queued')
    AND w.waited > interval '0'
    AND (m.expires_at <= now() OR m.expires_at IS NULL AND w.waited >= k.max_wait)
  ORDER BY d.message_id, d.n
  FOR UPDATE OF d SKIP LOCKED
), ended AS (
  UPDATE pillarbox.deliveries d
  SET state = 'failed', reason = o.reason, settled_at = now(), waiting_since = NULL
  FROM overdue o
  WHERE d.message_id = o.message_id AND d.n = o.n
  RETURNING d.message_id, d.n, d.tenant_id, d.attempts, d.reason, o.waited
), event AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
  SELECT message_id, n, 'gave_up',
    jsonb_build_object(
      'reason', reason, 'waited_seconds', round(extract(epoch FROM waited)::numeric, 3))
  FROM ended
), customers AS (
  SELECT pillarbox._tell_customers(
    array_agg(e.message_id), array_agg(e.n), array_agg('message.failed'::text), array_agg(now()),
    array_agg(jsonb_build_object('state', 'failed', 'reason', e.reason, 'attempt', e.attempts)))
  FROM ended e
  WHERE EXISTS (
    SELECT FROM pillarbox.webhook_endpoints p WHERE p.enabled AND p.tenant_id = e.tenant_id)
  HAVING count(*) > 0
), dropped AS (
  SELECT pillarbox._drop_secret_contents(ARRAY(SELECT DISTINCT message_id FROM ended))
  WHERE EXISTS (SELECT FROM ended)
)
SELECT tenant_id, count(*) AS count FROM ended
-- A CTE that only selects is executed only if the statement reads it.
WHERE (SELECT count(*) FROM customers) >= 0 AND (SELECT count(*) FROM dropped) >= 0
GROUP BY tenant_id
