-- name: add_failures
-- Count failures ($2) at places ($1) that began within the window ($3); older ones are forgotten. Places are locked in
-- their order, so that processes do not wait for each other in a circle. Returns what is counted now, and for how long.
INSERT INTO pillarbox.auth_failures AS kept (place, failures)
SELECT given.place, given.failures FROM unnest($1::bytea[], $2::int4[]) AS given (place, failures) ORDER BY given.place
ON CONFLICT (place) DO UPDATE SET
  failures = CASE WHEN kept.began_at <= now() - $3::interval THEN 0 ELSE kept.failures END + excluded.failures,
  began_at = CASE WHEN kept.began_at <= now() - $3::interval THEN now() ELSE kept.began_at END
RETURNING place, failures, extract(epoch FROM now() - began_at)::float8 AS age

-- name: purge_failures
-- Forget up to $2 places whose failures began before the window ($1).
DELETE FROM pillarbox.auth_failures WHERE place IN (
  SELECT place FROM pillarbox.auth_failures WHERE began_at <= now() - $1::interval
  ORDER BY began_at LIMIT $2 FOR UPDATE SKIP LOCKED)
