-- name: list_health
-- The health of each provider that had trouble or was checked; a provider without a row is healthy.
SELECT provider_id, state, reason, since, retry_at, held_until, opened, checked_at, check_ok,
  check_said
FROM pillarbox.provider_health

-- name: list_events
-- Events of a provider (null: of any), newest first, at most :limit, older than event :before
-- (null: no bound).
SELECT e.id, e.at, p.name AS provider, e.kind, e.data
FROM pillarbox.provider_events e
JOIN pillarbox.providers p ON p.id = e.provider_id
WHERE (:provider_id::int4 IS NULL OR e.provider_id = :provider_id)
  AND (:before::int8 IS NULL OR e.id < :before)
ORDER BY e.id DESC
LIMIT :limit

-- name: list_usage
-- Limits, prices and usage, now and in this month (UTC), of each provider, removed ones included.
SELECT p.id, p.name, p.kind, p.enabled, p.release_only,
  p.removed_at IS NOT NULL AS removed,
  p.rate_per_second, p.rate_per_hour, p.rate_per_day,
  nullif(r.second_at, '-infinity') AS second_at,
  nullif(r.hour_at, '-infinity') AS hour_at,
  nullif(r.day_at, '-infinity') AS day_at,
  p.price_per_thousand, p.budget_per_month, p.reserve_urgent, p.reserve_normal,
  coalesce(s.mails, 0) AS mails,
  now() AS at
FROM pillarbox.providers p
LEFT JOIN pillarbox.rates r ON r.kind = 'p' AND r.id = p.id
LEFT JOIN pillarbox.provider_spending s
  ON s.provider_id = p.id AND s.month = date_trunc('month', now() AT TIME ZONE 'UTC')::date
ORDER BY p.id
