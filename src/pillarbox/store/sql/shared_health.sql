-- name: change_state
-- Write for all processes that a breaker turned: provider $1 is now $2 because of $3, for the $4th time, and may be probed
-- in $5 seconds. Says when, as the state's name; no row when another process was first: it opened before, or it is no
-- longer half open and cannot close. Tells everybody.
WITH turned AS (
  INSERT INTO pillarbox.provider_health AS h (provider_id, state, reason, since, opened, retry_at)
  VALUES ($1, $2, $3, clock_timestamp(), $4, clock_timestamp() + $5 * interval '1 second')
  ON CONFLICT (provider_id) DO UPDATE SET state = excluded.state, reason = excluded.reason, since = excluded.since,
    opened = excluded.opened, retry_at = excluded.retry_at
  WHERE h.state <> excluded.state AND NOT (h.state = 'open' AND excluded.state = 'closed')
  RETURNING since
), told AS (
  INSERT INTO pillarbox.provider_events (provider_id, kind, data)
  SELECT $1, CASE $2 WHEN 'open' THEN 'opened' WHEN 'half_open' THEN 'half_opened' ELSE 'closed' END,
    jsonb_strip_nulls(jsonb_build_object('reason', $3::text, 'worker', $6::text, 'times', $4::int)) FROM turned
)
SELECT since, pg_notify('pillarbox_health', '') FROM turned

-- name: share_pause
-- Write for all processes that provider $1 asked for a pause of $2 seconds.
WITH held AS (
  INSERT INTO pillarbox.provider_health AS h (provider_id, held_until) VALUES ($1, now() + $2 * interval '1 second')
  ON CONFLICT (provider_id) DO UPDATE SET held_until = greatest(h.held_until, excluded.held_until)
  RETURNING provider_id
), told AS (
  INSERT INTO pillarbox.provider_events (provider_id, kind, data)
  SELECT provider_id, 'paused', jsonb_build_object('seconds', $2::float8, 'worker', $3::text) FROM held
)
SELECT pg_notify('pillarbox_health', '') FROM held

-- name: list_shared_health
-- How every provider is, as all processes see it; times in seconds from now.
SELECT provider_id, state, reason, since, opened, extract(epoch FROM retry_at - now())::float8 AS retry_in,
  extract(epoch FROM held_until - now())::float8 AS held_for
FROM pillarbox.provider_health

-- name: take_probe
-- Take on the probe of provider $1, whose breaker is open and whose wait is over; nobody else does within $2 seconds. A wait
-- longer than $3 seconds is over after these: a process of an older version wrote it.
UPDATE pillarbox.provider_health SET retry_at = now() + $2 * interval '1 second'
WHERE provider_id = $1 AND state = 'open' AND (retry_at <= now() OR retry_at > now() + $3 * interval '1 second')
RETURNING provider_id

-- name: reopen
-- Write that the probe of provider $1 failed: it stays open for $4 seconds more, the $3th time, because of $2.
UPDATE pillarbox.provider_health
SET reason = $2, opened = $3, retry_at = clock_timestamp() + $4 * interval '1 second', since = clock_timestamp()
WHERE provider_id = $1 AND state = 'open' RETURNING since

-- name: take_check
-- Take on the check of provider $1, if the last is at least $2 seconds ago. The first is that long after it is first seen.
WITH known AS (
  INSERT INTO pillarbox.provider_health (provider_id, checked_at) VALUES ($1, now()) ON CONFLICT DO NOTHING
)
UPDATE pillarbox.provider_health SET checked_at = now()
WHERE provider_id = $1 AND (checked_at IS NULL OR checked_at <= now() - $2 * interval '1 second') RETURNING provider_id

-- name: record_check
-- Write what the check of provider $1 came to: whether all is well, and what was said. A change is an event.
WITH before AS (
  SELECT check_ok FROM pillarbox.provider_health WHERE provider_id = $1
), told AS (
  INSERT INTO pillarbox.provider_events (provider_id, kind, data)
  SELECT $1, CASE WHEN $2 THEN 'check_passed' ELSE 'check_failed' END, jsonb_build_object('said', $3::text)
  FROM before WHERE check_ok IS DISTINCT FROM $2 AND NOT ($2 AND check_ok IS NULL)
)
UPDATE pillarbox.provider_health SET check_ok = $2, check_said = $3, checked_at = now() WHERE provider_id = $1

-- name: use_quota
-- Ask for the right to send mails of lanes $2 to $3 recipients through provider $1: seconds to wait for each, and why.
SELECT wait, why FROM pillarbox._spend($1, $2::int2[], $3::int4[])
