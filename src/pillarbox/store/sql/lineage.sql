-- name: ancestors
-- These keys and all keys above them, each with the key that the walk started from. (UNION ends a
-- cycle.)
WITH RECURSIVE line AS (
  SELECT k.id AS start, k.id, k.parent_id FROM pillarbox.api_keys k WHERE k.id = ANY (:ids::int4[])
  UNION
  SELECT line.start, k.id, k.parent_id FROM line JOIN pillarbox.api_keys k ON k.id = line.parent_id
) SELECT line.start, k.scopes, k.sender_domains, k.recipient_domains, k.expires_at
FROM line JOIN pillarbox.api_keys k ON k.id = line.id

-- name: lock_parent
-- Lock a valid key against revocation until the transaction ends; no row if it is not valid.
SELECT id FROM pillarbox.api_keys
WHERE id = :id AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) FOR SHARE

-- name: revoke_key
-- Revoke a key; no row if it is not valid, or not of this tenant (null: any).
UPDATE pillarbox.api_keys SET revoked_at = now()
WHERE id = :id AND revoked_at IS NULL
  AND (:tenant::text IS NULL OR tenant_id = (SELECT t.id FROM pillarbox.tenants t
    WHERE t.name = :tenant))
RETURNING id

-- name: revoke_children
-- Revoke the keys that these keys made; returns all of them, and whether they were valid.
WITH child AS MATERIALIZED (
  SELECT id, revoked_at FROM pillarbox.api_keys WHERE parent_id = ANY (:parent_ids::int4[])
    ORDER BY id FOR UPDATE
), changed AS (
  UPDATE pillarbox.api_keys k SET revoked_at = now() FROM child
    WHERE k.id = child.id AND child.revoked_at IS NULL
) SELECT id, (revoked_at IS NULL)::int AS revoked FROM child

-- name: revoke_logins_of
-- Revoke the logins that these keys made.
UPDATE pillarbox.smtp_logins SET revoked_at = now()
WHERE parent_id = ANY (:parent_ids::int4[]) AND revoked_at IS NULL RETURNING id

-- name: descendants
-- The numbers of valid keys and logins made by a key and its descendants.
WITH RECURSIVE line AS (
  SELECT :id::int4 AS id
  UNION
  SELECT k.id FROM line JOIN pillarbox.api_keys k ON k.parent_id = line.id
) SELECT
  (SELECT count(*)::int FROM pillarbox.api_keys k
    WHERE k.id IN (SELECT id FROM line) AND k.id <> :id
     AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())) AS keys,
  (SELECT count(*)::int FROM pillarbox.smtp_logins l WHERE l.parent_id IN (SELECT id FROM line)
     AND l.revoked_at IS NULL AND (l.expires_at IS NULL OR l.expires_at > now())) AS logins

-- name: credentials
-- All keys and logins, with the fields that decide whether they exceed their parents.
SELECT 'key' AS kind, k.id, k.parent_id, k.made_by, k.prefix AS label, k.name, t.name AS tenant,
  k.scopes, k.sender_domains,
  k.recipient_domains, k.created_at, k.expires_at, k.revoked_at
FROM pillarbox.api_keys k LEFT JOIN pillarbox.tenants t ON t.id = k.tenant_id
UNION ALL
SELECT 'login', l.id, l.parent_id, l.made_by, l.username, l.name, t.name, '{send}',
  l.sender_domains, l.recipient_domains,
  l.created_at, l.expires_at, l.revoked_at
FROM pillarbox.smtp_logins l JOIN pillarbox.tenants t ON t.id = l.tenant_id
ORDER BY kind, id
