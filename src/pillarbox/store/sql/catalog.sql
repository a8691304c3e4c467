-- name: sealed_providers
-- Which secrets each provider has.
SELECT id, 'secret' AS name FROM pillarbox.providers WHERE secret IS NOT NULL
UNION ALL SELECT id, 'webhook_secret' FROM pillarbox.providers WHERE webhook_secret IS NOT NULL

-- name: grants
-- The statements that let a role ($1) enqueue, and nothing else; no row when there is no such role.
SELECT format('GRANT USAGE ON SCHEMA pillarbox TO %I', r.rolname) AS statement FROM pg_roles r WHERE r.rolname = $1
UNION ALL
SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, r.rolname)
FROM pg_roles r, pg_proc p JOIN pg_namespace s ON s.oid = p.pronamespace
WHERE r.rolname = $1 AND s.nspname = 'pillarbox' AND p.proname IN ('enqueue', 'enqueue_many')

-- name: list_captured
-- Captured mails with a number below $1, newest first: at most $2, captured in [$3, $4), that fit $5 part of a recipient,
-- $6 part of the sender and $7 provider; null means any. `head` is their beginning, where the subject is.
SELECT c.id, c.at, c.message_id, p.name AS provider, c.sender, c.recipients, octet_length(c.content) AS size,
  substring(c.content FROM 1 FOR 16384) AS head
FROM pillarbox.captured c JOIN pillarbox.providers p ON p.id = c.provider_id
WHERE c.id < $1
  AND ($3::timestamptz IS NULL OR c.at >= $3) AND ($4::timestamptz IS NULL OR c.at < $4)
  AND ($5::text IS NULL OR EXISTS (SELECT FROM unnest(c.recipients) AS r WHERE strpos(lower(r), lower($5)) > 0))
  AND ($6::text IS NULL OR strpos(lower(c.sender), lower($6)) > 0) AND ($7::text IS NULL OR p.name = $7)
ORDER BY c.id DESC
LIMIT $2

-- name: captured
-- One captured mail.
SELECT content FROM pillarbox.captured WHERE id = $1
