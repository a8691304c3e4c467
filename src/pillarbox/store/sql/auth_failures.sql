-- name: add_failures
-- Add failed logins per place within the window; older ones are forgotten. Places are locked in
-- order, to avoid deadlocks. Returns the current counts and their ages in seconds.
INSERT INTO pillarbox.auth_failures AS kept (place, failures)
SELECT given.place, given.failures
  FROM unnest(:places::bytea[], :counts::int4[]) AS given (place, failures) ORDER BY given.place
ON CONFLICT (place) DO UPDATE SET
  failures = CASE WHEN kept.began_at <= now() - :window::interval THEN 0
    ELSE kept.failures END + excluded.failures,
  began_at = CASE WHEN kept.began_at <= now() - :window::interval THEN now() ELSE kept.began_at END
RETURNING place, failures, extract(epoch FROM now() - began_at)::float8 AS age

-- name: purge_failures
-- Delete up to :limit places whose failures began before the window.
DELETE FROM pillarbox.auth_failures WHERE place IN (
  SELECT place FROM pillarbox.auth_failures WHERE began_at <= now() - :window::interval
  ORDER BY began_at LIMIT :limit FOR UPDATE SKIP LOCKED)
