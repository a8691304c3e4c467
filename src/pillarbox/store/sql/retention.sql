-- name: finished_ages
-- All retention times of finished mails: the installation's (null: none) and those of tenants.
SELECT DISTINCT age FROM (
  SELECT :default_age::interval AS age UNION ALL SELECT finished_retention FROM pillarbox.tenants
) AS given WHERE age IS NOT NULL

-- name: content_ages
-- All retention times of contents: the installation's (null: none), and those of tenants and
-- classes.
SELECT DISTINCT age FROM (
  SELECT :default_age::interval AS age UNION ALL SELECT content_retention FROM pillarbox.tenants
  UNION ALL SELECT content_retention FROM pillarbox.classes
) AS given WHERE age IS NOT NULL

-- name: begin_walk
-- Where a walk for an age continues, and where it ends: at the first id that is younger. Mails of
-- all tenants are mixed, and most are kept for another time, so a walk does not read a mail again
-- until the next day: then it starts from the beginning, for mails that finished late.
SELECT coalesce(w.walked_to, '00000000-0000-0000-0000-000000000000') AS start,
  coalesce(w.began_at, now()) AS began_at,
  encode(overlay('\x00000000000000000000000000000000'::bytea PLACING
    substring(int8send((extract(epoch FROM now() - :age::interval) * 1000)::bigint) FROM 3)
      FROM 1 FOR 6), 'hex')::uuid AS "end"
FROM (VALUES (true)) AS one
LEFT JOIN pillarbox.retention_walks w ON w.what = :what AND w.age = :age
  AND w.began_at > now() - interval '1 day'

-- name: forget_walks
-- Delete walks for ages that are not used any more.
DELETE FROM pillarbox.retention_walks WHERE began_at < now() - interval '2 days'

