-- name: add_admin
-- Add an administrator; no row when the address is taken.
INSERT INTO pillarbox.admins (email, name, password) VALUES (:email, :name, :password)
ON CONFLICT (lower(email)) DO NOTHING
RETURNING id, email, name, created_at, disabled_at, password_changed_at, last_login_at

-- name: list_admins
-- Every administrator, with the sessions and recovery codes that are left.
SELECT a.id, a.email, a.name, a.created_at, a.disabled_at, a.password_changed_at, a.last_login_at,
  (SELECT count(*) FROM pillarbox.admin_sessions s
   WHERE s.admin = a.id AND s.ended_at IS NULL AND s.expires_at > now()) AS sessions,
  (SELECT count(*) FROM pillarbox.admin_recovery_codes c
    WHERE c.admin = a.id AND c.used_at IS NULL) AS recovery_codes
FROM pillarbox.admins a ORDER BY a.id

-- name: find_admin
-- The administrator with this address, whatever its case.
SELECT id, email, name, created_at, disabled_at, password_changed_at, last_login_at
FROM pillarbox.admins WHERE lower(email) = lower(:email)

-- name: password
-- The administrator (:email: address) with what is kept of the password.
SELECT id, email, name, password, disabled_at IS NOT NULL AS disabled FROM pillarbox.admins
  WHERE lower(email) = lower(:email)

-- name: hold_admin
-- Lock an administrator (:id) until the transaction ends, so that whoever disables them or changes
-- the password waits. No row when they are disabled, have another password than :password (null:
-- any), or have changed it since :unchanged_since (null: whenever).
SELECT id, email, name FROM pillarbox.admins
WHERE id = :id AND disabled_at IS NULL AND (:password::text IS NULL OR password = :password)
  AND (:unchanged_since::timestamptz IS NULL OR password_changed_at <= :unchanged_since)
FOR NO KEY UPDATE

-- name: change_password
-- Give an administrator (:id) another password.
UPDATE pillarbox.admins SET password = :password, password_changed_at = clock_timestamp()
  WHERE id = :id

-- name: disable_admin
-- Let an administrator (:id) in no more.
UPDATE pillarbox.admins SET disabled_at = coalesce(disabled_at, clock_timestamp()) WHERE id = :id

-- name: enable_admin
-- Let an administrator (:id) in again.
UPDATE pillarbox.admins SET disabled_at = NULL WHERE id = :id

-- name: end_sessions
-- End all sessions of an administrator (:admin_id).
UPDATE pillarbox.admin_sessions SET ended_at = now() WHERE admin = :admin_id AND ended_at IS NULL

-- name: end_session
-- End one session (:session_id).
UPDATE pillarbox.admin_sessions SET ended_at = now() WHERE id = :session_id AND ended_at IS NULL

-- name: add_session
-- Begin a session (:session_id) of an administrator (:admin_id) that lasts for :lifetime, and note
-- that they came.
WITH came AS (UPDATE pillarbox.admins SET last_login_at = now() WHERE id = :admin_id)
INSERT INTO pillarbox.admin_sessions (id, admin, expires_at)
  VALUES (:session_id, :admin_id, now() + :lifetime::interval)
RETURNING expires_at

-- name: find_sessions
-- The sessions in force among these (:ids), of administrators who are not disabled.
SELECT s.id, s.admin, coalesce(a.name, 'administrator ' || a.id) AS name
FROM pillarbox.admin_sessions s JOIN pillarbox.admins a ON a.id = s.admin
WHERE s.id = ANY (:ids::bytea[]) AND s.ended_at IS NULL AND s.expires_at > now()
  AND a.disabled_at IS NULL

-- name: drop_recovery_codes
-- Forget all recovery codes of an administrator (:admin_id).
DELETE FROM pillarbox.admin_recovery_codes WHERE admin = :admin_id

-- name: add_recovery_codes
-- Keep the hashes (:hashes) of new recovery codes of an administrator (:admin_id).
INSERT INTO pillarbox.admin_recovery_codes (admin, hash) SELECT :admin_id, unnest(:hashes::bytea[])

-- name: use_recovery_code
-- Use a recovery code (:hash, hashed) of an administrator (:admin_id) up; no row when there is
-- none that is unused.
UPDATE pillarbox.admin_recovery_codes SET used_at = now()
  WHERE admin = :admin_id AND hash = :hash AND used_at IS NULL RETURNING admin

-- name: purge_sessions
-- Delete up to :limit sessions that ran out a day ago.
DELETE FROM pillarbox.admin_sessions WHERE id = ANY (ARRAY(
  SELECT * FROM (SELECT id FROM pillarbox.admin_sessions WHERE expires_at < now() - interval '1 day'
                 ORDER BY expires_at LIMIT :limit) old LIMIT 10000))
