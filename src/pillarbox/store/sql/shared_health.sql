-- name: change_state
-- Change the shared state of a circuit breaker. :opened counts its openings; after :seconds it may
-- be probed. Returns `since`, which identifies the state. No row if another process was first.
-- Notifies all processes.
WITH changed AS (
  INSERT INTO pillarbox.provider_health AS h (provider_id, state, reason, since, opened, retry_at)
  VALUES (:provider_id, :state, :reason, clock_timestamp(), :opened,
    clock_timestamp() + :seconds * interval '1 second')
  ON CONFLICT (provider_id) DO UPDATE
  SET state = excluded.state, reason = excluded.reason, since = excluded.since,
    opened = excluded.opened, retry_at = excluded.retry_at
  WHERE h.state <> excluded.state
    AND NOT (h.state = 'open' AND excluded.state = 'closed')
  RETURNING since
), event AS (
  INSERT INTO pillarbox.provider_events (provider_id, kind, data)
  SELECT :provider_id,
    CASE :state WHEN 'open' THEN 'opened' WHEN 'half_open' THEN 'half_opened' ELSE 'closed' END,
    jsonb_strip_nulls(jsonb_build_object(
      'reason', :reason::text, 'worker', :worker::text, 'times', :opened::int))
  FROM changed
)
SELECT since, pg_notify('pillarbox_health', '') FROM changed

-- name: share_pause
-- Record that a provider asked a worker for a pause. Notifies all processes.
WITH held AS (
  INSERT INTO pillarbox.provider_health AS h (provider_id, held_until)
  VALUES (:provider_id, now() + :seconds * interval '1 second')
  ON CONFLICT (provider_id) DO UPDATE
  SET held_until = greatest(h.held_until, excluded.held_until)
  RETURNING provider_id
), event AS (
  INSERT INTO pillarbox.provider_events (provider_id, kind, data)
  SELECT provider_id, 'paused',
    jsonb_build_object('seconds', :seconds::float8, 'worker', :worker::text)
  FROM held
)
SELECT pg_notify('pillarbox_health', '') FROM held

-- name: list_shared_health
-- The shared health of every provider; times in seconds from now.
SELECT provider_id, state, reason, since, opened,
  extract(epoch FROM retry_at - now())::float8 AS retry_in,
  extract(epoch FROM held_until - now())::float8 AS held_for
FROM pillarbox.provider_health

-- name: take_probe
-- Take the probe of a provider whose breaker is open and due, for :seconds. A wait that is longer
-- than :longest seconds was written by an older version, and counts as due.
UPDATE pillarbox.provider_health SET retry_at = now() + :seconds * interval '1 second'
WHERE provider_id = :provider_id AND state = 'open'
  AND (retry_at <= now() OR retry_at > now() + :longest * interval '1 second')
RETURNING provider_id

-- name: reopen
-- Record that a probe failed: the breaker stays open for :seconds.
UPDATE pillarbox.provider_health
SET reason = :reason, opened = :opened,
  retry_at = clock_timestamp() + :seconds * interval '1 second',
  since = clock_timestamp()
WHERE provider_id = :provider_id AND state = 'open'
RETURNING since

-- name: take_check
-- Take the check of a provider, if the last one was at least :interval seconds ago.
WITH known AS (
  INSERT INTO pillarbox.provider_health (provider_id, checked_at) VALUES (:provider_id, now())
  ON CONFLICT DO NOTHING
)
UPDATE pillarbox.provider_health SET checked_at = now()
WHERE provider_id = :provider_id
  AND (checked_at IS NULL OR checked_at <= now() - :interval * interval '1 second')
RETURNING provider_id

-- name: record_check
-- Record the result and the text of a check, and an event if the result changed. A first check that
-- passes is not an event.
WITH before AS (
  SELECT check_ok FROM pillarbox.provider_health WHERE provider_id = :provider_id
), event AS (
  INSERT INTO pillarbox.provider_events (provider_id, kind, data)
  SELECT :provider_id, CASE WHEN :ok THEN 'check_passed' ELSE 'check_failed' END,
    jsonb_build_object('said', :text::text)
  FROM before
  WHERE check_ok IS DISTINCT FROM :ok AND NOT (:ok AND check_ok IS NULL)
)
UPDATE pillarbox.provider_health SET check_ok = :ok, check_said = :text, checked_at = now()
WHERE provider_id = :provider_id

-- name: use_quota
-- Use up quota of a provider for mails. For each: the seconds to wait, and which limit.
SELECT wait, why FROM pillarbox._spend(:provider_id, :lanes::int2[], :recipients::int4[])