-- name: purge_finished
-- Read :limit messages in order of age, after :after_id and before :end_id, and delete the
-- finished ones whose retention is :age, with everything that belongs to them; the retention is
-- their tenant's, or else the installation's (:default_age, null: unlimited). An idempotency key
-- is deleted with its mail, but not before it is a day old, since clients repeat requests.
-- :began_at is the start of the walk. Returns where it ended (null: at the end) and how many were
-- deleted. Each LATERAL … LIMIT 1 and `= ANY (ARRAY(…))` keeps the planner on the primary keys,
-- however long the history is.
WITH scanned AS MATERIALIZED (
  SELECT id, tenant_id, created_at FROM pillarbox.messages WHERE id > :after_id AND id < :end_id
    ORDER BY id LIMIT :limit
), old AS MATERIALIZED (
  SELECT s.id, s.created_at FROM scanned s
  LEFT JOIN pillarbox.tenants t ON t.id = s.tenant_id
  LEFT JOIN LATERAL (
    SELECT true AS unfinished FROM pillarbox.deliveries d
    WHERE d.message_id = s.id AND d.state::text IN ('pending', 'queued', 'processing', 'held')
      LIMIT 1) d ON true
  WHERE coalesce(t.finished_retention, :default_age::interval) = :age::interval
    AND d.unfinished IS NULL
), walked AS (
  INSERT INTO pillarbox.retention_walks (what, age, walked_to, began_at)
  SELECT 'messages', :age, id, :began_at FROM scanned ORDER BY id DESC LIMIT 1
  ON CONFLICT (what, age) DO UPDATE SET walked_to = excluded.walked_to, began_at = excluded.began_at
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
), feedback AS (
  DELETE FROM pillarbox.feedback WHERE message_id = ANY (ARRAY(SELECT id FROM old))
), webhook_calls AS (
  DELETE FROM pillarbox.webhook_calls WHERE message_id = ANY (ARRAY(SELECT id FROM old))
    AND state <> 'waiting'
), keys AS (
  DELETE FROM pillarbox.idempotency_keys
  WHERE message_id = ANY (ARRAY(SELECT id FROM old WHERE created_at < now() - interval '1 day'))
    RETURNING 1
), messages AS (
  DELETE FROM pillarbox.messages WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING 1
)
SELECT (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS last,
  (SELECT count(*) FROM messages) AS messages,
  (SELECT count(*) FROM keys) AS keys

-- name: purge_contents
-- As purge_finished, for the contents of finished messages: the retention is their class's, or
-- else their tenant's, or else the installation's. Captured copies are deleted, too.
WITH scanned AS MATERIALIZED (
  SELECT message_id FROM pillarbox.contents WHERE message_id > :after_id AND message_id < :end_id
    ORDER BY message_id LIMIT :limit
), old AS MATERIALIZED (
  SELECT s.message_id FROM scanned s
  JOIN LATERAL (SELECT class, tenant_id FROM pillarbox.messages WHERE id = s.message_id LIMIT 1) m
    ON true
  LEFT JOIN pillarbox.classes k ON k.name = m.class
  LEFT JOIN pillarbox.tenants t ON t.id = m.tenant_id
  LEFT JOIN LATERAL (
    SELECT true AS unfinished FROM pillarbox.deliveries d
    WHERE d.message_id = s.message_id
      AND d.state::text IN ('pending', 'queued', 'processing', 'held') LIMIT 1) d ON true
  WHERE coalesce(k.content_retention, t.content_retention, :default_age::interval) = :age::interval
    AND d.unfinished IS NULL
), walked AS (
  INSERT INTO pillarbox.retention_walks (what, age, walked_to, began_at)
  SELECT 'contents', :age, message_id, :began_at FROM scanned ORDER BY message_id DESC LIMIT 1
  ON CONFLICT (what, age) DO UPDATE SET walked_to = excluded.walked_to, began_at = excluded.began_at
), captured AS (
  DELETE FROM pillarbox.captured WHERE message_id = ANY (ARRAY(SELECT message_id FROM old))
    RETURNING 1
), dropped AS (
  DELETE FROM pillarbox.contents WHERE message_id = ANY (ARRAY(SELECT message_id FROM old))
    RETURNING 1
)
SELECT (SELECT message_id FROM scanned ORDER BY message_id DESC LIMIT 1) AS last,
  (SELECT count(*) FROM dropped) AS contents, (SELECT count(*) FROM captured) AS captured

-- name: purge_keys
-- As purge_finished, for idempotency keys that were younger than a day when their mail was
-- deleted.
WITH scanned AS MATERIALIZED (
  SELECT message_id FROM pillarbox.idempotency_keys
  WHERE message_id > :after_id AND message_id < :end_id ORDER BY message_id LIMIT :limit
), old AS MATERIALIZED (
  SELECT s.message_id FROM scanned s
  LEFT JOIN LATERAL (SELECT id FROM pillarbox.messages WHERE id = s.message_id LIMIT 1) m ON true
  WHERE m.id IS NULL
), walked AS (
  INSERT INTO pillarbox.retention_walks (what, age, walked_to, began_at)
  SELECT 'keys', :age, message_id, :began_at FROM scanned ORDER BY message_id DESC LIMIT 1
  ON CONFLICT (what, age) DO UPDATE SET walked_to = excluded.walked_to, began_at = excluded.began_at
), dropped AS (
  DELETE FROM pillarbox.idempotency_keys WHERE message_id = ANY (ARRAY(SELECT message_id FROM old))
    RETURNING 1
)
SELECT (SELECT message_id FROM scanned ORDER BY message_id DESC LIMIT 1) AS last,
  (SELECT count(*) FROM dropped) AS keys

-- name: purge_captured
-- Delete up to :limit captured mails older than :age.
DELETE FROM pillarbox.captured WHERE id = ANY (ARRAY(
  SELECT * FROM (SELECT id FROM pillarbox.captured WHERE at < now() - :age::interval
    ORDER BY id LIMIT :limit) old LIMIT 10000))

-- name: purge_suppressions
-- Delete up to :limit expired entries of suppression lists.
DELETE FROM pillarbox.suppressions WHERE expires_at <= now() AND ctid = ANY (ARRAY(
  SELECT * FROM (SELECT ctid FROM pillarbox.suppressions WHERE expires_at <= now() LIMIT :limit) old
    LIMIT 10000))
