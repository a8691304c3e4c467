-- name: sealed_providers
-- Which secrets each provider has.
SELECT id, 'secret' AS name FROM pillarbox.providers WHERE secret IS NOT NULL
UNION ALL SELECT id, 'webhook_secret' FROM pillarbox.providers WHERE webhook_secret IS NOT NULL

-- name: grants
-- The statements that grant a role the right to enqueue, and nothing else; no row if there is no
-- such role.
SELECT format('GRANT USAGE ON SCHEMA pillarbox TO %I', r.rolname) AS statement FROM pg_roles r
  WHERE r.rolname = :role
UNION ALL
SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, r.rolname)
FROM pg_roles r, pg_proc p JOIN pg_namespace s ON s.oid = p.pronamespace
WHERE r.rolname = :role AND s.nspname = 'pillarbox' AND p.proname IN ('enqueue', 'enqueue_many')

-- name: list_captured
-- Captured mails with a number below :before, newest first, captured in [:since, :until), that
-- match part of a recipient, part of the sender, and the provider; null matches any. `head` is the
-- beginning of the mail, with its subject.
SELECT c.id, c.at, c.message_id, p.name AS provider, c.sender, c.recipients,
  octet_length(c.content) AS size,
  substring(c.content FROM 1 FOR 16384) AS head
FROM pillarbox.captured c JOIN pillarbox.providers p ON p.id = c.provider_id
WHERE c.id < :before
  AND (:since::timestamptz IS NULL OR c.at >= :since)
  AND (:until::timestamptz IS NULL OR c.at < :until)
  AND (:recipient::text IS NULL OR EXISTS (SELECT FROM unnest(c.recipients) AS r
    WHERE strpos(lower(r), lower(:recipient)) > 0))
  AND (:sender::text IS NULL OR strpos(lower(c.sender), lower(:sender)) > 0)
  AND (:provider::text IS NULL OR p.name = :provider)
ORDER BY c.id DESC
LIMIT :limit

-- name: captured
-- The content of one captured mail.
SELECT content FROM pillarbox.captured WHERE id = :id
