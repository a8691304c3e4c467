-- name: find_keys
-- The valid keys with these prefixes, each with its tenant. The caller compares the secrets in
-- constant time.
SELECT t.id, t.name, t.created_at, t.default_sender, t.default_class, t.order_mode,
  t.max_message_bytes, t.max_recipients,
  t.sender_domains, t.rate_per_second, t.rate_per_hour, t.rate_per_day, t.content_retention,
  t.finished_retention,
  k.prefix, k.hash, k.id AS own_id, k.name AS own_name, k.scopes,
  k.sender_domains AS own_sender_domains,
  k.recipient_domains, k.expires_at, k.parent_id, now() AS now
FROM pillarbox.api_keys k LEFT JOIN pillarbox.tenants t ON t.id = k.tenant_id
WHERE k.prefix = ANY (:prefixes::text[]) AND k.revoked_at IS NULL
  AND (k.expires_at IS NULL OR k.expires_at > now())

-- name: find_logins
-- The valid logins with these user names, each with its tenant; as find_keys.
SELECT t.id, t.name, t.created_at, t.default_sender, t.default_class, t.order_mode,
  t.max_message_bytes, t.max_recipients,
  t.sender_domains, t.rate_per_second, t.rate_per_hour, t.rate_per_day, t.content_retention,
  t.finished_retention,
  l.username, l.hash, l.id AS own_id, l.name AS own_name, '{send}'::text[] AS scopes,
  l.sender_domains AS own_sender_domains, l.recipient_domains, l.expires_at, l.parent_id,
  now() AS now
FROM pillarbox.smtp_logins l JOIN pillarbox.tenants t ON t.id = l.tenant_id
WHERE l.username = ANY (:usernames::text[]) AND l.revoked_at IS NULL
  AND (l.expires_at IS NULL OR l.expires_at > now())

-- name: has_login
-- Whether a login has or had this user name. For development only: no index has revoked logins,
-- but the table is small.
SELECT EXISTS (SELECT FROM pillarbox.smtp_logins WHERE username = :username)

-- name: note_keys
-- Record that keys were used now, to the minute. Skips rows that another process is updating.
UPDATE pillarbox.api_keys SET last_used_at = now() WHERE id IN (
  SELECT id FROM pillarbox.api_keys
  WHERE id = ANY (:ids::int4[]) AND (last_used_at IS NULL
    OR last_used_at <= now() - interval '1 minute')
  FOR NO KEY UPDATE SKIP LOCKED)

-- name: note_logins
-- Record that logins were used now; as note_keys.
UPDATE pillarbox.smtp_logins SET last_used_at = now() WHERE id IN (
  SELECT id FROM pillarbox.smtp_logins
  WHERE id = ANY (:ids::int4[]) AND (last_used_at IS NULL
    OR last_used_at <= now() - interval '1 minute')
  FOR NO KEY UPDATE SKIP LOCKED)

-- name: list_keys
-- Keys, newest last: of a tenant (null: all), with this prefix and name (null: any), revoked ones
-- only with :include_revoked.
SELECT k.id, k.name, t.name AS tenant, k.prefix, k.scopes, k.sender_domains, k.recipient_domains,
  k.created_at,
  k.expires_at, k.revoked_at, k.last_used_at, k.made_by, p.prefix AS parent
FROM pillarbox.api_keys k LEFT JOIN pillarbox.tenants t ON t.id = k.tenant_id LEFT
  JOIN pillarbox.api_keys p ON p.id = k.parent_id
WHERE (:tenant::text IS NULL OR t.name = :tenant) AND (:prefix::text IS NULL OR k.prefix = :prefix)
  AND (:name::text IS NULL OR k.name = :name)
  AND (:include_revoked OR k.revoked_at IS NULL)
ORDER BY k.id

-- name: list_logins
-- Logins, newest last: of a tenant (null: all), with this user name (null: any), revoked ones only
-- with :include_revoked.
SELECT l.id, l.name, t.name AS tenant, l.username, l.sender_domains, l.recipient_domains,
  l.created_at, l.expires_at,
  l.revoked_at, l.last_used_at, l.made_by, p.prefix AS parent
FROM pillarbox.smtp_logins l JOIN pillarbox.tenants t ON t.id = l.tenant_id LEFT
  JOIN pillarbox.api_keys p ON p.id = l.parent_id
WHERE (:tenant::text IS NULL OR t.name = :tenant)
  AND (:username::text IS NULL OR l.username = :username)
  AND (:include_revoked OR l.revoked_at IS NULL)
ORDER BY l.id

-- name: retire_key
-- Revoke an expired key of a tenant (null: of administrators), so that its name can be used again.
UPDATE pillarbox.api_keys SET revoked_at = now()
WHERE coalesce(tenant_id, 0) = coalesce(:tenant_id::int4, 0) AND name = :name AND revoked_at IS NULL
  AND expires_at <= now()

-- name: add_key
-- Add a key; no row if a valid key of the tenant has the name.
INSERT INTO pillarbox.api_keys (tenant_id, name, prefix, hash, scopes, sender_domains,
  recipient_domains, expires_at, parent_id,
  made_by)
VALUES (:tenant_id, :name, :prefix, :hash, :scopes, :sender_domains, :recipient_domains,
  :expires_at, :parent_id, :made_by)
ON CONFLICT (coalesce(tenant_id, 0), name) WHERE revoked_at IS NULL DO NOTHING
RETURNING id, created_at, (SELECT p.prefix FROM pillarbox.api_keys p
  WHERE p.id = parent_id) AS parent

-- name: retire_login
-- Revoke an expired login, so that its user name can be used again.
UPDATE pillarbox.smtp_logins SET revoked_at = now()
  WHERE username = :username AND revoked_at IS NULL AND expires_at <= now()

-- name: add_login
-- Add a login; no row if a valid login has the user name.
INSERT INTO pillarbox.smtp_logins (tenant_id, name, username, hash, sender_domains,
  recipient_domains, expires_at, parent_id,
  made_by)
VALUES (:tenant_id, :name, :username, :hash, :sender_domains, :recipient_domains, :expires_at,
  :parent_id, :made_by)
ON CONFLICT (username) WHERE revoked_at IS NULL DO NOTHING
RETURNING id, created_at, (SELECT p.prefix FROM pillarbox.api_keys p
  WHERE p.id = parent_id) AS parent

-- name: revoke_login
-- Revoke a login; no row if it is not valid, or not of this tenant (null: any).
UPDATE pillarbox.smtp_logins SET revoked_at = now()
WHERE id = :id AND revoked_at IS NULL
  AND (:tenant::text IS NULL OR tenant_id = (SELECT t.id FROM pillarbox.tenants t
    WHERE t.name = :tenant))
RETURNING id
