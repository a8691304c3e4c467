-- name: purge_contents
-- Walk $3 contents in order of age after $2 and drop those of finished messages older than $1 seconds, or than their
-- class says. Returns where the walk ended (null at the end) and how many were dropped.
WITH scanned AS MATERIALIZED (
  SELECT message_id FROM pillarbox.contents WHERE message_id > $2 ORDER BY message_id LIMIT $3
), old AS (
  SELECT s.message_id FROM scanned s
  JOIN LATERAL (SELECT class, created_at FROM pillarbox.messages WHERE id = s.message_id LIMIT 1) m ON true
  LEFT JOIN pillarbox.classes k ON k.name = m.class
  WHERE m.created_at < now() - coalesce(k.content_retention, $1 * interval '1 second')
    AND NOT EXISTS (SELECT FROM pillarbox.deliveries d
                    WHERE d.message_id = s.message_id AND d.state IN ('pending', 'queued', 'processing', 'held'))
), dropped AS (
  DELETE FROM pillarbox.contents WHERE message_id = ANY (ARRAY(SELECT message_id FROM old)) RETURNING 1
)
SELECT (SELECT message_id FROM scanned ORDER BY message_id DESC LIMIT 1) AS last, (SELECT count(*) FROM dropped) AS dropped

-- name: purge_finished
-- Walk $3 messages in order of age after $2 and delete those finished and older than $1 seconds, with their whole story.
WITH scanned AS MATERIALIZED (
  SELECT id, created_at FROM pillarbox.messages WHERE id > $2 ORDER BY id LIMIT $3
), old AS MATERIALIZED (
  SELECT s.id FROM scanned s
  WHERE s.created_at < now() - $1 * interval '1 second'
    AND NOT EXISTS (SELECT FROM pillarbox.deliveries d
                    WHERE d.message_id = s.id AND d.state IN ('pending', 'queued', 'processing', 'held'))
), contents AS (
  DELETE FROM pillarbox.contents WHERE message_id = ANY (ARRAY(SELECT id FROM old))
), deliveries AS (
  DELETE FROM pillarbox.deliveries WHERE message_id = ANY (ARRAY(SELECT id FROM old))
), attempts AS (
  DELETE FROM pillarbox.attempts WHERE message_id = ANY (ARRAY(SELECT id FROM old))
), conversations AS (
  DELETE FROM pillarbox.conversations WHERE message_id = ANY (ARRAY(SELECT id FROM old))
), events AS (
  DELETE FROM pillarbox.events WHERE message_id = ANY (ARRAY(SELECT id FROM old))
), messages AS (
  DELETE FROM pillarbox.messages WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING 1
)
SELECT (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS last, (SELECT count(*) FROM messages) AS dropped

-- name: purge_keys
-- Delete up to $2 idempotency keys of messages before $1.
DELETE FROM pillarbox.idempotency_keys WHERE (tenant_id, key) IN (
  SELECT tenant_id, key FROM pillarbox.idempotency_keys WHERE message_id < $1 ORDER BY message_id LIMIT $2)

-- name: purge_captured
-- Delete up to $2 captured mails older than $1 seconds.
DELETE FROM pillarbox.captured WHERE id IN (
  SELECT id FROM pillarbox.captured WHERE at < now() - $1 * interval '1 second' ORDER BY id LIMIT $2)

-- name: purge_before
-- The first id of a message younger than $1 seconds: where a walk may end.
SELECT encode(overlay('\x00000000000000000000000000000000'::bytea PLACING
  substring(int8send((extract(epoch FROM now() - $1 * interval '1 second') * 1000)::bigint) FROM 3) FROM 1 FOR 6), 'hex')::uuid
