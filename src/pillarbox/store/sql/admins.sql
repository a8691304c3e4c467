-- name: add_admin
-- Add an administrator; no row when the address is taken.
INSERT INTO pillarbox.admins (email, name, password) VALUES ($1, $2, $3)
ON CONFLICT (lower(email)) DO NOTHING
RETURNING id, email, name, created_at, disabled_at, password_changed_at, last_login_at

-- name: list_admins
-- Every administrator, with the sessions and recovery codes that are left.
SELECT a.id, a.email, a.name, a.created_at, a.disabled_at, a.password_changed_at, a.last_login_at,
  (SELECT count(*) FROM pillarbox.admin_sessions s
   WHERE s.admin = a.id AND s.ended_at IS NULL AND s.expires_at > now()) AS sessions,
  (SELECT count(*) FROM pillarbox.admin_recovery_codes c WHERE c.admin = a.id AND c.used_at IS NULL) AS recovery_codes
FROM pillarbox.admins a ORDER BY a.id

-- name: find_admin
-- The administrator with this address, whatever its case.
SELECT id, email, name, created_at, disabled_at, password_changed_at, last_login_at
FROM pillarbox.admins WHERE lower(email) = lower($1)

-- name: password
-- The administrator ($1: address) with what is kept of the password.
SELECT id, email, name, password, disabled_at IS NOT NULL AS disabled FROM pillarbox.admins WHERE lower(email) = lower($1)

-- name: hold_admin
-- Lock an administrator ($1) until the transaction ends, so that whoever disables them or changes the password waits. No row
-- when they are disabled, have another password than $2 (null: any), or have changed it since $3 (null: whenever).
SELECT id, email, name FROM pillarbox.admins
WHERE id = $1 AND disabled_at IS NULL AND ($2::text IS NULL OR password = $2)
  AND ($3::timestamptz IS NULL OR password_changed_at <= $3)
FOR NO KEY UPDATE

-- name: change_password
-- Give an administrator ($1) another password.
UPDATE pillarbox.admins SET password = $2, password_changed_at = clock_timestamp() WHERE id = $1

-- name: disable_admin
-- Let an administrator ($1) in no more.
UPDATE pillarbox.admins SET disabled_at = coalesce(disabled_at, clock_timestamp()) WHERE id = $1

-- name: enable_admin
-- Let an administrator ($1) in again.
UPDATE pillarbox.admins SET disabled_at = NULL WHERE id = $1

-- name: end_sessions
-- End all sessions of an administrator ($1).
UPDATE pillarbox.admin_sessions SET ended_at = now() WHERE admin = $1 AND ended_at IS NULL

-- name: end_session
-- End one session ($1).
UPDATE pillarbox.admin_sessions SET ended_at = now() WHERE id = $1 AND ended_at IS NULL

-- name: add_session
-- Begin a session ($1) of an administrator ($2) that lasts for $3, and note that they came.
WITH came AS (UPDATE pillarbox.admins SET last_login_at = now() WHERE id = $2)
INSERT INTO pillarbox.admin_sessions (id, admin, expires_at) VALUES ($1, $2, now() + $3::interval)
RETURNING expires_at

-- name: find_sessions
-- The sessions in force among these ($1), of administrators who are not disabled.
SELECT s.id, s.admin, coalesce(a.name, 'administrator ' || a.id) AS name
FROM pillarbox.admin_sessions s JOIN pillarbox.admins a ON a.id = s.admin
WHERE s.id = ANY ($1::bytea[]) AND s.ended_at IS NULL AND s.expires_at > now() AND a.disabled_at IS NULL

-- name: drop_recovery_codes
-- Forget all recovery codes of an administrator ($1).
DELETE FROM pillarbox.admin_recovery_codes WHERE admin = $1

-- name: add_recovery_codes
-- Keep the hashes ($2) of new recovery codes of an administrator ($1).
INSERT INTO pillarbox.admin_recovery_codes (admin, hash) SELECT $1, unnest($2::bytea[])

-- name: use_recovery_code
-- Use a recovery code ($2, hashed) of an administrator ($1) up; no row when there is none that is unused.
UPDATE pillarbox.admin_recovery_codes SET used_at = now() WHERE admin = $1 AND hash = $2 AND used_at IS NULL RETURNING admin

-- name: purge_sessions
-- Delete up to $1 sessions that ran out a day ago.
DELETE FROM pillarbox.admin_sessions WHERE id = ANY (ARRAY(
  SELECT * FROM (SELECT id FROM pillarbox.admin_sessions WHERE expires_at < now() - interval '1 day'
                 ORDER BY expires_at LIMIT $1) old LIMIT 10000))
