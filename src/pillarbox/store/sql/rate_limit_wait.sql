-- name: rate_limit_wait
-- The rate limit that holds a message back (`tenant_rate` or `provider_rate`), and when the
-- message is expected to leave, given what waits before it in its tenant's lanes (counted to
-- 10,000). No row if no limit does. Of providers only the first in the default order can be named:
-- with routes it depends on the mail, and `pillarbox route explain` shows it.
WITH head AS (
  SELECT d.tenant_id, d.lane, d.seq
  FROM pillarbox.deliveries d
  WHERE d.message_id = :message_id AND d.state = 'queued' AND d.next_attempt_at <= now()
    ORDER BY d.n LIMIT 1
), ahead AS (
  SELECT count(*) AS mails FROM (
    SELECT FROM pillarbox.deliveries d, head h
    WHERE d.tenant_id = h.tenant_id AND d.state = 'queued' AND d.attempts = 0
      AND (d.lane < h.lane OR (d.lane = h.lane AND d.seq < h.seq)) LIMIT 10000) counted
), limits AS (
  SELECT 'tenant_rate' AS waits_for, t.rate_per_second, t.rate_per_hour, t.rate_per_day,
    r.second_at, r.hour_at, r.day_at
  FROM head h JOIN pillarbox.tenants t ON t.id = h.tenant_id
    JOIN pillarbox.rates r ON r.kind = 't' AND r.id = t.id
  UNION ALL
  SELECT 'provider_rate', p.rate_per_second, p.rate_per_hour, p.rate_per_day, r.second_at,
    r.hour_at, r.day_at
  FROM (SELECT * FROM pillarbox.providers WHERE enabled AND removed_at IS NULL AND NOT release_only
        ORDER BY array_position('{sendgrid,ses,mailgun,smtp,capture}', kind), id LIMIT 1) p
  JOIN pillarbox.rates r ON r.kind = 'p' AND r.id = p.id
  WHERE EXISTS (SELECT FROM head) AND NOT EXISTS (SELECT FROM pillarbox.routes WHERE enabled)
)
SELECT l.waits_for, w."limit", w.period, now() + e.wait * interval '1 second' AS expected_at
FROM limits l
CROSS JOIN LATERAL (VALUES ('second', l.rate_per_second, 1, l.second_at),
  ('hour', l.rate_per_hour, 3600, l.hour_at),
                           ('day', l.rate_per_day, 86400, l.day_at)) AS w(period, "limit", seconds,
                           used_until)
CROSS JOIN LATERAL (
  SELECT greatest(0, extract(epoch FROM nullif(w.used_until, '-infinity') - now())::float8)
    + ((SELECT mails FROM ahead) + 1 - greatest(1,
    w."limit" / 10)) * w.seconds::float8 / w."limit" AS wait) e
WHERE w."limit" IS NOT NULL AND e.wait > 0
ORDER BY e.wait DESC LIMIT 1
