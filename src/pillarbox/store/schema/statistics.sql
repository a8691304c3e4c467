-- Counts for metrics, `pillarbox queue stats` and the status page.

-- Unfinished deliveries by state, and the age of the oldest due one.
CREATE OR REPLACE FUNCTION pillarbox._depth()
  RETURNS TABLE (state text, count bigint, oldest double precision)
LANGUAGE sql STABLE ROWS 6 SET jit = off AS $$
  SELECT 'pending', count(*), NULL::float8 FROM pillarbox.deliveries WHERE state = 'pending'
  UNION ALL
  SELECT 'queued', count(*), extract(epoch FROM now() - min(next_attempt_at))::float8
    FROM pillarbox.deliveries
  WHERE state = 'queued' AND attempts = 0
  UNION ALL
  SELECT 'deferred', count(*), greatest(0, extract(epoch FROM now() - min(next_attempt_at)))::float8
    FROM pillarbox.deliveries
  WHERE state = 'queued' AND attempts > 0
  UNION ALL
  SELECT 'processing', count(*), extract(epoch FROM now() - min(claimed_at))::float8
    FROM pillarbox.deliveries
  WHERE state = 'processing'
  UNION ALL
  SELECT state::text, count(*), NULL FROM pillarbox.deliveries WHERE state IN ('failed', 'held')
    GROUP BY state
$$;

-- The `most` tenants with the most waiting deliveries (ties: the older tenant first), and how
-- many wait in all others.
CREATE OR REPLACE FUNCTION pillarbox._longest(most bigint)
  RETURNS TABLE (id integer, name text, count bigint, others bigint)
LANGUAGE sql STABLE ROWS 20 SET jit = off AS $$
  WITH waiting AS (
    SELECT tenant_id, count(*) AS count FROM (
      SELECT tenant_id FROM pillarbox.deliveries WHERE state = 'queued' AND attempts = 0
      UNION ALL SELECT tenant_id FROM pillarbox.deliveries
        WHERE state = 'queued' AND attempts > 0) one
    GROUP BY tenant_id
  ), ranked AS (
    SELECT t.id, t.name, coalesce(w.count, 0) AS count
    FROM pillarbox.tenants t LEFT JOIN waiting w ON w.tenant_id = t.id
    ORDER BY w.count DESC NULLS LAST, t.id LIMIT most
  )
  SELECT r.id, r.name, r.count,
    ((SELECT coalesce(sum(w.count), 0) FROM waiting w) - (SELECT sum(o.count)
      FROM ranked o))::bigint
  FROM ranked r
$$;

-- Unfinished and dead-letter deliveries by tenant and state, with the age in seconds of the
-- oldest due one.
CREATE OR REPLACE FUNCTION pillarbox._depth_by_tenant()
RETURNS TABLE (tenant text, state text, count bigint, oldest double precision)
LANGUAGE sql STABLE ROWS 100 SET jit = off AS $$
  SELECT t.name, d.state, count(*), greatest(0, extract(epoch FROM now() - min(d.due)))::float8
  FROM (
    SELECT tenant_id, 'pending' AS state, NULL::timestamptz AS due FROM pillarbox.deliveries
      WHERE state = 'pending'
    UNION ALL SELECT tenant_id, 'queued', next_attempt_at FROM pillarbox.deliveries
      WHERE state = 'queued' AND attempts = 0
    UNION ALL SELECT tenant_id, 'deferred', next_attempt_at FROM pillarbox.deliveries
      WHERE state = 'queued' AND attempts > 0
    UNION ALL SELECT tenant_id, 'processing', claimed_at FROM pillarbox.deliveries
      WHERE state = 'processing'
    UNION ALL SELECT tenant_id, state::text, NULL FROM pillarbox.deliveries
      WHERE state IN ('failed', 'held')
  ) d JOIN pillarbox.tenants t ON t.id = d.tenant_id
  GROUP BY t.name, d.state ORDER BY t.name, d.state
$$;

-- What was settled in the last `seconds` and in the last minute, for one tenant (null: all).
-- Sent deliveries are searched among messages with ids from `since` on, so that the work does
-- not grow with the history.
CREATE OR REPLACE FUNCTION pillarbox._recent(since uuid, seconds double precision, of_tenant text)
RETURNS TABLE (sent bigint, failed bigint, sent_last_minute bigint, failed_last_minute bigint)
LANGUAGE sql STABLE ROWS 1 SET jit = off AS $$
  SELECT count(*) FILTER (WHERE s.was_sent), count(*) FILTER (WHERE NOT s.was_sent),
    count(*) FILTER (WHERE s.was_sent AND s.settled_at > now() - interval '1 minute'),
    count(*) FILTER (WHERE NOT s.was_sent AND s.settled_at > now() - interval '1 minute')
  FROM (
    SELECT true AS was_sent, settled_at, tenant_id FROM pillarbox.deliveries
    WHERE message_id >= since AND state IN ('sent', 'delivered', 'bounced', 'complained')
    UNION ALL
    SELECT false, settled_at, tenant_id FROM pillarbox.deliveries
      WHERE state IN ('failed', 'held') AND state = 'failed'
      AND settled_at > now() - seconds * interval '1 second'
  ) s
  WHERE s.settled_at > now() - seconds * interval '1 second'
    AND (of_tenant IS NULL OR s.tenant_id = (SELECT t.id FROM pillarbox.tenants t
      WHERE t.name = of_tenant))
$$;
