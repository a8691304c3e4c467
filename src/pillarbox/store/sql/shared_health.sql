-- name: change_state
-- Change the shared state of a circuit breaker: provider $1 is now in state $2 because of $3, opened
-- for the $4th time, and may be probed in $5 seconds; $6 is the worker. Returns `since`, which identifies
-- the state. No row when another process was first. Notifies all processes.
WITH changed AS (
  INSERT INTO pillarbox.provider_health AS h (provider_id, state, reason, since, opened, retry_at)
  VALUES ($1, $2, $3, clock_timestamp(), $4, clock_timestamp() + $5 * interval '1 second')
  ON CONFLICT (provider_id) DO UPDATE SET state = excluded.state, reason = excluded.reason, since = excluded.since,
    opened = excluded.opened, retry_at = excluded.retry_at
  WHERE h.state <> excluded.state AND NOT (h.state = 'open' AND excluded.state = 'closed')
  RETURNING since
), event AS (
  INSERT INTO pillarbox.provider_events (provider_id, kind, data)
  SELECT $1, CASE $2 WHEN 'open' THEN 'opened' WHEN 'half_open' THEN 'half_opened' ELSE 'closed' END,
    jsonb_strip_nulls(jsonb_build_object('reason', $3::text, 'worker', $6::text, 'times', $4::int)) FROM changed
)
SELECT since, pg_notify('pillarbox_health', '') FROM changed

-- name: share_pause
-- Record that provider $1 asked worker $3 for a pause of $2 seconds. Notifies all processes.
WITH held AS (
  INSERT INTO pillarbox.provider_health AS h (provider_id, held_until) VALUES ($1, now() + $2 * interval '1 second')
  ON CONFLICT (provider_id) DO UPDATE SET held_until = greatest(h.held_until, excluded.held_until)
  RETURNING provider_id
), event AS (
  INSERT INTO pillarbox.provider_events (provider_id, kind, data)
  SELECT provider_id, 'paused', jsonb_build_object('seconds', $2::float8, 'worker', $3::text) FROM held
)
SELECT pg_notify('pillarbox_health', '') FROM held

-- name: list_shared_health
-- The shared health of every provider; times in seconds from now.
SELECT provider_id, state, reason, since, opened, extract(epoch FROM retry_at - now())::float8 AS retry_in,
  extract(epoch FROM held_until - now())::float8 AS held_for
FROM pillarbox.provider_health

-- name: take_probe
-- Take the probe of provider $1, whose breaker is open and due, for $2 seconds. A wait that is longer
-- than $3 seconds was written by an older version, and counts as due.
UPDATE pillarbox.provider_health SET retry_at = now() + $2 * interval '1 second'
WHERE provider_id = $1 AND state = 'open' AND (retry_at <= now() OR retry_at > now() + $3 * interval '1 second')
RETURNING provider_id

-- name: reopen
-- Record that the probe of provider $1 failed: it stays open for $4 seconds, for the $3th time, because of $2.
UPDATE pillarbox.provider_health
SET reason = $2, opened = $3, retry_at = clock_timestamp() + $4 * interval '1 second', since = clock_timestamp()
WHERE provider_id = $1 AND state = 'open' RETURNING since

-- name: take_check
-- Take the check of provider $1, if the last one was at least $2 seconds ago.
WITH known AS (
  INSERT INTO pillarbox.provider_health (provider_id, checked_at) VALUES ($1, now()) ON CONFLICT DO NOTHING
)
UPDATE pillarbox.provider_health SET checked_at = now()
WHERE provider_id = $1 AND (checked_at IS NULL OR checked_at <= now() - $2 * interval '1 second') RETURNING provider_id

-- name: record_check
-- Record the result $2 and the text $3 of a check of provider $1. A change is an event.
WITH before AS (
  SELECT check_ok FROM pillarbox.provider_health WHERE provider_id = $1
), event AS (
  INSERT INTO pillarbox.provider_events (provider_id, kind, data)
  SELECT $1, CASE WHEN $2 THEN 'check_passed' ELSE 'check_failed' END, jsonb_build_object('said', $3::text)
  FROM before WHERE check_ok IS DISTINCT FROM $2 AND NOT ($2 AND check_ok IS NULL)
)
UPDATE pillarbox.provider_health SET check_ok = $2, check_said = $3, checked_at = now() WHERE provider_id = $1

-- name: use_quota
-- Use up quota of provider $1 for mails of lanes $2 to $3 recipients. Seconds to wait, and the limit, for each.
SELECT wait, why FROM pillarbox._spend($1, $2::int2[], $3::int4[])
